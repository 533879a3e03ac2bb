from __future__ import annotations

import os
from pathlib import Path

import pytest

from thermocline.errors import NotFound
from thermocline.ingest.landing import (
    FileUnavailable,
    LandingFile,
    LocalFolder,
    escape_glob,
    list_landing,
)
from thermocline.ingest.lines import decode_uri, unescape_path
from thermocline.ingest.source import Source


def names(folder: Path, **options: object) -> list[str]:
    source = Source("a", str(folder), "bronze.a", **options)  # type: ignore[arg-type]
    return [file.name for file in list_landing(LocalFolder(folder), source).files]


def put(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_hidden_and_temporary_files_are_left_out(tmp_path: Path) -> None:
    put(
        tmp_path, "b.csv", "a.csv", "2026/c.csv", ".hidden.csv", "_SUCCESS", "d.csv.tmp",
        "_temporary/e.csv", ".git/f.csv", "g.csv.part",
    )  # fmt: skip
    assert names(tmp_path) == ["2026/c.csv", "a.csv", "b.csv"]
    assert names(tmp_path, pattern="a.*") == ["a.csv"]


def test_files_that_still_grow_wait(tmp_path: Path) -> None:
    put(tmp_path, "old.csv", "new.csv")
    os.utime(tmp_path / "old.csv", (0, 0))
    source = Source("a", str(tmp_path), "bronze.a", settle=60)
    found = list_landing(LocalFolder(tmp_path), source)
    assert ([file.name for file in found.files], found.growing) == (["old.csv"], 1)


def test_links_count_only_when_they_stay_inside(tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    put(tmp_path, "secret.csv", "landing/in/a.csv")
    (folder / "out.csv").symlink_to(tmp_path / "secret.csv")
    (folder / "etc").symlink_to("/etc")
    (folder / "dangling.csv").symlink_to(folder / "nowhere.csv")
    (folder / "again.csv").symlink_to(folder / "in" / "a.csv")
    (folder / "loop").symlink_to(folder)
    found = list_landing(LocalFolder(folder), Source("a", str(folder), "bronze.a"))
    assert [(file.name, file.location) for file in found.files] == [
        ("again.csv", str(folder / "in" / "a.csv")),
        ("in/a.csv", str(folder / "in" / "a.csv")),
    ]
    assert [refusal.file for refusal in found.refused] == ["etc", "out.csv"]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    assert names(tmp_path) == []


def test_a_file_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "secret.csv", "landing/a.csv")
    folder = LocalFolder(tmp_path / "landing")
    (file,) = folder.entries([])
    (tmp_path / "landing/a.csv").unlink()
    (tmp_path / "landing/a.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(FileUnavailable) as away:
        folder.open(file)
    assert (away.value.file, away.value.reason) == (file, "")
    assert not folder.is_unchanged(file)


def test_a_file_that_became_a_folder_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "gone"):
        with pytest.raises(FileUnavailable) as away:
            LocalFolder(tmp_path).open(LandingFile(name, 1, 1, str(tmp_path / name)))
        assert (away.value.file.name, away.value.reason) == (name, "")


def test_hidden_folders_are_not_entered_and_broken_links_are_named(tmp_path: Path) -> None:
    put(tmp_path, ".staging/a.csv", "_temporary/0/b.csv", "sub/_part/c.csv", "sub/d.csv", "_e.csv")
    (tmp_path / "itself.csv").symlink_to(tmp_path / "itself.csv")
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "nothing.csv")
    found = list_landing(LocalFolder(tmp_path), Source("a", str(tmp_path), "bronze.a"))
    assert [file.name for file in found.files] == ["sub/d.csv"]
    assert [str(each) for each in found.refused] == [
        "itself.csv: it cannot be read: Too many levels of symbolic links"
    ]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")).write_text("x")
    found = list_landing(LocalFolder(tmp_path), Source("a", str(tmp_path), "bronze.a"))
    assert (found.files, [r.reason for r in found.refused]) == ([], ["a name that is not UTF-8"])


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not there"):
        names(tmp_path / "nowhere")


@pytest.mark.parametrize("path", ["/a/b.csv", "/a [1]{x}*?/b\\c.csv", "/é 日/%20#.csv"])
def test_what_is_escaped_for_spark_is_found_again(path: str) -> None:
    assert unescape_path(escape_glob(path)) == path


def test_what_spark_reports_is_decoded() -> None:
    assert decode_uri("file:/a%20b/c%2520%23.csv") == "/a b/c%20#.csv"
    assert decode_uri("s3a://bucket/a%20b.csv") == "bucket/a b.csv"
    assert unescape_path("s3a://bucket/a b.csv") == "bucket/a b.csv"

"""Landing files that go away, change or cannot be read after they were listed. No Spark."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from thermocline.contract.definition import Column, Contract, DriftMode
from thermocline.contract.types import Primitive
from thermocline.ingest import files
from thermocline.ingest.file_batches import BATCH_FILES
from thermocline.ingest.folder_stream import FolderIngester
from thermocline.ingest.landing import LandingFile, list_landing, open_folder
from thermocline.ingest.source import Source
from thermocline.ingest.stream import poll_sources
from thermocline.lake import Lake

TARGET = "bronze.raw_things"
CONTRACT = Contract(
    TARGET, (Column("id", Primitive("long"), required=True),), drift=DriftMode.REFUSE
)


def put(folder: Path, name: str, *ids: int) -> Path:
    """A file that was last written a minute ago."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
    os.utime(path, (time.time() - 60,) * 2)
    return path


def landed(lake: Lake) -> list[int]:
    return sorted(lake.iceberg(TARGET).scan().to_arrow()["id"].to_pylist())


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


@pytest.fixture
def source(landing: Path) -> Source:
    return Source("things", str(landing), TARGET, format="jsonl")


def removed(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_name("other.jsonl"))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def its_folder_removed(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nothing"))


def cut_short(path: Path) -> None:
    os.truncate(path, 0)


def gone_on(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"id": 3}\n')


CHANGES = [
    removed, renamed, a_folder, its_folder_removed, a_pipe, a_dangling_link, cut_short, gone_on,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_not_as_it_was_listed_is_looked_at_again(
    lake: Lake, landing: Path, source: Source, change: Callable[[Path], None]
) -> None:
    put(landing, "a.jsonl", 1)
    put(landing, "sub/b.jsonl", 2)
    put(landing, "z.jsonl", 4)
    listing = list_landing(open_folder(source, lake.settings), source)
    path = landing / "sub" / "b.jsonl"
    change(path)
    report = files.ingest(lake, source, CONTRACT, run="r1", listing=listing)
    assert (report.files, report.rows, report.quarantined) == (2, 2, 0)
    assert [each.name for each in report.unavailable] == ["sub/b.jsonl"]
    assert report.refused == ()
    assert landed(lake) == [1, 4]
    for left in (path, path.with_name("other.jsonl")):
        if left.is_dir():
            left.rmdir()
        elif left.exists() or left.is_symlink():
            left.unlink()
    put(landing, "sub/b.jsonl", 2, 3)
    assert files.ingest(lake, source, CONTRACT, run="r2").rows == 2
    assert landed(lake) == [1, 2, 3, 4]


def test_a_file_that_the_system_does_not_read_is_named_and_the_others_land(
    lake: Lake, landing: Path, source: Source
) -> None:
    put(landing, "a.jsonl", 1)
    listing = list_landing(open_folder(source, lake.settings), source)
    # Of this one every read is an input/output error, as of a failing disk.
    listing.files.append(LandingFile("b.jsonl", 10, 1, "/proc/self/mem"))
    report = files.ingest(lake, source, CONTRACT, run="r1", listing=listing)
    assert [str(each) for each in report.refused] == ["b.jsonl: cannot be read: Input/output error"]
    assert (report.rows, landed(lake)) == (1, [1])


def test_empty_files_of_every_kind_land_as_no_rows(
    lake: Lake, landing: Path, source: Source
) -> None:
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "d.jsonl.zst"):
        put(landing, name)
    (landing / "e.jsonl.gz").write_bytes(gzip.compress(b""))
    put(landing, "f.jsonl", 1)
    report = files.ingest(lake, replace(source, format="auto"), CONTRACT, run="r1")
    assert (report.rows, report.quarantined, report.refused) == (1, 0, ())
    assert landed(lake) == [1]


def test_a_stream_goes_on_while_files_are_delivered_under_temporary_names(
    lake: Lake, landing: Path, source: Source
) -> None:
    """Each name, the temporary ones too, may be listed and be gone a moment later."""
    stop, most = Event(), 60

    def deliver() -> None:
        for number in range(most):
            put(landing, f"batch-{number}.jsonl.writing", number).rename(
                landing / f"batch-{number}.jsonl"
            )
            put(landing, f"flash-{number}.jsonl", -1).unlink()

    intake = FolderIngester(lake, replace(source, settle=0.0001), CONTRACT)
    courier = threading.Thread(target=deliver)
    courier.start()
    rows, until = set[int](), time.monotonic() + 60
    for _ in poll_sources(lake, [intake], every=0.01, stop=stop):
        if not courier.is_alive() or time.monotonic() > until:
            rows = set(landed(lake))
            if rows - {-1} == set(range(most)) or time.monotonic() > until:
                stop.set()
    courier.join()
    assert rows - {-1} == set(range(most))
    found = landed(lake)
    assert len(found) == len(set(found))


def test_more_files_than_a_batch_holds_of_which_half_are_gone(
    lake: Lake, landing: Path, source: Source
) -> None:
    for number in range(BATCH_FILES + 20):
        put(landing, f"{number:04}.jsonl", number)
    listing = list_landing(open_folder(source, lake.settings), source)
    for number in range(0, BATCH_FILES + 20, 2):
        (landing / f"{number:04}.jsonl").unlink()
    report = files.ingest(lake, source, CONTRACT, run="r1", listing=listing)
    assert landed(lake) == list(range(1, BATCH_FILES + 20, 2))
    assert len(report.unavailable) == (BATCH_FILES + 20) // 2

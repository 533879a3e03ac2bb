from __future__ import annotations

import lzma
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.ingest.inspection import inspect_file
from thermocline.ingest.landing import LocalFolder
from thermocline.ingest.source import Source, TextOptions
from thermocline.ingest.stage import (
    MAX_EXCERPT_BYTES,
    RECORD_END,
    StagedFile,
    join_quoted_lines,
    split_lines,
    stage_file,
)

CSV = TextOptions(multiline=True)


def pieces(content: bytes, size: int) -> list[bytes]:
    return [content[i : i + size] for i in range(0, len(content), size)]


@given(st.lists(st.binary().map(lambda b: b.replace(b"\n", b" "))), st.integers(1, 50))
def test_lines_come_back_however_the_text_is_cut(written: list[bytes], size: int) -> None:
    content = b"".join(line + b"\n" for line in written)
    found = list(split_lines(iter(pieces(content, size)), 1000))
    assert found == [(line, len(line)) for line in written]


def test_a_last_line_needs_no_end() -> None:
    assert list(split_lines(iter([b"a\nb"]), 10)) == [(b"a", 1), (b"b", 1)]


@pytest.mark.parametrize("size", [7, 1000, 10_000_000])
def test_a_line_that_is_too_long_is_cut(size: int) -> None:
    content = b"ab\n" + b"x" * 9000 + b"\ncd\n" + b"y" * 8192
    found = list(split_lines(iter(pieces(content, size)), 8192))
    assert found == [
        (b"ab", 2), (b"x" * MAX_EXCERPT_BYTES, 9000), (b"cd", 2), (b"y" * 8192, 8192),
    ]  # fmt: skip


def records(text: str, options: TextOptions = CSV, limit: int = 1000) -> list[str]:
    found = join_quoted_lines(split_lines(iter([text.encode()]), limit), options, limit)
    return [line.decode() for line, _ in found]


def test_csv_records_go_on_while_a_quote_is_open() -> None:
    assert records('a,"b\n\nc",d\n"e ""f""\ng",h\ni\n') == ['a,"b\n\nc",d', '"e ""f""\ng",h', "i"]


def test_a_quote_that_never_closes_spoils_one_line() -> None:
    text = 'a,"b\nc,d\ne,f\n"g\nh",i\n'
    assert records(text, limit=8) == ['a,"b', "c,d", "e,f", '"g\nh",i']
    assert records('a\n"b\nc\n') == ["a", '"b', "c"]


def test_escaped_quotes_do_not_open() -> None:
    options = replace(CSV, escape="\\")
    assert records('"a \\" b\nc",d\n"e\\\\",f\n', options) == ['"a \\" b\nc",d', '"e\\\\",f']


def test_random_csv_is_split_where_it_was_joined() -> None:
    chance = random.Random(3)

    def cell() -> str:
        return '"' + "".join(chance.choices('ab"\n,', k=6)).replace('"', '""') + '"'

    for _ in range(200):
        rows = [f"{cell()},{cell()}" for _ in range(8)]
        assert records("\n".join(rows) + "\n") == rows


def stage(path: Path, content: bytes, **options: object) -> StagedFile:
    path.write_bytes(content)
    source = replace(Source("a", str(path.parent), "bronze.a"), **options)  # type: ignore[arg-type]
    folder = LocalFolder(path.parent)
    file = next(f for f in folder.entries([]) if f.name == path.name)
    return stage_file(folder, inspect_file(folder, file, source), source, path.parent / ".scratch")


def test_a_plain_file_is_read_where_it_lies(tmp_path: Path) -> None:
    found = stage(tmp_path / "a.jsonl", b"{}\n")
    assert (found.uri, found.too_long) == (str(tmp_path / "a.jsonl"), ())
    assert not (tmp_path / ".scratch").exists()


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.jsonl", "é€\n".encode("utf-16"), TextOptions()),
        ("a.jsonl", "é€\n".encode("cp1252"), TextOptions(encoding="cp1252")),
        ("a.jsonl.xz", lzma.compress("é€\n".encode()), TextOptions()),
    ],
)
def test_other_texts_become_utf8(
    tmp_path: Path, name: str, content: bytes, options: TextOptions
) -> None:
    found = stage(tmp_path / name, content, options=options)
    assert Path(found.uri).read_bytes().removeprefix(b"\xef\xbb\xbf") == "é€\n".encode()


def test_what_cannot_be_decoded_stays_visible(tmp_path: Path) -> None:
    found = stage(tmp_path / "a.jsonl", b"ok\n\x81\n", options=TextOptions(encoding="cp1252"))
    assert Path(found.uri).read_bytes() == b"ok\n\x81\n"  # \x81 alone is not UTF-8


def test_positions_of_cut_records_count_from_the_first_record(tmp_path: Path) -> None:
    content = b"h\na\n" + b"x" * 20_000 + b"\nb\n"
    assert stage(tmp_path / "a.csv", content, max_line_bytes=10_000).too_long == (2,)
    assert stage(tmp_path / "a.jsonl", content, max_line_bytes=10_000).too_long == (3,)


def test_records_of_several_lines_get_an_end_of_their_own(tmp_path: Path) -> None:
    found = stage(tmp_path / "a.csv", b'h\n"a\nb"\n', options=CSV)
    assert found.separator == RECORD_END
    assert Path(found.uri).read_text() == f'h{RECORD_END}"a\nb"{RECORD_END}'


def test_a_name_that_hadoop_cannot_take_gets_another(tmp_path: Path) -> None:
    found = stage(tmp_path / "12:30.jsonl", b"{}\n")
    assert ":" not in found.uri
    assert Path(found.uri).read_bytes() == b"{}\n"

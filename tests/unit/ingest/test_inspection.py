from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thermocline.ingest import inspection as module
from thermocline.ingest.inspection import InspectedFile, inspect_file
from thermocline.ingest.landing import LocalFolder
from thermocline.ingest.source import Source, TextOptions


def look(path: Path, content: bytes | None = None, **options: object) -> InspectedFile:
    if content is not None:
        path.write_bytes(content)
    folder = LocalFolder(path.parent)
    file = next(f for f in folder.entries([]) if f.name == path.name)
    source = Source("a", str(path.parent), "bronze.a")
    return inspect_file(folder, file, replace(source, **options))  # type: ignore[arg-type]


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return packed


PACKED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


def test_identity_is_the_content(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    found = look(tmp_path / "a.jsonl", content)
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert found.expanded == 3_000_000


@pytest.mark.parametrize("suffix", PACKED)
def test_packed_content_is_measured_and_the_file_hashed(tmp_path: Path, suffix: str) -> None:
    text = b"x" * 70 + b"\n" + b"y" * 10
    content = PACKED[suffix](text)
    found = look(tmp_path / f"a.jsonl.{suffix}", content)
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert (found.compression, found.format, found.flaw) == (suffix, "jsonl", None)
    assert (found.expanded, found.longest_line) == (81, 70)


@pytest.mark.parametrize("suffix", PACKED)
def test_packed_content_that_ends_early_is_noticed(tmp_path: Path, suffix: str) -> None:
    content = PACKED[suffix](os.urandom(200_000))[:-500]
    found = look(tmp_path / f"a.jsonl.{suffix}", content)
    assert (found.flaw or "").startswith("truncated or damaged: ")
    assert found.sha256 == hashlib.sha256(content).hexdigest()


def test_members_of_a_gzip_file_are_read_together(tmp_path: Path) -> None:
    content = gzip.compress(b"a\n") + gzip.compress(b"bb\n")
    found = look(tmp_path / "a.jsonl.gz", content, max_line_bytes=10)
    assert (found.flaw, found.expanded, found.longest_line) == (None, 5, 2)


def test_a_bomb_is_not_unpacked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_EXPANSION_LIMIT", 10_000_000)
    found = look(tmp_path / "a.jsonl.gz", gzip.compress(bytes(60_000_000)))
    assert found.flaw == "it unpacks to more than 200 times its size"


def test_zip_is_refused(tmp_path: Path) -> None:
    assert "zip archives are not read" in (look(tmp_path / "a.csv", b"PK\x03\x04x").flaw or "")


@pytest.mark.parametrize(
    ("length", "limit"), [(999, 1000), (1000, 1000), (3_000_000, 2_000_000), (1 << 20, 1 << 20)]
)
def test_the_longest_line(tmp_path: Path, length: int, limit: int) -> None:
    content = b"ab\n" * 1000 + b"x" * length + b"\ncd\n" * 1000
    assert look(tmp_path / "a.jsonl", content, max_line_bytes=limit).longest_line == length


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("a.jsonl", "jsonl"), ("a.NDJSON", "jsonl"), ("a.json.gz", "jsonl"), ("a.csv", "csv"),
        ("a.tsv.bz2", "csv"), ("a.parquet", "parquet"), ("a.dat", ""),
    ],
)  # fmt: skip
def test_the_format_by_name(tmp_path: Path, name: str, format_: str) -> None:
    found = look(tmp_path / name, b"")
    assert found.format == format_
    assert (found.flaw is None) == bool(format_)


def test_encodings_by_their_marks(tmp_path: Path) -> None:
    latin = TextOptions(encoding="latin-1")
    assert look(tmp_path / "a.jsonl", "{}".encode("utf-16")).encoding == "utf-16"
    assert look(tmp_path / "b.jsonl", b"\xef\xbb\xbf{}", options=latin).encoding == "utf-8"
    assert look(tmp_path / "c.jsonl", b"{}", options=latin).encoding == "latin-1"


HEADERS: list[tuple[bytes, TextOptions, tuple[str, ...]]] = [
    (b"a,b\n1,2\n", TextOptions(), ("a", "b")),
    (b'\xef\xbb\xbf a ;"b;c"\r\n', TextOptions(delimiter=";"), ("a", "b;c")),
    ("é,b".encode("latin-1"), TextOptions(encoding="latin-1"), ("é", "b")),
    ("a,日\n".encode("utf-16"), TextOptions(), ("a", "日")),
    (b'"a\nb",c\n', TextOptions(multiline=True), ("a\nb", "c")),
    (b"1,2\n", TextOptions(header=False), ()),
    (b"", TextOptions(), ()),
]


@pytest.mark.parametrize(("content", "options", "fields"), HEADERS)
def test_headers(
    tmp_path: Path, content: bytes, options: TextOptions, fields: tuple[str, ...]
) -> None:
    found = look(tmp_path / "a.csv", content, options=options)
    assert (found.fields, found.flaw) == (fields, None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,a\n", "names a column twice or not at all: ['a']"),
        (b"a,,b\n", "twice or not at all"),
        (b"x" * 70_000 + b"\n", "longer than 64 KiB"),
    ],
)
def test_headers_that_cannot_be(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in (look(tmp_path / "a.csv", content).flaw or "")


def test_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    found = look(tmp_path / "a.parquet")
    assert found.schema is not None
    assert (found.schema.names, found.records, found.flaw) == (["a"], 2, None)
    assert found.sha256 == hashlib.sha256((tmp_path / "a.parquet").read_bytes()).hexdigest()


@pytest.mark.parametrize("cut", [lambda c: c[:-10], lambda c: c[10:], lambda c: b"PAR1"])
def test_parquet_that_is_not_whole(tmp_path: Path, cut: Callable[[bytes], bytes]) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    found = look(tmp_path / "a.parquet", cut((tmp_path / "a.parquet").read_bytes()))
    assert "damaged: " in (found.flaw or "")

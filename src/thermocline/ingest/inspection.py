"""Inspect every byte of a file once: its hash, format, encoding and damage."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from thermocline.errors import first_line
from thermocline.ingest.landing import LandingFile, LandingFolder
from thermocline.ingest.source import Source, TextOptions

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 1 << 20
HEAD_BYTES = 1 << 16
MAX_EXPANSION = 200
"""A file that expands by more than this factor, and beyond 1 GiB, counts as a zip bomb."""
MIN_EXPANSION_LIMIT = 1 << 30

_MAGIC = {
    b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst",
    b"PK\x03\x04": "zip",
}  # fmt: skip
_SUFFIXES = {".gz": "gz", ".bz2": "bz2", ".xz": "xz", ".zst": "zst"}
_FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


@dataclass(frozen=True)
class InspectedFile:
    """The result of inspecting a file.

    `flaw` says why the file cannot be read at all; other fields are then meaningless. `fields` are
    the columns of a CSV header, `schema` is a Parquet file's schema, and `records` its footer's row
    count. `longest_line` is exact only above the source's limit.
    """

    file: LandingFile
    sha256: str
    format: str = ""
    compression: str = ""
    encoding: str = "utf-8"
    expanded: int = 0
    longest_line: int = 0
    fields: tuple[str, ...] = ()
    schema: pa.Schema | None = None
    flaw: str | None = None
    records: int | None = None


def inspect_file(folder: LandingFolder, file: LandingFile, source: Source) -> InspectedFile:
    """Hash a file and detect its format, in constant memory."""
    format_ = source.format if source.format != "auto" else _detect_format(file.name)
    if format_ == "parquet":
        return _inspect_parquet(folder, file)
    with folder.open(file) as raw:
        hashing = _HashingReader(raw)
        head = hashing.peek(6)
        compression = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
        meter = _TextMeter(source.max_line_bytes)
        flaw = None if format_ else "a format that its name does not tell; set format in the source"
        if compression == "zip":
            flaw = "zip archives are not read; unpack it, or use gzip"
        if flaw is None:
            flaw = _measure(decompress(hashing, compression), meter, file.size)
        hashing.drain()
    encoding = _detect_encoding(meter.head, source.options.encoding)
    found = InspectedFile(
        file, hashing.hexdigest(), format_, compression, encoding, meter.size, meter.longest,
        flaw=flaw,
    )  # fmt: skip
    if format_ == "csv" and source.options.header and flaw is None and meter.size:
        return _read_header(found, meter.head, source.options)
    return found


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int = ..., /) -> bytes: ...


def decompress(raw: Any, compression: str) -> Readable:
    """Return the decompressed content of a file as a stream."""
    if compression == "gz":
        return gzip.GzipFile(fileobj=raw)
    if compression == "bz2":
        return bz2.BZ2File(raw)
    if compression == "xz":
        return lzma.LZMAFile(raw)
    if compression == "zst":
        import pyarrow as pa

        stream: Readable = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
        return stream
    readable: Readable = raw
    return readable


def read_chunks(stream: Readable) -> Iterator[bytes]:
    """Yield a stream in chunks."""
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def has_matching_suffix(name: str, compression: str) -> bool:
    """Whether Spark, which goes by the suffix, detects the same compression."""
    return _SUFFIXES.get(PurePosixPath(name).suffix.lower(), "") == compression


def _detect_format(name: str) -> str:
    path = PurePosixPath(name.lower())
    while path.suffix in _SUFFIXES:
        path = path.with_suffix("")
    return _FORMATS.get(path.suffix, "")


def _measure(stream: Readable, meter: _TextMeter, size: int) -> str | None:
    limit = max(MIN_EXPANSION_LIMIT, MAX_EXPANSION * size)
    try:
        for chunk in read_chunks(stream):
            meter.feed(chunk)
            if meter.size > limit:
                return f"it unpacks to more than {MAX_EXPANSION} times its size"
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the disk, not of the content
        message = str(error).strip().splitlines()
        return f"truncated or damaged: {message[0] if message else type(error).__name__}"
    meter.close()
    return None


def _detect_encoding(head: bytes, configured: str) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8" if head.startswith(codecs.BOM_UTF8) else configured


def _read_header(found: InspectedFile, head: bytes, options: TextOptions) -> InspectedFile:
    from dataclasses import replace

    text = head.decode(found.encoding, errors="replace").removeprefix("\ufeff")
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=options.delimiter,
        quotechar=options.quote,
        doublequote=options.escape == options.quote,
        escapechar=None if options.escape == options.quote else options.escape,
    )
    try:
        fields = tuple(name.strip() for name in next(reader, []))
    except csv.Error as error:
        return replace(found, flaw=f"its header cannot be read: {error}")
    if found.expanded > len(head) and "\n" not in text:
        return replace(found, flaw="its header is longer than 64 KiB")
    repeated = sorted({name for name in fields if fields.count(name) > 1})
    if repeated or "" in fields:
        return replace(found, flaw=f"its header names a column twice or not at all: {repeated}")
    return replace(found, fields=fields)


def _inspect_parquet(folder: LandingFolder, file: LandingFile) -> InspectedFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with folder.open(file) as raw:
        hashing = _HashingReader(raw)
        hashing.drain()
        sha256 = hashing.hexdigest()
        if file.size == 0:
            return InspectedFile(file, sha256, "parquet")
        raw.seek(0)
        if raw.read(4) != b"PAR1":
            return InspectedFile(
                file, sha256, "parquet", flaw="damaged: it does not begin with PAR1"
            )
        raw.seek(0)
        try:
            opened = pq.ParquetFile(pa.PythonFile(raw, mode="r"))
            schema, records = opened.schema_arrow, opened.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            message = first_line(error)
            return InspectedFile(file, sha256, "parquet", flaw=f"truncated or damaged: {message}")
    return InspectedFile(
        file, sha256, "parquet", expanded=file.size, schema=schema, records=records
    )


class _HashingReader(io.RawIOBase):
    """Hashes a stream while it is read."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._sha256 = hashlib.sha256()
        self._ahead = b""

    def peek(self, count: int) -> bytes:
        self._ahead = self.read(count)
        return self._ahead

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._ahead:
            chunk = self._ahead if size < 0 else self._ahead[:size]
            self._ahead = self._ahead[len(chunk) :]
            return chunk
        found = self._raw.read(CHUNK_BYTES if size is None or size < 0 else size)
        self._sha256.update(found)
        return found

    def drain(self) -> None:
        while self.read(CHUNK_BYTES):
            pass

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


class _TextMeter:
    """Measures text: its size, its longest line, and its first bytes."""

    def __init__(self, limit: int) -> None:
        self.size = 0
        self.longest = 0
        self.head = b""
        self._open_line_bytes = 0
        # With a small limit, a line inside one chunk may already be too long.
        self._splits_chunks = limit < CHUNK_BYTES

    def feed(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if len(self.head) < HEAD_BYTES:
            self.head += chunk[: HEAD_BYTES - len(self.head)]
        first = chunk.find(b"\n")
        if first < 0:
            self._open_line_bytes += len(chunk)
            return
        self.longest = max(self.longest, self._open_line_bytes + first)
        if self._splits_chunks:
            self.longest = max(self.longest, *map(len, chunk.split(b"\n")[1:]))
        self._open_line_bytes = len(chunk) - chunk.rfind(b"\n") - 1

    def close(self) -> None:
        self.longest = max(self.longest, self._open_line_bytes)

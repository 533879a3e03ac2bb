"""Make readable for Spark what it cannot read as it is.

Other encodings, xz and zstd, records too long for memory and CSV records over several lines are
rewritten: into UTF-8 text with records of a bounded length. A file whose name Hadoop cannot spell
gets another one. What is staged lives as long as the run.
"""

from __future__ import annotations

import codecs
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from thermocline.ingest.inspection import (
    InspectedFile,
    decompress,
    has_matching_suffix,
    read_chunks,
)
from thermocline.ingest.landing import LandingFolder, escape_glob
from thermocline.ingest.source import Source, TextOptions

LINE_END = "\n"
RECORD_END = "\x1e\n"
"""Ends a record of several lines: ASCII's record separator, which no text file has by accident."""

SAFE_NAME = re.compile(r"[A-Za-z0-9/ ._=+,@~-]+", re.ASCII)
"""Names that mean the same to Hadoop and to us. A colon, for one, it cannot take."""

KEPT_BYTES = 4096
"""How much of a record that is too long is kept for a person to recognise it."""


@dataclass(frozen=True)
class StagedFile:
    """A file as Spark will read it; `too_long` are the positions of records that were cut."""

    examined: InspectedFile
    uri: str
    separator: str = LINE_END
    too_long: tuple[int, ...] = ()


def must_rewrite(examined: InspectedFile, source: Source) -> bool:
    """Whether Spark cannot read the content as it is."""
    if examined.format == "parquet":
        return False
    return (
        examined.encoding != "utf-8"
        or examined.compression in {"xz", "zst"}
        or not has_matching_suffix(examined.file.name, examined.compression)
        or examined.longest_line > source.max_line_bytes
        or (examined.format == "csv" and source.options.multiline)
    )


def stage_file(
    folder: LandingFolder, examined: InspectedFile, source: Source, scratch: Path
) -> StagedFile:
    """The file as Spark can read it: itself, or what stands for it in the scratch folder."""
    if must_rewrite(examined, source):
        scratch.mkdir(parents=True, exist_ok=True)
        return _rewrite(folder, examined, source, scratch / f"{examined.sha256}.txt")
    if not SAFE_NAME.fullmatch(examined.file.name):
        scratch.mkdir(parents=True, exist_ok=True)
        return _rename(folder, examined, scratch)
    return StagedFile(examined, folder.uri(examined.file))


def _rewrite(
    folder: LandingFolder, examined: InspectedFile, source: Source, path: Path
) -> StagedFile:
    multiline = examined.format == "csv" and source.options.multiline
    offset = 0 if examined.format == "csv" and source.options.header else 1
    separator = RECORD_END if multiline else LINE_END
    too_long: list[int] = []
    with folder.open(examined.file) as raw, path.open("wb") as out:
        found = split_lines(read_text(raw, examined), source.max_line_bytes)
        if multiline:
            found = join_quoted_lines(found, source.options, source.max_line_bytes)
        for number, (line, length) in enumerate(found, start=offset):
            if length > len(line):
                too_long.append(number)
            out.write(line)
            out.write(separator.encode())
    return StagedFile(examined, escape_glob(str(path)), separator, tuple(too_long))


def _rename(folder: LandingFolder, examined: InspectedFile, scratch: Path) -> StagedFile:
    suffix = f".{examined.compression}" if examined.compression else ""
    path = scratch / f"{examined.sha256}{suffix}"
    if Path(examined.file.location).is_absolute():
        path.unlink(missing_ok=True)
        path.symlink_to(examined.file.location)
    else:
        with folder.open(examined.file) as raw, path.open("wb") as out:
            shutil.copyfileobj(raw, out)
    return StagedFile(examined, escape_glob(str(path)))


def read_text(raw: BinaryIO, examined: InspectedFile) -> Iterator[bytes]:
    """A file's text as UTF-8, in pieces. What cannot be decoded stays as bytes that are not."""
    stream = decompress(raw, examined.compression)
    if examined.encoding == "utf-8":
        yield from read_chunks(stream)
        return
    decoder = codecs.getincrementaldecoder(examined.encoding)(errors=_ERROR_HANDLER)
    for chunk in read_chunks(stream):
        yield decoder.decode(chunk).encode("utf-8", "surrogateescape")
    yield decoder.decode(b"", final=True).encode("utf-8", "surrogateescape")


def _keep_undecodable(error: UnicodeError) -> tuple[str, int]:
    """Decode what is no character as bytes that are never UTF-8, so that its line is found."""
    assert isinstance(error, UnicodeDecodeError)
    shown = [byte for byte in error.object[error.start : error.end] if byte >= 0x80]
    if not shown or max(shown) >= 0xC0:
        shown.insert(0, 0xFF)  # bytes that could begin a character might become one here
    return "".join(chr(0xDC00 + byte) for byte in shown), error.end


_ERROR_HANDLER = "thermocline.broken"
codecs.register_error(_ERROR_HANDLER, _keep_undecodable)


def split_lines(pieces: Iterator[bytes], limit: int) -> Iterator[tuple[bytes, int]]:
    """The lines of a text with their true length; one that is longer than the limit comes cut."""
    held, length = b"", 0
    for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            part = piece[start:end]
            line, total = held + part, length + len(part)
            yield (line[:KEPT_BYTES], total) if total > limit else (line, total)
            held, length, start = b"", 0, end + 1
        rest = piece[start:]
        length += len(rest)
        held = (held + rest)[:KEPT_BYTES] if length > limit else held + rest
    if length:
        yield (held[:KEPT_BYTES], length) if length > limit else (held, length)


def join_quoted_lines(
    found: Iterator[tuple[bytes, int]], options: TextOptions, limit: int
) -> Iterator[tuple[bytes, int]]:
    """CSV records: lines joined while a quote is open.

    A quote that never closes would swallow the rest of the file. So when a record grows beyond
    the limit, its first line stands alone, to be found bad, and reading goes on behind it.
    """
    pending: list[tuple[bytes, int]] = []
    while True:
        record: list[bytes] = []
        is_open = False
        used = size = 0
        while True:
            item = pending[used] if used < len(pending) else next(found, None)
            if item is None:
                break
            if used == len(pending):
                pending.append(item)
            used += 1
            line, length = item
            record.append(line)
            size += len(line)
            if length > len(line):
                break
            is_open ^= _count_quotes(line, options) % 2 == 1
            if not is_open or size > limit:
                break
        if not record:
            return
        if is_open:
            used = 1
            yield pending[0]
        else:
            yield b"\n".join(record), sum(n + 1 for _, n in pending[:used]) - 1
        del pending[:used]


def _count_quotes(line: bytes, options: TextOptions) -> int:
    quote = options.quote.encode()
    if options.escape != options.quote:
        escape = options.escape.encode()
        line = line.replace(escape * 2, b"").replace(escape + quote, b"")
    return line.count(quote)

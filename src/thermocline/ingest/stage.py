"""Rewrite files that Spark cannot read directly.

Files in other encodings, compressed with xz or zstd, with records that are too long for memory, or
with CSV records over several lines are rewritten as UTF-8 text with records of a bounded length.
Files with names that Hadoop cannot handle are renamed. Staged files exist only during the run.
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
"""Names that Hadoop interprets as they are. It cannot handle a colon, for example."""

MAX_EXCERPT_BYTES = 4096
"""How much of a record that is too long is kept, so that a person can recognize it."""


@dataclass(frozen=True)
class StagedFile:
    """A file as Spark reads it; `too_long` lists the positions of records that were cut."""

    inspected: InspectedFile
    uri: str
    separator: str = LINE_END
    too_long: tuple[int, ...] = ()


def must_rewrite(inspected: InspectedFile, source: Source) -> bool:
    """Whether Spark cannot read the content as it is."""
    if inspected.format == "parquet":
        return False
    return (
        inspected.encoding != "utf-8"
        or inspected.compression in {"xz", "zst"}
        or not has_matching_suffix(inspected.file.name, inspected.compression)
        or inspected.longest_line > source.max_line_bytes
        or (inspected.format == "csv" and source.options.multiline)
    )


def stage_file(
    folder: LandingFolder, inspected: InspectedFile, source: Source, scratch: Path
) -> StagedFile:
    """Return a file that Spark can read: the original, or a copy in the scratch folder."""
    if must_rewrite(inspected, source):
        scratch.mkdir(parents=True, exist_ok=True)
        return _rewrite(folder, inspected, source, scratch / f"{inspected.sha256}.txt")
    if not SAFE_NAME.fullmatch(inspected.file.name):
        scratch.mkdir(parents=True, exist_ok=True)
        return _rename(folder, inspected, scratch)
    return StagedFile(inspected, folder.uri(inspected.file))


def _rewrite(
    folder: LandingFolder, inspected: InspectedFile, source: Source, path: Path
) -> StagedFile:
    multiline = inspected.format == "csv" and source.options.multiline
    offset = 0 if inspected.format == "csv" and source.options.header else 1
    separator = RECORD_END if multiline else LINE_END
    too_long: list[int] = []
    with folder.open(inspected.file) as raw, path.open("wb") as out:
        lines = split_lines(read_text(raw, inspected), source.max_line_bytes)
        if multiline:
            lines = join_quoted_lines(lines, source.options, source.max_line_bytes)
        for number, (line, length) in enumerate(lines, start=offset):
            if length > len(line):
                too_long.append(number)
            out.write(line)
            out.write(separator.encode())
    return StagedFile(inspected, escape_glob(str(path)), separator, tuple(too_long))


def _rename(folder: LandingFolder, inspected: InspectedFile, scratch: Path) -> StagedFile:
    suffix = f".{inspected.compression}" if inspected.compression else ""
    path = scratch / f"{inspected.sha256}{suffix}"
    if Path(inspected.file.location).is_absolute():
        path.unlink(missing_ok=True)
        path.symlink_to(inspected.file.location)
    else:
        with folder.open(inspected.file) as raw, path.open("wb") as out:
            shutil.copyfileobj(raw, out)
    return StagedFile(inspected, escape_glob(str(path)))


def read_text(raw: BinaryIO, inspected: InspectedFile) -> Iterator[bytes]:
    """Yield a file's text as UTF-8 in chunks. Undecodable bytes stay as invalid UTF-8."""
    stream = decompress(raw, inspected.compression)
    if inspected.encoding == "utf-8":
        yield from read_chunks(stream)
        return
    decoder = codecs.getincrementaldecoder(inspected.encoding)(errors=_ERROR_HANDLER)
    for chunk in read_chunks(stream):
        yield decoder.decode(chunk).encode("utf-8", "surrogateescape")
    yield decoder.decode(b"", final=True).encode("utf-8", "surrogateescape")


def _keep_undecodable(error: UnicodeError) -> tuple[str, int]:
    """Replace undecodable bytes by bytes that are never valid UTF-8, so their line is detected."""
    assert isinstance(error, UnicodeDecodeError)
    bytes_ = [byte for byte in error.object[error.start : error.end] if byte >= 0x80]
    if not bytes_ or max(bytes_) >= 0xC0:
        bytes_.insert(0, 0xFF)  # else bytes that start a character might become one here
    return "".join(chr(0xDC00 + byte) for byte in bytes_), error.end


_ERROR_HANDLER = "thermocline.broken"
codecs.register_error(_ERROR_HANDLER, _keep_undecodable)


def split_lines(chunks: Iterator[bytes], limit: int) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a text with their original length; lines over the limit are cut."""
    pending_text, length = b"", 0
    for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            part = chunk[start:end]
            line, total = pending_text + part, length + len(part)
            yield (line[:MAX_EXCERPT_BYTES], total) if total > limit else (line, total)
            pending_text, length, start = b"", 0, end + 1
        rest = chunk[start:]
        length += len(rest)
        pending_text = (
            (pending_text + rest)[:MAX_EXCERPT_BYTES] if length > limit else pending_text + rest
        )
    if length:
        yield (
            (pending_text[:MAX_EXCERPT_BYTES], length) if length > limit else (pending_text, length)
        )


def join_quoted_lines(
    lines: Iterator[tuple[bytes, int]], options: TextOptions, limit: int
) -> Iterator[tuple[bytes, int]]:
    """Yield CSV records: lines joined while a quote is open.

    A quote that is never closed would consume the rest of the file. So if a record exceeds the
    limit, its first line becomes a (bad) record of its own, and parsing continues after it.
    """
    pending: list[tuple[bytes, int]] = []
    while True:
        record: list[bytes] = []
        is_open = False
        used = size = 0
        while True:
            item = pending[used] if used < len(pending) else next(lines, None)
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

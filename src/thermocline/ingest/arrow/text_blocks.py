"""Split text files into blocks of whole lines with known positions in the file."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import cached_property

from thermocline.ingest.lines import NOT_TEXT

BLOCK_BYTES = 8 << 20
"""How much text is parsed at once."""


class TextBlock:
    """Consecutive lines of a file, without the last line end. `first` is the first line's position.

    Positions count as in `lines`: a header is at 0, and the first record is always at 1.
    """

    def __init__(self, text: bytes, first: int) -> None:
        self.text = text
        self.first = first
        self.count = text.count(b"\n") + 1

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines as a list."""
        return self.text.split(b"\n")

    def line(self, position: int) -> bytes:
        """Return the line at a position of the file."""
        return self.lines[position - self.first]

    def iter_filled(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank, with their positions."""
        for position, line in enumerate(self.lines, start=self.first):
            if line.strip(b" \t\r"):
                yield position, line

    def drop_first_line(self) -> TextBlock | None:
        """Return the block without its first line, or None if that was the only one."""
        _, newline, rest = self.text.partition(b"\n")
        return TextBlock(rest, self.first + 1) if newline else None


def split_blocks(chunks: Iterator[bytes], first: int) -> Iterator[TextBlock]:
    """Yield blocks of a text that arrives in arbitrary chunks, without its byte order mark."""
    pending: list[bytes] = []
    size = 0
    bom = codecs.BOM_UTF8
    for chunk in chunks:
        pending.append(chunk)
        size += len(chunk)
        if size < BLOCK_BYTES or b"\n" not in chunk:
            continue
        text = b"".join(pending).removeprefix(bom)
        bom = b""
        end = text.rfind(b"\n")
        yield (block := TextBlock(text[:end], first))
        first += block.count
        pending, size = [text[end + 1 :]], len(text) - end - 1
    rest = b"".join(pending).removeprefix(bom)
    if rest:
        yield TextBlock(rest.removesuffix(b"\n"), first)


def decode_line(line: bytes) -> tuple[str, str | None]:
    """Return a line's text and its flaw, as `lines.read_numbered_lines` does."""
    try:
        text, flaw = line.decode(), None
    except UnicodeDecodeError:
        text, flaw = line.decode("latin-1"), NOT_TEXT
    return text.rstrip("\r"), flaw

"""Text files as blocks of whole lines, of which each knows its place in the file."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import cached_property

from thermocline.ingest.lines import NOT_TEXT

BLOCK_BYTES = 8 << 20
"""How much text is parsed at once."""


class TextBlock:
    """Some lines of a file, without the end of the last one. `first` is the position of the first.

    A position counts as in `lines`: a header is at 0, and the first record at 1 either way.
    """

    def __init__(self, text: bytes, first: int) -> None:
        self.text = text
        self.first = first
        self.count = text.count(b"\n") + 1

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines, one by one."""
        return self.text.split(b"\n")

    def line(self, position: int) -> bytes:
        """The line at a position of the file."""
        return self.lines[position - self.first]

    def filled(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not blank, with their positions."""
        for position, line in enumerate(self.lines, start=self.first):
            if line.strip(b" \t\r"):
                yield position, line

    def without_first(self) -> TextBlock | None:
        """The block without its first line."""
        _, there, rest = self.text.partition(b"\n")
        return TextBlock(rest, self.first + 1) if there else None


def split_blocks(pieces: Iterator[bytes], first: int) -> Iterator[TextBlock]:
    """The lines of a text that comes in pieces cut anywhere, without its byte order mark."""
    held: list[bytes] = []
    size = 0
    mark = codecs.BOM_UTF8
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size < BLOCK_BYTES or b"\n" not in piece:
            continue
        text = b"".join(held).removeprefix(mark)
        mark = b""
        end = text.rfind(b"\n")
        yield (block := TextBlock(text[:end], first))
        first += block.count
        held, size = [text[end + 1 :]], len(text) - end - 1
    rest = b"".join(held).removeprefix(mark)
    if rest:
        yield TextBlock(rest.removesuffix(b"\n"), first)


def decode_line(line: bytes) -> tuple[str, str | None]:
    """A line as `lines.numbered_lines` gives it: its text, and what is wrong with it as a line."""
    try:
        text, flaw = line.decode(), None
    except UnicodeDecodeError:
        text, flaw = line.decode("latin-1"), NOT_TEXT
    return text.rstrip("\r"), flaw

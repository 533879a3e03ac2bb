"""JSON lines in blocks: the plain ones as Arrow columns, and where the others are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from thermocline.ingest.arrow.text_blocks import TextBlock
from thermocline.ingest.unambiguous_json import NeedsSpark, UnambiguousJsonReader

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.contract.definition import Contract

MAX_GROUP = 256
"""So many lines are looked at together where a block has some that are not plain."""


class JsonLinesReader:
    """How JSON lines of one contract are read. Raises Declined for one that never can be."""

    def __init__(self, contract: Contract) -> None:
        self._plain = UnambiguousJsonReader(contract)

    def read(self, block: TextBlock) -> tuple[pa.Table | None, list[int], list[int]]:
        """The plain records, their positions, and the positions of the others."""
        import pyarrow as pa

        try:
            table = self._plain.lines(block.text, block.count)
        except NeedsSpark:
            pass
        else:
            return table, list(range(block.first, block.first + block.count)), []
        candidates: list[tuple[int, bytes]] = []
        odd: list[int] = []
        for position, line in block.filled():
            whole = line.startswith(b"{") and line.rstrip(b" \t\r").endswith(b"}")
            if whole:
                candidates.append((position, line))
            else:
                odd.append(position)
        tables, positions = [], []
        for start in range(0, len(candidates), MAX_GROUP):
            for part, table in self._sifted(candidates[start : start + MAX_GROUP]):
                found = [position for position, _ in part]
                if table is None:
                    odd += found
                else:
                    tables.append(table)
                    positions += found
        table = pa.concat_tables(tables).combine_chunks() if tables else None
        return table, positions, odd

    def _sifted(
        self, lines: Sequence[tuple[int, bytes]]
    ) -> Iterator[tuple[Sequence[tuple[int, bytes]], pa.Table | None]]:
        """Lines with their rows, or one by one without, where they are not plain."""
        try:
            yield lines, self._plain.lines(b"\n".join(line for _, line in lines), len(lines))
        except NeedsSpark:
            if len(lines) == 1:
                yield lines, None
                return
            middle = len(lines) // 2
            yield from self._sifted(lines[:middle])
            yield from self._sifted(lines[middle:])

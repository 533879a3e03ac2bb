"""Read blocks of JSON lines: unambiguous ones as Arrow columns, others as positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from thermocline.ingest.arrow.text_blocks import TextBlock
from thermocline.ingest.unambiguous_json import NeedsSpark, UnambiguousJsonReader

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.contract.definition import Contract

MAX_GROUP = 256
"""How many lines are parsed together in a block that has ambiguous lines."""


class JsonLinesReader:
    """Reads JSON lines for one contract. Raises NeedsSpark for an unsupported contract."""

    def __init__(self, contract: Contract) -> None:
        self._reader = UnambiguousJsonReader(contract)

    def read(self, block: TextBlock) -> tuple[pa.Table | None, list[int], list[int]]:
        """Return the unambiguous records, their positions, and the positions of the others."""
        import pyarrow as pa

        try:
            table = self._reader.read_lines(block.text, block.count)
        except NeedsSpark:
            pass
        else:
            return table, list(range(block.first, block.first + block.count)), []
        candidates: list[tuple[int, bytes]] = []
        ambiguous: list[int] = []
        for position, line in block.iter_filled():
            is_object = line.startswith(b"{") and line.rstrip(b" \t\r").endswith(b"}")
            if is_object:
                candidates.append((position, line))
            else:
                ambiguous.append(position)
        tables, positions = [], []
        for start in range(0, len(candidates), MAX_GROUP):
            for part, table in self._bisect(candidates[start : start + MAX_GROUP]):
                found = [position for position, _ in part]
                if table is None:
                    ambiguous += found
                else:
                    tables.append(table)
                    positions += found
        table = pa.concat_tables(tables).combine_chunks() if tables else None
        return table, positions, ambiguous

    def _bisect(
        self, lines: Sequence[tuple[int, bytes]]
    ) -> Iterator[tuple[Sequence[tuple[int, bytes]], pa.Table | None]]:
        """Yield lines with their rows; bisect to single ambiguous lines, which get None."""
        try:
            yield lines, self._reader.read_lines(b"\n".join(line for _, line in lines), len(lines))
        except NeedsSpark:
            if len(lines) == 1:
                yield lines, None
                return
            middle = len(lines) // 2
            yield from self._bisect(lines[:middle])
            yield from self._bisect(lines[middle:])

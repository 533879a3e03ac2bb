"""The files of a batch, one after the other: what is plain and good, and what Spark must judge."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from thermocline.contract.definition import Contract
from thermocline.ingest.arrow import parquet
from thermocline.ingest.arrow.ambiguous import AmbiguousRecords
from thermocline.ingest.arrow.csv import CsvReader
from thermocline.ingest.arrow.jsonl import JsonLinesReader
from thermocline.ingest.arrow.text_blocks import TextBlock, split_blocks
from thermocline.ingest.fast_path import FastPathBackoff
from thermocline.ingest.inspection import InspectedFile
from thermocline.ingest.landing import FileUnavailable, LandingFolder
from thermocline.ingest.layout import Layout
from thermocline.ingest.row_violations import RowViolations
from thermocline.ingest.source import Source
from thermocline.ingest.stage import read_text
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.ingest.validation import FILE, POSITION
from thermocline.telemetry import log, one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.lake import Lake


class _BlockReader(Protocol):
    def read(self, block: TextBlock) -> tuple[pa.Table | None, list[int], list[int]]: ...


class ArrowReader:
    """One source's way around Spark. One thread uses it."""

    def __init__(self, lake: Lake, source: Source, folder: LandingFolder) -> None:
        self.lake = lake
        self.source = source
        self.folder = folder
        self._backoff = FastPathBackoff()

    def read(
        self, files: Sequence[InspectedFile], contract: Contract, *, columns_added: bool
    ) -> ArrowRead | None:
        """The records of files; None when the lane is not to be tried with them."""
        if self.source.lane == "spark" or not self._backoff.is_ready():
            return None
        return ArrowRead(self, files, contract, columns_added=columns_added)

    @contextmanager
    def trying(self, *, last: bool) -> Iterator[None]:
        """A part of a reading, which may be declined."""
        try:
            yield
        except NeedsSpark as reason:
            log("ingest.swift", "declined", level="DEBUG", reason=one_line(str(reason)))
            self._backoff.record_declined()
            raise
        if last:
            self._backoff.record_success()


class ArrowRead:
    """The records of a batch of files, as `swift.Reading` says."""

    def __init__(
        self,
        lane: ArrowReader,
        files: Sequence[InspectedFile],
        contract: Contract,
        *,
        columns_added: bool,
    ) -> None:
        self._lane = lane
        self._files = files
        self._contract = contract
        self._columns_added = columns_added
        self._odd = AmbiguousRecords()
        self._breaks = RowViolations(contract)

    def pieces(self) -> Iterator[pa.Table]:
        """See Reading. A piece holds rows of one file, in their order."""
        with self._lane.trying(last=False):
            source, readers = self._lane.source, dict[Layout, _BlockReader]()
            layouts = [Layout.from_file(file, source, self._contract) for file in self._files]
            files = list(zip(range(len(layouts)), layouts, self._files, strict=True))
            for _, layout, file in files:  # before anything is read
                if file.schema is None and file.expanded and layout not in readers:
                    readers[layout] = self._reader(layout)
                if file.longest_line > source.max_line_bytes:
                    raise NeedsSpark("a line that is too long")
            try:
                for number, layout, file in files:
                    if file.schema is not None:
                        yield from self._rows(number, file, file.schema)
                    elif file.expanded:
                        yield from self._lines(number, file, layout, readers[layout])
            except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                if not self._lane.folder.is_unchanged(file.file):
                    raise FileUnavailable(file.file) from error
                raise NeedsSpark(f"a file that is no longer as it was: {error}") from error

    def judged(self) -> pa.Table | None:
        """See Reading. Spark is asked for only when there is a verdict that is not certain here."""
        with self._lane.trying(last=True):
            if not self._odd:
                return None
            engine = self._lane.lake.spark
            return self._odd.judged(engine, self._contract, columns_added=self._columns_added)

    def _reader(self, layout: Layout) -> _BlockReader:
        if layout.format == "jsonl":
            return JsonLinesReader(self._contract)
        if self._lane.source.options.multiline:
            raise NeedsSpark("CSV records over several lines")
        return CsvReader(layout, self._contract)

    def _rows(self, number: int, file: InspectedFile, schema: pa.Schema) -> Iterator[pa.Table]:
        import numpy as np

        reader, position = parquet.ParquetReader(schema, self._contract), 1
        with self._lane.folder.open(file.file) as raw:
            for rows in parquet.read_batches(raw):
                table = reader.typed(rows)
                positions = np.arange(position, position + rows.num_rows)
                broken = self._breaks.rows(table)
                if len(broken):
                    self._odd.add_rows(number, rows.take(broken), positions[broken])
                    kept = np.setdiff1d(np.arange(rows.num_rows), broken, assume_unique=True)
                    table, positions = table.take(kept), positions[kept]
                yield _add_positions(table, number, positions)
                position += rows.num_rows

    def _lines(
        self, number: int, file: InspectedFile, layout: Layout, reader: _BlockReader
    ) -> Iterator[pa.Table]:
        import numpy as np

        with self._lane.folder.open(file.file) as raw:
            for block in _skip_header(
                split_blocks(read_text(raw, file), 0 if layout.header else 1)
            ):
                table, positions, odd = reader.read(block)
                if table is not None:
                    broken = self._breaks.rows(table)
                    places = np.asarray(positions, dtype=np.int64)
                    odd = odd + places[broken].tolist()
                    if len(broken):
                        kept = np.setdiff1d(np.arange(len(places)), broken, assume_unique=True)
                        table, places = table.take(kept), places[kept]
                    yield _add_positions(table, number, places)
                self._odd.add_lines(layout, number, block, odd)


def _skip_header(found: Iterator[TextBlock]) -> Iterator[TextBlock]:
    """The blocks without what comes before the first record."""
    for block in found:
        rest = block.without_first() if block.first == 0 else block
        if rest is not None:
            yield rest


def _add_positions(table: pa.Table, number: int, positions: object) -> pa.Table:
    import pyarrow as pa

    placed = table.append_column(FILE, pa.repeat(pa.scalar(number, pa.int32()), table.num_rows))
    return placed.append_column(POSITION, pa.array(positions, pa.int64()))

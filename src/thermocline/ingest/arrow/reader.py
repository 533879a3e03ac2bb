"""Read the files of a batch: unambiguous valid records directly, ambiguous ones for validation."""

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
    """Reads the files of one source without Spark. Not thread-safe."""

    def __init__(self, lake: Lake, source: Source, folder: LandingFolder) -> None:
        self.lake = lake
        self.source = source
        self.folder = folder
        self._backoff = FastPathBackoff()

    def read(
        self, files: Sequence[InspectedFile], contract: Contract, *, columns_added: bool
    ) -> ArrowRead | None:
        """Return a read of the files; None if the Arrow lane should not be tried."""
        if self.source.lane == "spark" or not self._backoff.is_ready():
            return None
        return ArrowRead(self, files, contract, columns_added=columns_added)

    @contextmanager
    def attempt(self, *, last: bool) -> Iterator[None]:
        """Log and count a NeedsSpark raised inside; with `last`, count the read as a success."""
        try:
            yield
        except NeedsSpark as reason:
            log("ingest.arrow", "declined", level="DEBUG", reason=one_line(str(reason)))
            self._backoff.record_declined()
            raise
        if last:
            self._backoff.record_success()


class ArrowRead:
    """The records of a batch of files. Implements `fast_path.FastRead`."""

    def __init__(
        self,
        arrow_reader: ArrowReader,
        files: Sequence[InspectedFile],
        contract: Contract,
        *,
        columns_added: bool,
    ) -> None:
        self._arrow_reader = arrow_reader
        self._files = files
        self._contract = contract
        self._columns_added = columns_added
        self._ambiguous = AmbiguousRecords()
        self._violations = RowViolations(contract)

    def read_unambiguous(self) -> Iterator[pa.Table]:
        """See FastRead. Each table holds rows of one file, in their order."""
        with self._arrow_reader.attempt(last=False):
            source, readers = self._arrow_reader.source, dict[Layout, _BlockReader]()
            layouts = [Layout.from_file(file, source, self._contract) for file in self._files]
            files = list(zip(range(len(layouts)), layouts, self._files, strict=True))
            for _, layout, file in files:  # before anything is read
                if file.schema is None and file.expanded and layout not in readers:
                    readers[layout] = self._make_block_reader(layout)
                if file.longest_line > source.max_line_bytes:
                    raise NeedsSpark("a line that is too long")
            try:
                for number, layout, file in files:
                    if file.schema is not None:
                        yield from self._read_parquet(number, file, file.schema)
                    elif file.expanded:
                        yield from self._read_text(number, file, layout, readers[layout])
            except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                if not self._arrow_reader.folder.is_unchanged(file.file):
                    raise FileUnavailable(file.file) from error
                raise NeedsSpark(f"a file that changed: {error}") from error

    def validate_ambiguous(self) -> pa.Table | None:
        """See FastRead. Starts Spark only if a local result is not certain."""
        with self._arrow_reader.attempt(last=True):
            if not self._ambiguous:
                return None
            engine = self._arrow_reader.lake.spark
            return self._ambiguous.validate(
                engine, self._contract, columns_added=self._columns_added
            )

    def _make_block_reader(self, layout: Layout) -> _BlockReader:
        if layout.format == "jsonl":
            return JsonLinesReader(self._contract)
        if self._arrow_reader.source.options.multiline:
            raise NeedsSpark("CSV records over several lines")
        return CsvReader(layout, self._contract)

    def _read_parquet(
        self, number: int, file: InspectedFile, schema: pa.Schema
    ) -> Iterator[pa.Table]:
        import numpy as np

        reader, position = parquet.ParquetReader(schema, self._contract), 1
        with self._arrow_reader.folder.open(file.file) as raw:
            for rows in parquet.read_batches(raw):
                table = reader.convert(rows)
                positions = np.arange(position, position + rows.num_rows)
                violating = self._violations.find(table)
                if len(violating):
                    self._ambiguous.add_rows(number, rows.take(violating), positions[violating])
                    kept = np.setdiff1d(np.arange(rows.num_rows), violating, assume_unique=True)
                    table, positions = table.take(kept), positions[kept]
                yield _add_positions(table, number, positions)
                position += rows.num_rows

    def _read_text(
        self, number: int, file: InspectedFile, layout: Layout, reader: _BlockReader
    ) -> Iterator[pa.Table]:
        import numpy as np

        with self._arrow_reader.folder.open(file.file) as raw:
            for block in _skip_header(
                split_blocks(read_text(raw, file), 0 if layout.header else 1)
            ):
                table, positions, ambiguous = reader.read(block)
                if table is not None:
                    violating = self._violations.find(table)
                    numbers = np.asarray(positions, dtype=np.int64)
                    ambiguous = ambiguous + numbers[violating].tolist()
                    if len(violating):
                        kept = np.setdiff1d(np.arange(len(numbers)), violating, assume_unique=True)
                        table, numbers = table.take(kept), numbers[kept]
                    yield _add_positions(table, number, numbers)
                self._ambiguous.add_lines(layout, number, block, ambiguous)


def _skip_header(found: Iterator[TextBlock]) -> Iterator[TextBlock]:
    """Yield the blocks without the header."""
    for block in found:
        rest = block.drop_first_line() if block.first == 0 else block
        if rest is not None:
            yield rest


def _add_positions(table: pa.Table, number: int, positions: object) -> pa.Table:
    import pyarrow as pa

    numbered = table.append_column(FILE, pa.repeat(pa.scalar(number, pa.int32()), table.num_rows))
    return numbered.append_column(POSITION, pa.array(positions, pa.int64()))

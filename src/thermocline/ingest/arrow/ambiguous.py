"""Records that are not plain, kept as they were written until they have been judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, DriftMode
from thermocline.errors import Permanent
from thermocline.ingest.arrow.text_blocks import TextBlock, decode_line
from thermocline.ingest.layout import Layout
from thermocline.ingest.lines import FLAW
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.ingest.validation import FILE, HAS_DRIFT, POSITION, RAW
from thermocline.telemetry import log, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from thermocline.engine.spark import SparkEngine

MAX_RECORDS, MAX_BYTES = 50_000, 64 << 20
"""How many odd records of a batch, and how large ones, are kept here; more are Spark's at once."""

_LINES = f"{FILE} int, {POSITION} long, {RAW} string, {FLAW} string"


class AmbiguousRecords:
    """The odd records of a batch, by how they are written."""

    def __init__(self) -> None:
        self._lines: dict[Layout, list[tuple[int, int, str, str | None]]] = {}
        self._rows: dict[pa.Schema, list[pa.Table]] = {}
        self._count = 0
        self._bytes = 0

    def add_lines(
        self, layout: Layout, number: int, block: TextBlock, positions: Sequence[int]
    ) -> None:
        """Keep lines of a file."""
        for position in positions:
            line = block.line(position)
            self._grow(1, len(line))
            held = self._lines.setdefault(layout, [])
            held.append((number, position, *decode_line(line)))

    def add_rows(self, number: int, rows: pa.Table, positions: Any) -> None:
        """Keep rows of a Parquet file."""
        import pyarrow as pa

        self._grow(rows.num_rows, rows.nbytes)
        places = {
            FILE: pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows),
            POSITION: pa.array(positions, pa.int64()),
        }
        for name, column in places.items():
            rows = rows.append_column(name, column)
        self._rows.setdefault(rows.schema, []).append(rows)

    def judged(self, engine: SparkEngine, contract: Contract, *, columns_added: bool) -> pa.Table:
        """All of them in the form of `judge`; Declined when they are not for this lane.

        Spark is only asked where this process cannot be certain of a verdict.
        """
        import pyarrow.compute as pc

        try:
            found = self._judged_here(contract)
        except NeedsSpark as reason:
            log("ingest.few", "declined", level="DEBUG", reason=one_line(str(reason)))
            found = self._judged_by_spark(engine.session, contract)
        if found.num_rows != self._count:
            raise Permanent(
                f"{found.num_rows:,} of {self._count:,} records of {contract.table} were judged.",
                "Nothing of the batch landed. This is a bug; please report it.",
            )
        drifted = pc.any(found.column(HAS_DRIFT)).as_py()
        if drifted and contract.drift is not DriftMode.RESCUE and not columns_added:
            raise NeedsSpark("fields that the contract does not name")
        return found

    def _judged_here(self, contract: Contract) -> pa.Table:
        import pyarrow as pa

        from thermocline.engine.arrow import normalize
        from thermocline.ingest.arrow.local_validation import LocalValidator
        from thermocline.ingest.arrow.parquet import ParquetReader

        few, found = LocalValidator(contract), []
        for layout, lines in self._lines.items():
            found.append(few.judged(lines, layout))
        for tables in self._rows.values():
            rows = pa.concat_tables(tables)
            own = rows.drop_columns([FILE, POSITION])
            found.append(few.judged_rows(rows, ParquetReader(own.schema, contract).typed(own)))
        return pa.concat_tables([normalize(each) for each in found])

    def _judged_by_spark(self, spark: SparkSession, contract: Contract) -> pa.Table:
        from thermocline.engine.arrow import normalize

        frames = [*self._judged_lines(spark, contract), *self._judged_rows(spark, contract)]
        return normalize(reduce(lambda one, other: one.unionByName(other), frames).toArrow())

    def __bool__(self) -> bool:
        return self._count > 0

    def _grow(self, count: int, size: int) -> None:
        self._count += count
        self._bytes += size
        if self._count > MAX_RECORDS or self._bytes > MAX_BYTES:
            raise NeedsSpark("too many records that are not plain")

    def _judged_lines(self, spark: SparkSession, contract: Contract) -> list[DataFrame]:
        from thermocline.ingest.record_reader import convert_and_validate, parse_records

        return [
            convert_and_validate(
                parse_records(spark.createDataFrame(lines, _LINES), layout, contract), contract
            )
            for layout, lines in self._lines.items()
        ]

    def _judged_rows(self, spark: SparkSession, contract: Contract) -> list[DataFrame]:
        import pyarrow as pa

        from thermocline.ingest.spark_parquet import validate_rows

        return [
            validate_rows(spark, pa.concat_tables(tables), contract)
            for tables in self._rows.values()
        ]

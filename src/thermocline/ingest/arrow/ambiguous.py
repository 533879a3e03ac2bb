"""Collect ambiguous records in their original form until they are validated."""

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
"""The most ambiguous records of a batch and their bytes; beyond that, Spark reads the batch."""

_LINES = f"{FILE} int, {POSITION} long, {RAW} string, {FLAW} string"


class AmbiguousRecords:
    """The ambiguous records of a batch, grouped by layout or schema."""

    def __init__(self) -> None:
        self._lines: dict[Layout, list[tuple[int, int, str, str | None]]] = {}
        self._rows: dict[pa.Schema, list[pa.Table]] = {}
        self._count = 0
        self._bytes = 0

    def add_lines(
        self, layout: Layout, number: int, block: TextBlock, positions: Sequence[int]
    ) -> None:
        """Add lines of a file."""
        for position in positions:
            line = block.line(position)
            self._check_size(1, len(line))
            kept_lines = self._lines.setdefault(layout, [])
            kept_lines.append((number, position, *decode_line(line)))

    def add_rows(self, number: int, rows: pa.Table, positions: Any) -> None:
        """Add rows of a Parquet file."""
        import pyarrow as pa

        self._check_size(rows.num_rows, rows.nbytes)
        provenance = {
            FILE: pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows),
            POSITION: pa.array(positions, pa.int64()),
        }
        for name, column in provenance.items():
            rows = rows.append_column(name, column)
        self._rows.setdefault(rows.schema, []).append(rows)

    def validate(self, engine: SparkEngine, contract: Contract, *, columns_added: bool) -> pa.Table:
        """Return all records in the form of `validation`; raise NeedsSpark on unknown fields.

        Spark validates them only if the local result is not certain.
        """
        import pyarrow.compute as pc

        try:
            found = self._validate_locally(contract)
        except NeedsSpark as reason:
            log("ingest.local", "declined", level="DEBUG", reason=one_line(str(reason)))
            found = self._validate_by_spark(engine.session, contract)
        if found.num_rows != self._count:
            raise Permanent(
                f"{found.num_rows:,} of {self._count:,} records of {contract.table} were "
                "validated.",
                "Nothing of the batch landed. This is a bug; please report it.",
            )
        drifted = pc.any(found.column(HAS_DRIFT)).as_py()
        if drifted and contract.drift is not DriftMode.RESCUE and not columns_added:
            raise NeedsSpark("fields that the contract does not name")
        return found

    def _validate_locally(self, contract: Contract) -> pa.Table:
        import pyarrow as pa

        from thermocline.engine.arrow import normalize
        from thermocline.ingest.arrow.local_validation import LocalValidator
        from thermocline.ingest.arrow.parquet import ParquetReader

        validator, found = LocalValidator(contract), []
        for layout, lines in self._lines.items():
            found.append(validator.validate_lines(lines, layout))
        for tables in self._rows.values():
            rows = pa.concat_tables(tables)
            own = rows.drop_columns([FILE, POSITION])
            found.append(
                validator.validate_rows(rows, ParquetReader(own.schema, contract).convert(own))
            )
        return pa.concat_tables([normalize(each) for each in found])

    def _validate_by_spark(self, spark: SparkSession, contract: Contract) -> pa.Table:
        from thermocline.engine.arrow import normalize

        frames = [*self._validate_lines(spark, contract), *self._validate_rows(spark, contract)]
        return normalize(reduce(lambda one, other: one.unionByName(other), frames).toArrow())

    def __bool__(self) -> bool:
        return self._count > 0

    def _check_size(self, count: int, size: int) -> None:
        self._count += count
        self._bytes += size
        if self._count > MAX_RECORDS or self._bytes > MAX_BYTES:
            raise NeedsSpark("too many ambiguous records")

    def _validate_lines(self, spark: SparkSession, contract: Contract) -> list[DataFrame]:
        from thermocline.ingest.record_reader import convert_and_validate, parse_records

        return [
            convert_and_validate(
                parse_records(spark.createDataFrame(lines, _LINES), layout, contract), contract
            )
            for layout, lines in self._lines.items()
        ]

    def _validate_rows(self, spark: SparkSession, contract: Contract) -> list[DataFrame]:
        import pyarrow as pa

        from thermocline.ingest.spark_parquet import validate_rows

        return [
            validate_rows(spark, pa.concat_tables(tables), contract)
            for tables in self._rows.values()
        ]

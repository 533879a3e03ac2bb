"""Convert validated records to table rows: good ones for bronze, bad ones for quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from thermocline.engine.spark_types import quote_identifier
from thermocline.ingest import batch_stats, quarantine
from thermocline.ingest.debezium import NOT_SENT
from thermocline.ingest.lines import NOT_TEXT, TOO_LONG
from thermocline.ingest.validation import BAD, FILE, MESSAGE, POSITION, RAW, REASONS, RESCUED
from thermocline.ingest.value_expressions import instant, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract.definition import Contract
    from thermocline.ingest.batch import Batch
    from thermocline.lake import Draft


def append(frame: DataFrame, target: str) -> None:
    """Append validated rows to a table."""
    # Validation has checked required columns; Spark only sees that they are nullable.
    frame.writeTo(target).option("check-nullability", "false").append()


def bronze_columns(batch: Batch, now: datetime) -> list[str]:
    """Return the target's columns as expressions over validated records."""
    expressions = {
        "_source": literal(batch.source.name),
        "_source_file": _select_by_file([origin.name for origin in batch.origins]),
        "_position": POSITION,
        "_ingested_at": instant(now),
        "_rescued": RESCUED,
    }
    if batch.source.has_messages:
        expressions |= MESSAGE
    return select_columns(batch.contract, expressions)


def select_columns(contract: Contract, expressions: Mapping[str, str]) -> list[str]:
    """Return the contract's table columns; some of them are computed by `expressions`."""
    names = [(column.name, quote_identifier(column.name)) for column in contract.table_columns]
    return [f"{expressions.get(name, quoted)} as {quoted}" for name, quoted in names]


def quarantine_rows(batch: Batch, draft: Draft, bad: frozenset[int], now: datetime) -> int:
    """Write the bad rows, and a row for each unreadable input; return how many were written."""
    batch.lake.ensure(quarantine.quarantine_contract(batch.source))
    frame = _unreadable_rows(batch)
    if bad:
        validated = batch.read(batch.contract, bad).where(BAD)
        rows = validated.selectExpr(*_quarantine_columns(batch))
        frame = rows.unionByName(frame, allowMissingColumns=True) if batch.unreadable else rows
    stamped = frame.selectExpr(
        "sha2(concat(file_sha256, ':', position), 256) as id",
        f"{literal(batch.source.name)} as source",
        f"{literal(batch.source.target)} as target",
        "file", "file_sha256", "position", "reasons", "raw", "layout",
        f"{literal(batch.run)} as run",
        f"{instant(now)} as quarantined_at",
        "cast(null as timestamp) as replayed_at",
        "cast(null as string) as replayed_run",
        *(MESSAGE if batch.source.has_messages else ()),
    )  # fmt: skip
    table = batch.source.quarantine
    snapshot = draft.commit(
        table, lambda target: append(stamped, target), bookmark=None, operation="quarantine"
    )
    return batch_stats.count_added_rows(batch.lake, table, snapshot)


def _quarantine_columns(batch: Batch) -> list[str]:
    # A record that was cut or could not be decoded cannot be parsed again from `raw`.
    cut = ", ".join(literal(flaw) for flaw in (TOO_LONG, NOT_TEXT, NOT_SENT))
    whole = f"{REASONS}[0] not in ({cut})"
    layouts = _select_by_file([origin.layout.to_json() for origin in batch.origins])
    return [
        f"{_select_by_file([origin.name for origin in batch.origins])} as file",
        f"{_select_by_file([origin.identity for origin in batch.origins])} as file_sha256",
        f"{POSITION} as position",
        f"{REASONS} as reasons",
        f"{RAW} as raw",
        f"case when {whole} then {layouts} end as layout",
        *(f"{it} as {name}" for name, it in MESSAGE.items() if batch.source.has_messages),
    ]


def _unreadable_rows(batch: Batch) -> DataFrame:
    rows = [(each.name, each.identity, 0, [each.flaw], None, None) for each in batch.unreadable]
    schema = (
        "file string, file_sha256 string, position long, reasons array<string>, "
        "raw string, layout string"
    )
    return batch.lake.spark.session.createDataFrame(rows, schema)


def _select_by_file(texts: Sequence[str]) -> str:
    """Return an expression for the text that belongs to a row's file."""
    listed = ", ".join(literal(text) for text in texts) or "''"
    return f"array({listed})[{FILE}]"

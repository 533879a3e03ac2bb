"""Judged records as rows of tables: the good ones of bronze, the bad ones of quarantine."""

from __future__ import annotations

from collections.abc import Sequence
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

    from thermocline.ingest.batch import Batch
    from thermocline.lake import Draft


def append(frame: DataFrame, target: str) -> None:
    """Add judged rows to a table."""
    # Required columns are checked row by row before; Spark only sees that they are nullable.
    frame.writeTo(target).option("check-nullability", "false").append()


def bronze_columns(batch: Batch, now: datetime) -> list[str]:
    """The target's columns as expressions over judged records."""
    filled = {
        "_source": literal(batch.source.name),
        "_source_file": _select_by_file([origin.name for origin in batch.origins]),
        "_position": POSITION,
        "_ingested_at": instant(now),
        "_rescued": RESCUED,
    }
    if batch.source.has_messages:
        filled |= MESSAGE
    return [
        f"{filled.get(column.name, quote_identifier(column.name))} as {quote_identifier(column.name)}"
        for column in batch.contract.table_columns
    ]


def quarantine_rows(batch: Batch, draft: Draft, bad: frozenset[int], now: datetime) -> int:
    """Write the bad rows, and what is damaged as rows of its own; says how many there are."""
    batch.lake.ensure(quarantine.quarantine_contract(batch.source))
    frame = _unreadable_rows(batch)
    if bad:
        judged = batch.read(batch.contract, bad).where(BAD)
        rows = judged.selectExpr(*_quarantine_columns(batch))
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
    # What was cut or could not be decoded cannot be read again from here.
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
    """The text that belongs to a row's file."""
    listed = ", ".join(literal(text) for text in texts) or "''"
    return f"array({listed})[{FILE}]"

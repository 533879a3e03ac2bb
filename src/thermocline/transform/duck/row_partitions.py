"""Find the partitions that rows fall into, by their partition values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier
from thermocline.transform.duck.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

_COUNTED_UNITS = {"year", "month", "hour"}


@dataclass(frozen=True)
class PartitionColumn:
    """One field of a partitioning: its source column and its transform."""

    name: str
    transform: str


def list_partition_columns(table: Table) -> list[PartitionColumn]:
    """List the fields of a table's current partitioning."""
    schema = table.schema()
    fields = [(schema.find_column_name(f.source_id), f) for f in table.spec().fields]
    return [PartitionColumn(name or "", str(field.transform)) for name, field in fields]


def find_row_partitions(session: Session, rows: str, table: Table) -> set[tuple[Any, ...]] | None:
    """Return the partitions that rows fall into; None if their columns do not determine them."""
    columns = list_partition_columns(table)
    there = session.describe(rows)
    if any(column.name not in there for column in columns):
        return None
    expressions = [_build_expression(column) for column in columns]
    if not expressions:
        return {()} if session.fetch(f"SELECT 1 FROM ({rows}) LIMIT 1") else set()
    found = session.fetch(f"SELECT DISTINCT {', '.join(expressions)} FROM ({rows})")
    return {_apply_transforms(values, columns, table) for values in found}


def _build_expression(column: PartitionColumn) -> str:
    """Build SQL for a field's value, or for its column if Python applies the transform."""
    name = quote_identifier(column.name)
    if column.transform == "day":
        return f"CAST({name} AS DATE)"
    if column.transform in _COUNTED_UNITS:
        moment = f"CAST({name} AS TIMESTAMP)"
        return f"date_diff('{column.transform}', TIMESTAMP '1970-01-01', {moment})"
    return name


def _apply_transforms(
    values: Sequence[Any], columns: Sequence[PartitionColumn], table: Table
) -> tuple[Any, ...]:
    found = []
    for value, column, field in zip(values, columns, table.spec().fields, strict=True):
        if column.transform.partition("[")[0] in {"bucket", "truncate"} and value is not None:
            kind = table.schema().find_type(field.source_id)
            value = field.transform.transform(kind)(value)
        found.append(None if column.transform == "void" else value)
    return tuple(found)

"""In which partitions of its table rows lie, by the values that name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier
from thermocline.transform.duck.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

_COUNTED = {"year", "month", "hour"}


@dataclass(frozen=True)
class Cut:
    """One field of a partitioning: the column that it is made of, and how."""

    column: str
    transform: str


def cuts_of(table: Table) -> list[Cut]:
    """How a table's files are partitioned today."""
    schema = table.schema()
    fields = [(schema.find_column_name(f.source_id), f) for f in table.spec().fields]
    return [Cut(name or "", str(field.transform)) for name, field in fields]


def placed(session: Session, rows: str, table: Table) -> set[tuple[Any, ...]] | None:
    """The partitions that rows lie in; None where that cannot be told from their columns."""
    cuts = cuts_of(table)
    there = session.columns(rows)
    if any(cut.column not in there for cut in cuts):
        return None
    asked = [_expression(cut) for cut in cuts]
    if not asked:
        return {()} if session.rows(f"SELECT 1 FROM ({rows}) LIMIT 1") else set()
    found = session.rows(f"SELECT DISTINCT {', '.join(asked)} FROM ({rows})")
    return {_transformed(values, cuts, table) for values in found}


def _expression(cut: Cut) -> str:
    """SQL for a field's value, or for the column's where it is made of that here."""
    column = quote_identifier(cut.column)
    if cut.transform == "day":
        return f"CAST({column} AS DATE)"
    if cut.transform in _COUNTED:
        moment = f"CAST({column} AS TIMESTAMP)"
        return f"date_diff('{cut.transform}', TIMESTAMP '1970-01-01', {moment})"
    return column


def _transformed(values: Sequence[Any], cuts: Sequence[Cut], table: Table) -> tuple[Any, ...]:
    found = []
    for value, cut, field in zip(values, cuts, table.spec().fields, strict=True):
        if cut.transform.partition("[")[0] in {"bucket", "truncate"} and value is not None:
            kind = table.schema().find_type(field.source_id)
            value = field.transform.transform(kind)(value)
        found.append(None if cut.transform == "void" else value)
    return tuple(found)

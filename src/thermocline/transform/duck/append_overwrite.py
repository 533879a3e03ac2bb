"""Strategies that never look at the rows already there: append, partitions, replace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier
from thermocline.lake.data_file_writer import Rows
from thermocline.transform.duck.conform import shaped
from thermocline.transform.duck.session import Session
from thermocline.transform.duck.write_errors import Ready
from thermocline.transform.write_rules import DELETED

if TYPE_CHECKING:
    from thermocline.contract import Contract
    from thermocline.contract.definition import PartitionField
    from thermocline.lake.draft import Draft
    from thermocline.lake.overwrite import Partitions


def append(
    session: Session, rows: str, contract: Contract, draft: Draft, *, bookmark: Any, full: bool
) -> int:
    """Add the rows; with `full` they take the place of everything."""
    given = ready(session, rows, contract)
    if full:
        return draft.replace(contract.table, given, bookmark=bookmark, operation="replace")
    return draft.append(contract.table, given, bookmark=bookmark, operation="append")


def partitions(
    session: Session,
    rows: str,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Any,
    full: bool,
    computed: Partitions | None,
) -> int:
    """Replace whole partitions by the rows that the model now gives for them.

    `computed` are the partitions that the model was asked for. One that got no row is emptied; a
    row outside them is an error. Without it, the partitions that occur in the rows are replaced.
    """
    if full:
        return append(session, rows, contract, draft, bookmark=bookmark, full=True)
    given = ready(session, rows, contract)
    return draft.replace_partitions(
        contract.table, given, computed, bookmark=bookmark, operation="partitions"
    )


def ready(session: Session, rows: str, contract: Contract) -> Rows:
    """A model's rows in the contract's shape, partition by partition."""
    every = f"SELECT * EXCLUDE ({DELETED}) FROM ({shaped(session, rows, contract)})"
    return Ready(session, laid_out(every, contract), contract, rows)


def laid_out(rows: str, contract: Contract) -> str:
    """Rows partition by partition, so that each is written to few files."""
    order = [said for field in contract.partition if (said := _cut(field))]
    return f"SELECT * FROM ({rows}) ORDER BY {', '.join(order)}" if order else rows


def _cut(field: PartitionField) -> str | None:
    """SQL that rows of one partition agree in; None for a bucket, of which there are few."""
    column = quote_identifier(field.column)
    if field.transform in {"year", "month", "day", "hour"}:
        return f"date_trunc('{field.transform}', {column})"
    if field.transform == "truncate":
        return column
    return column if field.transform == "identity" else None

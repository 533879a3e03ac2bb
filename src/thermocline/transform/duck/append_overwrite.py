"""Write strategies that ignore the table's existing rows: append, replace, partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier
from thermocline.lake.data_file_writer import Rows
from thermocline.transform.duck.conform import conform_rows
from thermocline.transform.duck.session import Session
from thermocline.transform.duck.write_errors import PreparedRows
from thermocline.transform.write_rules import DELETED

if TYPE_CHECKING:
    from thermocline.contract import Contract
    from thermocline.contract.definition import PartitionField
    from thermocline.lake.draft import Draft
    from thermocline.lake.overwrite import Partitions


def append(
    session: Session, rows: str, contract: Contract, draft: Draft, *, bookmark: Any, full: bool
) -> int:
    """Append the rows; with `full`, replace the whole table by them."""
    prepared = prepare_rows(session, rows, contract)
    if full:
        return draft.replace(contract.table, prepared, bookmark=bookmark, operation="replace")
    return draft.append(contract.table, prepared, bookmark=bookmark, operation="append")


def partitions(
    session: Session,
    rows: str,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Any,
    computed: Partitions | None,
) -> int:
    """Replace whole partitions by the model's new rows for them.

    `computed` are the partitions that the model computed. One without rows is emptied; a row
    outside of them is an error. Without it, the partitions that occur in the rows are replaced.
    """
    prepared = prepare_rows(session, rows, contract)
    return draft.replace_partitions(
        contract.table, prepared, computed, bookmark=bookmark, operation="partitions"
    )


def prepare_rows(session: Session, rows: str, contract: Contract) -> Rows:
    """Prepare a model's rows for a write: conformed to the contract, sorted by partition."""
    every = f"SELECT * EXCLUDE ({DELETED}) FROM ({conform_rows(session, rows, contract)})"
    return PreparedRows(session, sort_by_partition(every, contract), contract, rows)


def sort_by_partition(rows: str, contract: Contract) -> str:
    """Sort rows by partition, so that each partition is written to few files."""
    order = [
        expression for field in contract.partition if (expression := _partition_expression(field))
    ]
    return f"SELECT * FROM ({rows}) ORDER BY {', '.join(order)}" if order else rows


def _partition_expression(field: PartitionField) -> str | None:
    """Return SQL that is equal for rows of one partition; None for buckets, which are few."""
    column = quote_identifier(field.column)
    if field.transform in {"year", "month", "day", "hour"}:
        return f"date_trunc('{field.transform}', {column})"
    if field.transform == "truncate":
        return column
    return column if field.transform == "identity" else None

"""Rules that the write strategies of all engines share; they start no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.contract.definition import Column, Contract, WriteMode
from thermocline.errors import ContractError
from thermocline.transform import tombstones

if TYPE_CHECKING:
    from thermocline.lake.draft import Draft

ACTION = "_tc_action"
"""The column with the action of a row: insert, update or delete."""
DELETED = "_tc_deleted"
"""The column that marks deletes. It exists during a write, never in a table."""
STORED_AS = "_tc_was"
"""The column with how scd2 stores an event now: version, same or delete; null for a new one."""
_HISTORY_COLUMNS = {"_valid_from", "_valid_to", "_is_current"}
_INSTANTS = ("date", "timestamp", "timestamptz")


def require_key(contract: Contract) -> None:
    """Raise ContractError for a merge or scd2 contract that has no key."""
    if contract.write in {WriteMode.MERGE, WriteMode.SCD2} and not contract.key:
        raise ContractError(
            [f"{contract.table}: {contract.write} needs a key."],
            "Mark the key's columns with primaryKey: true in the contract.",
        )


def written_columns(contract: Contract) -> tuple[Column, ...]:
    """Return the table's columns whose values come from the model's rows."""
    history = _HISTORY_COLUMNS if contract.write is WriteMode.SCD2 else set()
    return tuple(c for c in contract.table_columns if c.name not in history)


def content_columns(contract: Contract) -> tuple[Column, ...]:
    """Return the author's columns: those of the contract without its system columns."""
    system = {column.name for column in contract.system_columns}
    return tuple(column for column in contract.columns if column.name not in system)


def payload_columns(contract: Contract) -> list[Column]:
    """Return the content columns that are neither key nor order: the payload of a version."""
    return [
        column
        for column in content_columns(contract)
        if column.name not in (*contract.key, *contract.order_by)
    ]


def require_history_companion(contract: Contract) -> Contract:
    """Return the companion's contract of an scd2 table, whose order must begin with an instant."""
    companion = tombstones.derive_companion(contract)
    instant = contract.column(contract.order_by[0]) if contract.order_by else None
    if companion is None or instant is None or str(instant.type) not in _INSTANTS:
        raise ContractError(
            [f"{contract.table}: scd2 needs orderBy to begin with a date or timestamp column."],
            "Name the column that says since when a row is true.",
        )
    return companion


def version_action(required: str, stored: str, differs: str) -> str:
    """Return SQL for the action of one of an scd2 table's two tables at an instant, else null.

    A stored event that still ranks first is written only if it `differs`; a new event that
    replaces it at the instant is always written.
    """
    stored = f"coalesce({stored}, false)"
    return (
        f"case when {required} and not {stored} then 'insert' "
        f"when not ({required}) and {stored} then 'delete' "
        f"when {required} and {stored} and ({STORED_AS} is null or {differs}) then 'update' end"
    )


def is_empty(draft: Draft, table: str) -> bool:
    """Return whether metadata proves that the draft's branch of a table has no rows."""
    state = draft.lake.state(table)
    return state.snapshot(draft.head(table)).summary.get("total-records") == "0"

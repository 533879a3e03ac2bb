"""The companion table, which stores the events that its table has no rows for.

A deleted key has no row, so nothing in the table prevents a late, older row from restoring it. An
scd2 table has no row for an event that changed nothing, nor for a delete, yet a late row may make
both relevant. Such events are stored in `<table>__tombstones`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from thermocline.contract.definition import Column, Contract, UpdateMode, WriteMode
from thermocline.contract.types import Primitive
from thermocline.errors import ContractError
from thermocline.lake.companions import tombstones_of

if TYPE_CHECKING:
    from collections.abc import Iterable

KIND = "_kind"


def derive_companion(contract: Contract) -> Contract | None:
    """Return the contract of a table's companion; None if the table needs no companion.

    The companion of a merge with deletes stores the newest delete of each key. The companion of an
    scd2 table stores deletes, and events that repeated the version before them.
    """
    if not contract.order_by or contract.write not in {WriteMode.MERGE, WriteMode.SCD2}:
        return None
    if contract.write is WriteMode.MERGE and contract.delete_when is None:
        return None
    history = contract.write is WriteMode.SCD2
    key = (*contract.key, contract.order_by[0]) if history else contract.key
    columns = [_companion_column(contract, name, name in key) for name in _column_names(contract)]
    if history:
        columns.append(Column(KIND, Primitive("string"), True, "delete, or same: changed nothing"))
    return Contract(
        table=tombstones_of(contract.table),
        companion_of=contract.table,
        columns=tuple(columns),
        description=f"Events that {contract.table} has no row for, so that late rows find them.",
        key=key,
        write=WriteMode.MERGE,
        order_by=contract.order_by,
        # It only grows, and each run touches few of its rows.
        updates=UpdateMode.MERGE_ON_READ,
        tags=("companion",),
    )


def _column_names(contract: Contract) -> Iterable[str]:
    return dict.fromkeys((*contract.key, *contract.order_by))


def _companion_column(contract: Contract, name: str, required: bool) -> Column:
    column = contract.column(name)
    if column is None:
        raise ContractError(
            [f"{contract.table}: orderBy names {name}, which is not a column."],
            "Order by columns of the contract: an order that is not stored cannot be compared.",
        )
    return replace(column, required=required, renamed_from=None, doc=None)

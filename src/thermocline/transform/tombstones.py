"""The companion of a table: what the table itself cannot remember.

A deleted key has no row, so nothing in the table says that an older row arriving late must stay
dead. An scd2 table has no row for an event that changed nothing, nor for a delete, yet a late row
may make both matter. Such events are kept beside the table, in `<table>__tombstones`.
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


def contract_for(contract: Contract) -> Contract | None:
    """The companion's contract, or None for a table that needs none.

    A merge with deletes keeps the newest delete of each key; scd2 keeps deletes and the events
    that repeated the version before them.
    """
    if not contract.order_by or contract.write not in {WriteMode.MERGE, WriteMode.SCD2}:
        return None
    if contract.write is WriteMode.MERGE and contract.delete_when is None:
        return None
    history = contract.write is WriteMode.SCD2
    key = (*contract.key, contract.order_by[0]) if history else contract.key
    columns = [_column(contract, name, name in key) for name in _names(contract)]
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


def _names(contract: Contract) -> Iterable[str]:
    return dict.fromkeys((*contract.key, *contract.order_by))


def _column(contract: Contract, name: str, required: bool) -> Column:
    column = contract.column(name)
    if column is None:
        raise ContractError(
            [f"{contract.table}: orderBy names {name}, which is not a column."],
            "Order by columns of the contract: an order that is not stored cannot be compared.",
        )
    return replace(column, required=required, renamed_from=None, doc=None)

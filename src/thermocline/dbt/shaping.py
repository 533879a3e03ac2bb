"""The contract of a table that dbt makes: the project's own, or one derived from its columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from thermocline.contract.compare import is_promotion
from thermocline.contract.definition import Column, Contract, Write
from thermocline.contract.names import flaw_of_column
from thermocline.contract.types import Type
from thermocline.errors import BadInput, ContractError
from thermocline.lake.schema import shape_of

if TYPE_CHECKING:
    from thermocline.dbt.graph import Node
    from thermocline.lake.metadata import TableState

_INGESTED = "bronze"


def derive(
    node: Node, found: Mapping[str, Type], state: TableState | None, *, rebuild: bool
) -> Contract:
    """A contract for what dbt made. A column of the table that is wider already stays as it is.

    A column that dbt no longer makes may go, and one of another type be made anew, only when the
    table is to be rebuilt; otherwise both are refused.
    """
    docs = node.columns
    contract = Contract(
        table=node.table,
        columns=tuple(Column(n, t, doc=docs.get(n.lower()) or None) for n, t in found.items()),
        id=node.id,
        description=node.description,
        write=Write.REPLACE,
        tags=("dbt",),
    )
    if contract.layer == _INGESTED:
        raise BadInput(
            f"{node.id} cannot be put into {node.table}: {_INGESTED} is for what is ingested.",
            "Give it another schema in the dbt project.",
        )
    _refuse(node, [f"{n}: {flaw[0]}; {flaw[1]}" for n in found if (flaw := flaw_of_column(n))])
    return contract if state is None else _evolved(node, contract, state, rebuild)


def _evolved(node: Node, contract: Contract, state: TableState, rebuild: bool) -> Contract:
    there = {column.name: column for column in shape_of(state).columns}
    kept = tuple(_widened(column, there.get(column.name)) for column in contract.columns)
    contract = replace(contract, columns=kept)
    gone = [name for name in there if contract.column(name) is None]
    if not rebuild:
        problems = [f"{n}: is in the table, and dbt does not make it any more" for n in gone]
        problems += [f"{n}: {there[n].type} → {new}" for n, new in retyped(contract, state).items()]
        _refuse(node, problems)
    return replace(contract, dropped=tuple(gone))


def retyped(contract: Contract, state: TableState) -> dict[str, Type]:
    """Columns that have a type now to which the table's own cannot be widened."""
    there = {column.name: column.type for column in shape_of(state).columns}
    return {
        column.name: column.type
        for column in contract.columns
        if column.name in there
        and there[column.name] != column.type
        and not is_promotion(there[column.name], column.type)
    }


def without(contract: Contract, columns: Collection[str]) -> Contract:
    """The contract of the same table when some columns have been dropped."""
    left = tuple(column for column in contract.columns if column.name not in columns)
    return replace(contract, columns=left, dropped=(*contract.dropped, *columns))


def agree(contract: Contract, found: Mapping[str, Type], node: Node) -> None:
    """Refuse what dbt made if it lacks columns of the project's contract, or has others."""
    promised = {column.name for column in contract.columns}
    problems = [f"{name}: is not in the contract" for name in found if name not in promised]
    problems += [f"{name}: dbt does not make it" for name in sorted(promised - set(found))]
    _refuse(node, problems)


def _widened(column: Column, old: Column | None) -> Column:
    if old is None or not is_promotion(column.type, old.type):
        return column
    return replace(column, type=old.type)


def _refuse(node: Node, problems: list[str]) -> None:
    if problems:
        raise ContractError(
            [f"{node.table} ({node.id})  {problem}" for problem in problems],
            "Nothing was published. Mend the model, or let columns go with --full-refresh.",
        )

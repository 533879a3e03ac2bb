"""Contract of a table that dbt creates: the project's own, or one derived from its columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from thermocline.contract.definition import Column, Contract, WriteMode
from thermocline.contract.evolution import is_promotion
from thermocline.contract.identifiers import check_column_name
from thermocline.contract.types import Type
from thermocline.errors import BadInput, ContractError
from thermocline.lake.schema import shape_of

if TYPE_CHECKING:
    from thermocline.dbt.graph import DbtNode
    from thermocline.lake.metadata import TableState

_INGESTED = "bronze"


def derive_contract(
    node: DbtNode, found: Mapping[str, Type], state: TableState | None, *, rebuild: bool
) -> Contract:
    """Derive a contract from dbt's columns. A table column that is already wider keeps its type.

    Dropping a column, or changing its type, is allowed only when the table is rebuilt.
    """
    docs = node.columns
    contract = Contract(
        table=node.table,
        columns=tuple(Column(n, t, doc=docs.get(n.lower()) or None) for n, t in found.items()),
        id=node.id,
        description=node.description,
        write=WriteMode.REPLACE,
        tags=("dbt",),
    )
    if contract.layer == _INGESTED:
        raise BadInput(
            f"{node.id} cannot write {node.table}: {_INGESTED} is reserved for ingested data.",
            "Give it another schema in the dbt project.",
        )
    _raise_problems(
        node, [f"{n}: {flaw[0]}; {flaw[1]}" for n in found if (flaw := check_column_name(n))]
    )
    return contract if state is None else _evolve_contract(node, contract, state, rebuild)


def _evolve_contract(
    node: DbtNode, contract: Contract, state: TableState, rebuild: bool
) -> Contract:
    there = {column.name: column for column in shape_of(state).columns}
    kept = tuple(_keep_wider_type(column, there.get(column.name)) for column in contract.columns)
    contract = replace(contract, columns=kept)
    missing = [name for name in there if contract.column(name) is None]
    if not rebuild:
        problems = [f"{n}: is in the table, and dbt no longer creates it" for n in missing]
        problems += [
            f"{n}: {there[n].type} → {new}"
            for n, new in find_incompatible_types(contract, state).items()
        ]
        _raise_problems(node, problems)
    return replace(contract, dropped=tuple(missing))


def find_incompatible_types(contract: Contract, state: TableState) -> dict[str, Type]:
    """Return the columns whose new type the table's type cannot be widened to."""
    there = {column.name: column.type for column in shape_of(state).columns}
    return {
        column.name: column.type
        for column in contract.columns
        if column.name in there
        and there[column.name] != column.type
        and not is_promotion(there[column.name], column.type)
    }


def drop_columns(contract: Contract, columns: Collection[str]) -> Contract:
    """Return the table's contract with some columns dropped."""
    left = tuple(column for column in contract.columns if column.name not in columns)
    return replace(contract, columns=left, dropped=(*contract.dropped, *columns))


def require_same_columns(contract: Contract, found: Mapping[str, Type], node: DbtNode) -> None:
    """Refuse dbt's columns if they differ from the columns of the project's contract."""
    promised = {column.name for column in contract.columns}
    problems = [f"{name}: is not in the contract" for name in found if name not in promised]
    problems += [f"{name}: dbt does not create it" for name in sorted(promised - set(found))]
    _raise_problems(node, problems)


def _keep_wider_type(column: Column, old: Column | None) -> Column:
    if old is None or not is_promotion(column.type, old.type):
        return column
    return replace(column, type=old.type)


def _raise_problems(node: DbtNode, problems: list[str]) -> None:
    if problems:
        raise ContractError(
            [f"{node.table} ({node.id})  {problem}" for problem in problems],
            "Nothing was published. Fix the model, or drop columns with --full-refresh.",
        )

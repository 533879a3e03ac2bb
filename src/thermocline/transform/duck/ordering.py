"""Which of two rows is newer, in the one order that `strategies.ordering` has on Spark.

DuckDB puts null above every value where Spark puts it below. So a value is compared together with
whether there is one, at every depth.
"""

from __future__ import annotations

from collections.abc import Sequence

from thermocline.contract import types
from thermocline.contract.definition import Column, Contract
from thermocline.engine.duck_types import quote_identifier
from thermocline.transform.duck.session import Unable
from thermocline.transform.write_rules import DELETED, content_columns


def comparable(column: Column, alias: str) -> str:
    """SQL for a column's value that compares as Spark compares it."""
    return _comparable(f"{alias}.{quote_identifier(column.name)}", column.type, column.name)


def same(columns: Sequence[Column], left: str, right: str) -> str:
    """SQL that holds when two rows agree in all columns, null with null."""
    if not columns:
        return "true"
    pairs = (
        f"{left}.{quote_identifier(column.name)} IS NOT DISTINCT FROM {right}.{quote_identifier(column.name)}"
        for column in columns
    )
    return f"({' AND '.join(pairs)})"


def rank(contract: Contract, alias: str) -> str:
    """SQL for a row's place in the order, comparable with another's; deletes left aside."""
    return _row(
        [*_places(contract, alias), *(comparable(c, alias) for c in content_columns(contract))]
    )


def place(contract: Contract, alias: str) -> str:
    """SQL for the ordering columns alone; the same for all rows if there are none."""
    return _row(_places(contract, alias) or ["0"])


def descending(contract: Contract, alias: str, skip: int = 0) -> list[str]:
    """Sort keys from newest to oldest, to be used after the first `skip` ordering columns."""
    names = [f"{alias}.{quote_identifier(name)}" for name in contract.order_by[skip:]]
    values = [_sortable(column, alias) for column in content_columns(contract)]
    return [f"{said} DESC NULLS LAST" for said in (*names, f"{alias}.{DELETED}", *values)]


def newest(events: str, contract: Contract) -> str:
    """One row a key: its newest event, deletes included."""
    key = ", ".join(f"e.{quote_identifier(name)}" for name in contract.key)
    system = [f"{_sortable(c, 'e')} DESC NULLS LAST" for c in contract.system_columns]
    order = ", ".join([*descending(contract, "e"), *system])
    return (
        f"SELECT e.* FROM ({events}) AS e "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {order}) = 1"
    )


def _places(contract: Contract, alias: str) -> list[str]:
    return [_with_presence(f"{alias}.{quote_identifier(name)}") for name in contract.order_by]


def _sortable(column: Column, alias: str) -> str:
    """A plain value sorts by itself; only inside of nested ones nulls have to be looked after."""
    if isinstance(column.type, types.Struct | types.List | types.Map):
        return comparable(column, alias)
    return f"{alias}.{quote_identifier(column.name)}"


def _comparable(value: str, type_: types.Type, path: str) -> str:
    match type_:
        case types.Map():
            raise Unable(f"{path} holds a map, and DuckDB does not order maps as Spark does.")
        case types.List(element):
            inner = _comparable("x", element, path)
            return _with_presence(value, f"list_transform({value}, lambda x: {inner})")
        case types.Struct(fields):
            members = [
                _comparable(f"{value}.{quote_identifier(f.name)}", f.type, path) for f in fields
            ]
            return _with_presence(value, _row(members))
    return _with_presence(value)


def _with_presence(value: str, inner: str | None = None) -> str:
    return f"struct_pack(there := {value} IS NOT NULL, value := {inner or value})"


def _row(values: Sequence[str]) -> str:
    return f"struct_pack({', '.join(f'v{n} := {said}' for n, said in enumerate(values))})"

"""SQL for the order of rows on DuckDB: the same order as `spark/ordering.py` has on Spark.

DuckDB sorts nulls above all values, Spark below. So every value is compared together with its
presence, at every depth.
"""

from __future__ import annotations

from collections.abc import Sequence

from thermocline.contract import types
from thermocline.contract.definition import Column, Contract
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.engine.duck_types import quote_identifier
from thermocline.transform.write_rules import DELETED, content_columns


def build_comparable(column: Column, alias: str) -> str:
    """Build SQL for a column's value that compares as on Spark."""
    return _build_comparable(f"{alias}.{quote_identifier(column.name)}", column.type, column.name)


def build_equality(columns: Sequence[Column], left: str, right: str) -> str:
    """Build SQL that is true if two rows are equal in all columns; null equals null."""
    if not columns:
        return "true"
    names = [quote_identifier(column.name) for column in columns]
    pairs = (f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in names)
    return f"({' AND '.join(pairs)})"


def build_rank(contract: Contract, alias: str) -> str:
    """Build SQL for a row's rank in the order, deletes ignored, to compare with another row's."""
    return _pack(
        [
            *_position_values(contract, alias),
            *(build_comparable(c, alias) for c in content_columns(contract)),
        ]
    )


def build_position(contract: Contract, alias: str) -> str:
    """Build SQL for the ordering columns alone; equal for all rows if there are none."""
    return _pack(_position_values(contract, alias) or ["0"])


def build_descending_order(contract: Contract, alias: str, skip: int = 0) -> list[str]:
    """Build sort keys from newest to oldest, without the first `skip` ordering columns."""
    names = [f"{alias}.{quote_identifier(name)}" for name in contract.order_by[skip:]]
    values = [_sort_key(column, alias) for column in content_columns(contract)]
    return [f"{value} DESC NULLS LAST" for value in (*names, f"{alias}.{DELETED}", *values)]


def select_newest(events: str, contract: Contract) -> str:
    """Select one row per key: its newest event, deletes included."""
    key = ", ".join(f"e.{quote_identifier(name)}" for name in contract.key)
    system = [f"{_sort_key(c, 'e')} DESC NULLS LAST" for c in contract.system_columns]
    order = ", ".join([*build_descending_order(contract, "e"), *system])
    return (
        f"SELECT e.* FROM ({events}) AS e "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {order}) = 1"
    )


def _position_values(contract: Contract, alias: str) -> list[str]:
    return [_pack_with_presence(f"{alias}.{quote_identifier(name)}") for name in contract.order_by]


def _sort_key(column: Column, alias: str) -> str:
    """Return a sort key: primitives sort by themselves; nested values need their nulls handled."""
    if isinstance(column.type, types.Struct | types.List | types.Map):
        return build_comparable(column, alias)
    return f"{alias}.{quote_identifier(column.name)}"


def _build_comparable(value: str, type_: types.Type, path: str) -> str:
    match type_:
        case types.Map():
            raise UnsupportedByDuckDB(
                f"{path} holds a map, and DuckDB does not order maps as Spark does."
            )
        case types.List(element):
            inner = _build_comparable("x", element, path)
            return _pack_with_presence(value, f"list_transform({value}, lambda x: {inner})")
        case types.Struct(fields):
            members = [
                _build_comparable(f"{value}.{quote_identifier(f.name)}", f.type, path)
                for f in fields
            ]
            return _pack_with_presence(value, _pack(members))
    return _pack_with_presence(value)


def _pack_with_presence(value: str, inner: str | None = None) -> str:
    return f"struct_pack(there := {value} IS NOT NULL, value := {inner or value})"


def _pack(values: Sequence[str]) -> str:
    return f"struct_pack({', '.join(f'v{n} := {value}' for n, value in enumerate(values))})"

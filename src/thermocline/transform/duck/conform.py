"""A model's rows in the shape that the contract promises, as `strategies.shaping` does on Spark.

A value that Spark's cast would refuse is refused, and one that both would cast differently (a
fraction to a whole number, a double to a decimal) is cast as Spark does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thermocline.contract import types
from thermocline.contract.definition import INGEST_COLUMNS, Column, Contract
from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.errors import ContractError
from thermocline.transform.duck.session import UNABLE, Session, Unable
from thermocline.transform.models import DIALECT
from thermocline.transform.write_rules import DELETED, written_columns

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

_WHOLE = {"tinyint", "smallint", "integer", "bigint", "hugeint",
          "utinyint", "usmallint", "uinteger", "ubigint", "uhugeint"}  # fmt: skip
_REAL = {"float", "double"}
_TEXT = {"varchar"}
_TIMES = {"date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns",
          "timestamp with time zone"}  # fmt: skip
_FROM: dict[str, set[str]] = {
    "boolean": {"boolean", *_WHOLE, *_TEXT},
    "int": {"boolean", "decimal", *_WHOLE, *_REAL, *_TEXT},
    "long": {"boolean", "decimal", *_WHOLE, *_REAL, *_TEXT},
    "float": {"decimal", *_WHOLE, *_REAL, *_TEXT},
    "double": {"decimal", *_WHOLE, *_REAL, *_TEXT},
    "decimal": {"decimal", *_WHOLE, *_REAL, *_TEXT},
    "date": {*_TIMES, *_TEXT},
    "time": {"time", *_TEXT},
    "timestamp": {*_TIMES, *_TEXT},
    "timestamptz": {*_TIMES, *_TEXT},
    "string": {"boolean", "decimal", "uuid", *_WHOLE, *_TIMES, *_TEXT},
    "uuid": {"uuid", *_TEXT},
    "binary": {"blob", *_TEXT},
}
"""From which of DuckDB's types a type of a contract can be had as Spark has it from its own."""
_PLAIN_DIGITS = 6
"""Spark may write decimals of more digits with an exponent."""


def shaped(session: Session, rows: str, contract: Contract, *, deletes: bool = False) -> str:
    """The author's columns and those of ingestion, cast to the contract's types, by name.

    A column more says which rows are deletes: with `deletes` those for which `delete_when` holds,
    otherwise none. Columns of history are left to the scd2 strategy.
    """
    wanted = written_columns(contract)
    values = fitted(session, rows, contract, wanted)
    named = [f"{value} AS {quote_identifier(name)}" for name, value in values.items()]
    deleted = _deleted(contract.delete_when if deletes else None)
    return f"SELECT {', '.join(named)}, {deleted} AS {DELETED} FROM ({rows})"


def fitted(
    session: Session,
    rows: str,
    contract: Contract,
    wanted: Sequence[Column],
    *,
    forgiving: bool = False,
) -> dict[str, str]:
    """SQL for the value of each wanted column; null for one that does not fit if `forgiving`."""
    have = {name.lower(): (name, kind) for name, kind in session.columns(rows).items()}
    optional = {column.name for column in INGEST_COLUMNS}
    fit = _Fit(forgiving)
    values: dict[str, str] = {}
    for column in wanted:
        found = have.get(column.name.lower())
        if found is not None:
            values[column.name] = fit(
                quote_identifier(found[0]), found[1], column.type, column.name
            )
        elif column.name in optional:
            values[column.name] = f"CAST(NULL AS {to_ddl(column.type)})"
        else:
            fit.missing.append(column.name)
    if fit.missing:
        raise ContractError(
            [f"{contract.table}: the model's output has no column {name}." for name in fit.missing],
            f"Add it to the model of {contract.table}, or take it out of the contract.",
        )
    return values


def _deleted(condition: str | None) -> str:
    if condition is None:
        return "false"
    import sqlglot

    # Unknown is not true: a row is never deleted because a field is missing.
    said = sqlglot.transpile(condition, read="spark", write=DIALECT)[0]
    return f"coalesce(CAST(({said}) AS BOOLEAN), false)"


@dataclass
class _Fit:
    """Fits values to types. Members of structs are matched by name, not by their place."""

    forgiving: bool
    missing: list[str] = field(default_factory=list)

    def __call__(self, value: str, have: DuckDBPyType, want: types.Type, path: str) -> str:
        kind = have.id
        if str(have) == to_ddl(want) and "uuid" not in str(want):
            return value
        match want:
            case types.Struct(fields) if kind == "struct":
                return self._struct(value, _members(have), fields, path)
            case types.List(element) if kind in {"list", "array"}:
                inner = self("x", _members(have)["child"], element, path)
                return f"list_transform({value}, lambda x: {inner})"
            case types.Map(key, element) if kind == "map":
                members = _members(have)
                inner_key = self("x.key", members["key"], key, path)
                inner = self("x.value", members["value"], element, path)
                pair = f"struct_pack(key := {inner_key}, value := {inner})"
                return f"map_from_entries(list_transform(map_entries({value}), lambda x: {pair}))"
        return self._plain(value, have, want, path)

    def _struct(
        self,
        value: str,
        have: dict[str, DuckDBPyType],
        fields: Sequence[types.Field],
        path: str,
    ) -> str:
        members = {name.lower(): name for name in have}
        fitted = []
        for member in fields:
            found = members.get(member.name.lower())
            inner = f"{path}.{member.name}"
            if found is None:
                self.missing.append(inner)
                continue
            said = self(f"{value}.{quote_identifier(found)}", have[found], member.type, inner)
            fitted.append(f"{quote_identifier(member.name)} := {said}")
        if not fitted:
            return value
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(fitted)}) END"

    def _plain(self, value: str, have: DuckDBPyType, want: types.Type, path: str) -> str:
        name = str(want).partition("(")[0].partition("[")[0].replace("fixed", "binary")
        kind = have.id
        if kind not in _FROM.get(name, set()):
            said = f"{path} is a {have}, which DuckDB does not make a {want} of as Spark does."
            if kind != "integer":
                raise Unable(said)
            # A column of nothing but NULL is called an INTEGER too.
            other = "error('" + (UNABLE + said).replace("'", "''") + "')"
            return f"CAST(CASE WHEN {value} IS NOT NULL THEN {other} END AS {to_ddl(want)})"
        if name in {"int", "long"} and kind in _TEXT:
            return self._whole_number(value, want)
        if name in {"int", "long"} and kind in {"decimal", *_REAL}:
            return self._cast(f"trunc({value})", want)
        if name == "decimal" and kind in _REAL:
            return self._cast(f"CAST({value} AS VARCHAR)", want)
        if name == "string" and kind == "decimal" and _scale(have) > _PLAIN_DIGITS:
            raise Unable(f"{path} is a {have}, which Spark may write as text with an exponent.")
        if name == "string" and kind == "timestamp with time zone":
            return f"CAST(CAST({value} AS TIMESTAMP) AS VARCHAR)"
        if name == "uuid":
            cast = "TRY_CAST" if self.forgiving else "CAST"
            return f"CAST({cast}({value} AS UUID) AS VARCHAR)"
        if name == "binary" and kind in _TEXT:
            return f"encode({value})"
        return self._cast(value, want)

    def _whole_number(self, value: str, want: types.Type) -> str:
        """Text that is a whole number; DuckDB would also take, and round, a fraction."""
        digits = f"regexp_full_match({value}, '\\s*[+-]?[0-9]+\\s*')"
        other = "NULL" if self.forgiving else f"error({value} || ' is no {want}')"
        return (
            f"CASE WHEN {value} IS NULL OR {digits} THEN {self._cast(value, want)} ELSE {other} END"
        )

    def _cast(self, value: str, want: types.Type) -> str:
        return f"{'TRY_CAST' if self.forgiving else 'CAST'}({value} AS {to_ddl(want)})"


def _members(kind: DuckDBPyType) -> dict[str, DuckDBPyType]:
    """The types inside of a nested one, by the names that DuckDB has for them."""
    return {name: inner for name, inner in kind.children if not isinstance(inner, int | list)}


def _scale(kind: DuckDBPyType) -> int:
    return int(str(dict(kind.children)["scale"]))

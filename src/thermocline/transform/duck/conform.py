"""Conform a model's rows to its contract on DuckDB, as `spark/conform.py` does on Spark.

Values that Spark's cast refuses are refused. Values that the engines cast differently (a fraction
to a whole number, a double to a decimal) are cast as on Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thermocline.contract import types
from thermocline.contract.definition import INGEST_COLUMNS, Column, Contract
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.errors import ContractError
from thermocline.transform.duck.session import UNSUPPORTED_PREFIX, Session
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
_CASTABLE_FROM: dict[str, set[str]] = {
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
"""For each contract type, the DuckDB types that cast to it as on Spark."""
_MAX_PLAIN_DIGITS = 6
"""Spark may write decimals with more fractional digits with an exponent."""


def conform_rows(session: Session, rows: str, contract: Contract, *, deletes: bool = False) -> str:
    """Select the author's and the ingestion columns by name, cast to the contract's types.

    The additional column DELETED marks deletes: with `deletes`, the rows for which `delete_when`
    holds, otherwise none. The scd2 strategy adds the history columns.
    """
    columns = written_columns(contract)
    values = cast_columns(session, rows, contract, columns)
    named = [f"{value} AS {quote_identifier(name)}" for name, value in values.items()]
    deleted = _build_delete_condition(contract.delete_when if deletes else None)
    return f"SELECT {', '.join(named)}, {deleted} AS {DELETED} FROM ({rows})"


def cast_columns(
    session: Session,
    rows: str,
    contract: Contract,
    columns: Sequence[Column],
    *,
    lenient: bool = False,
) -> dict[str, str]:
    """Return SQL for each column's value; with `lenient`, values that do not fit become null."""
    source = {name.lower(): (name, kind) for name, kind in session.describe(rows).items()}
    optional = {column.name for column in INGEST_COLUMNS}
    fit = _TypeCaster(lenient)
    values: dict[str, str] = {}
    for column in columns:
        found = source.get(column.name.lower())
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


def _build_delete_condition(condition: str | None) -> str:
    if condition is None:
        return "false"
    import sqlglot

    # Null is not true: a missing field never deletes a row.
    expression = sqlglot.transpile(condition, read="spark", write=DIALECT)[0]
    return f"coalesce(CAST(({expression}) AS BOOLEAN), false)"


@dataclass
class _TypeCaster:
    """Casts values to types. Struct members are matched by name, not by position."""

    lenient: bool
    missing: list[str] = field(default_factory=list)

    def __call__(self, value: str, source: DuckDBPyType, target: types.Type, path: str) -> str:
        kind = source.id
        if str(source) == to_ddl(target) and "uuid" not in str(target):
            return value
        match target:
            case types.Struct(fields) if kind == "struct":
                return self._cast_struct(value, _member_types(source), fields, path)
            case types.List(element) if kind in {"list", "array"}:
                inner = self("x", _member_types(source)["child"], element, path)
                return f"list_transform({value}, lambda x: {inner})"
            case types.Map(key, element) if kind == "map":
                members = _member_types(source)
                inner_key = self("x.key", members["key"], key, path)
                inner = self("x.value", members["value"], element, path)
                pair = f"struct_pack(key := {inner_key}, value := {inner})"
                return f"map_from_entries(list_transform(map_entries({value}), lambda x: {pair}))"
        return self._cast_primitive(value, source, target, path)

    def _cast_struct(
        self,
        value: str,
        source: dict[str, DuckDBPyType],
        fields: Sequence[types.Field],
        path: str,
    ) -> str:
        members = {name.lower(): name for name in source}
        members_sql = []
        for member in fields:
            found = members.get(member.name.lower())
            inner = f"{path}.{member.name}"
            if found is None:
                self.missing.append(inner)
                continue
            expression = self(
                f"{value}.{quote_identifier(found)}", source[found], member.type, inner
            )
            members_sql.append(f"{quote_identifier(member.name)} := {expression}")
        if not members_sql:
            return value
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(members_sql)}) END"

    def _cast_primitive(
        self, value: str, source: DuckDBPyType, target: types.Type, path: str
    ) -> str:
        name = str(target).partition("(")[0].partition("[")[0].replace("fixed", "binary")
        kind = source.id
        if kind not in _CASTABLE_FROM.get(name, set()):
            reason = (
                f"{path} is a {source}, which DuckDB does not make a {target} of as Spark does."
            )
            if kind != "integer":
                raise UnsupportedByDuckDB(reason)
            # A column of nulls only is an INTEGER too.
            other = "error('" + (UNSUPPORTED_PREFIX + reason).replace("'", "''") + "')"
            return f"CAST(CASE WHEN {value} IS NOT NULL THEN {other} END AS {to_ddl(target)})"
        if name in {"int", "long"} and kind in _TEXT:
            return self._cast_whole_number(value, target)
        if name in {"int", "long"} and kind in {"decimal", *_REAL}:
            return self._cast_plainly(f"trunc({value})", target)
        if name == "decimal" and kind in _REAL:
            return self._cast_plainly(f"CAST({value} AS VARCHAR)", target)
        if name == "string" and kind == "decimal" and _scale(source) > _MAX_PLAIN_DIGITS:
            raise UnsupportedByDuckDB(
                f"{path} is a {source}, which Spark may write as text with an exponent."
            )
        if name == "string" and kind == "timestamp with time zone":
            return f"CAST(CAST({value} AS TIMESTAMP) AS VARCHAR)"
        if name == "uuid":
            cast = "TRY_CAST" if self.lenient else "CAST"
            return f"CAST({cast}({value} AS UUID) AS VARCHAR)"
        if name == "binary" and kind in _TEXT:
            return f"encode({value})"
        return self._cast_plainly(value, target)

    def _cast_whole_number(self, value: str, target: types.Type) -> str:
        """Cast text that is a whole number; DuckDB alone would also accept and round a fraction."""
        digits = f"regexp_full_match({value}, '\\s*[+-]?[0-9]+\\s*')"
        other = "NULL" if self.lenient else f"error({value} || ' is no {target}')"
        cast = self._cast_plainly(value, target)
        return f"CASE WHEN {value} IS NULL OR {digits} THEN {cast} ELSE {other} END"

    def _cast_plainly(self, value: str, target: types.Type) -> str:
        return f"{'TRY_CAST' if self.lenient else 'CAST'}({value} AS {to_ddl(target)})"


def _member_types(kind: DuckDBPyType) -> dict[str, DuckDBPyType]:
    """Return the member types of a nested type, by DuckDB's names for them."""
    return {name: inner for name, inner in kind.children if not isinstance(inner, int | list)}


def _scale(kind: DuckDBPyType) -> int:
    return int(str(dict(kind.children)["scale"]))

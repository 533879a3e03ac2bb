"""Split a query into two parts: rows before a time, and rows from it on.

Counts, sums and extremes of exact values can be computed per part and merged, and the result is the
same to the last digit. The older part of a table seldom changes: its cached result stays valid, and
only the newer part, which is hot, is recomputed after a commit. This is an allow-list: whatever is
not listed here is not split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from thermocline.engine.query_types import family
from thermocline.sql.guard import GuardedQuery
from thermocline.sql.translate import Untranslatable, normalize_query

if TYPE_CHECKING:
    from thermocline.serve.values import EncodedRows, ResultColumn

_EXACT = frozenset({"integer", "decimal"})
_COMPARABLE = _EXACT | {"text", "boolean", "date", "timestamp", "timestamptz"}
"""Type families whose values are equal only to themselves, and have lossless literals."""
_AGGREGATES: dict[type[exp.Expr], frozenset[str] | None] = {
    exp.Count: None,
    exp.Sum: _EXACT,
    exp.Min: _COMPARABLE,
    exp.Max: _COMPARABLE,
}
"""Aggregates that can be merged from parts, and the type families of their arguments."""
_ALLOWED_AROUND = frozenset(
    {
        "Select", "Alias", "Identifier", "Literal", "Null", "Boolean", "Paren", "Add", "Sub", "Mul",
        "Div", "IntDiv", "Mod", "Neg", "Abs", "Round", "Floor", "Ceil", "Cast", "DataType",
        "DataTypeParam", "Case", "If", "Coalesce", "Nullif", "Greatest", "Least", "And", "Or",
        "Not", "EQ", "NEQ", "GT", "GTE", "LT", "LTE", "Is", "In", "Between", "DPipe", "Concat",
        "Lower", "Upper", "Group", "Having", "Order", "Ordered", "Limit", "Offset",
    }
)  # fmt: skip
"""Nodes that may be applied to merged aggregates and keys."""
_CLAUSES = ("expressions", "from_", "where", "group", "having", "order", "limit", "offset")
_TYPES = {
    "bool": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER",
    "int64": "BIGINT", "string": "TEXT", "date32[day]": "DATE", "timestamp[us]": "TIMESTAMP",
    "timestamp[us, tz=UTC]": "TIMESTAMPTZ",
}  # fmt: skip
_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")
_PARTS = "parts"


@dataclass(frozen=True)
class QuerySplit:
    """The older part as a query of its own, and the query that merges both parts."""

    table: str
    older: GuardedQuery
    _newer: exp.Select
    _whole: exp.Select
    """The query over a table `parts`, with the rows of both parts."""

    def combine(self, older: EncodedRows) -> GuardedQuery | None:
        """Return the query over the newer rows and the older result; None if it cannot be built."""
        kinds = [_duckdb_type(column) for column in older.columns]
        if None in kinds:
            return None
        tree, newer = self._whole.copy(), self._newer.copy()
        (mention,) = newer.find_all(exp.Table)
        rows = [_constant_row(json.loads(line), kinds) for line in older.body.splitlines()]
        both: exp.Query = newer
        if rows:
            names = [exp.to_identifier(column.name) for column in older.columns]
            alias = exp.TableAlias(this=exp.to_identifier("older"), columns=names)
            values = exp.Values(expressions=rows, alias=alias)
            counted = exp.Select(expressions=[exp.Star()]).from_(values, copy=False)
            both = exp.Union(this=newer, expression=counted, distinct=False)
        parts = exp.Subquery(this=both, alias=exp.TableAlias(this=exp.to_identifier(_PARTS)))
        tree.set("from_", exp.From(this=parts))
        return GuardedQuery(tree, self.older.dialect, {self.table: [mention]})


def split_query(
    query: GuardedQuery, time: str, boundary: datetime, columns: Mapping[str, str]
) -> QuerySplit | None:
    """Split a query on a single table at a time (UTC), or return None.

    `time` is the column that is compared; rows without a time must not affect the query. `columns`
    are the table's, with their types.
    """
    if query.dialect != "duckdb" or len(query.tables) != 1:
        return None
    ((table, mentions),) = query.tables.items()
    if len(mentions) != 1:
        return None
    try:
        tree = normalize_query(query, {table: columns})
    except Untranslatable:
        return None
    if not isinstance(tree, exp.Select) or not _is_splittable(tree):
        return None
    group = tree.args.get("group")
    keys = [] if group is None else list(group.expressions)
    whole, aggregates = _rewrite_over_parts(tree, keys)
    if whole is None or not aggregates or not all(family(key) in _COMPARABLE for key in keys):
        return None
    at = _time_constant(boundary, columns[time])
    if at is None:
        return None
    source = tree.args["from_"].this
    column = exp.column(time, table=source.alias, quoted=True)
    older, newer = (
        _build_part(tree, keys, aggregates, condition)
        for condition in (exp.LT(this=column, expression=at), exp.GTE(this=column, expression=at))
    )
    (mention,) = older.find_all(exp.Table)
    return QuerySplit(table, GuardedQuery(older, query.dialect, {table: [mention]}), newer, whole)


def _is_splittable(tree: exp.Select) -> bool:
    """Return whether a query only filters, groups and aggregates the rows of one table."""
    if _has_other_arguments(tree, *_CLAUSES):
        return False
    if len(list(tree.find_all(exp.Select, exp.SetOperation, exp.Subquery, exp.Window))) != 1:
        return False
    source = tree.args.get("from_")
    if source is None or type(source.this) is not exp.Table or not source.this.alias:
        return False
    group = tree.args.get("group")
    return not _has_other_arguments(source.this, "this", "db", "catalog", "alias") and (
        group is None or not _has_other_arguments(group, "expressions")
    )


def _has_other_arguments(node: exp.Expr, *keys: str) -> bool:
    """Return whether a node has arguments other than these."""
    return any(value for key, value in node.args.items() if key not in keys)


def _rewrite_over_parts(
    tree: exp.Select, keys: Sequence[exp.Expr]
) -> tuple[exp.Select | None, list[exp.Expr]]:
    """Return the query over the parts' results, and the aggregates that each part computes."""
    aggregates: list[exp.Expr] = []

    def replaced(node: exp.Expr) -> exp.Expr:
        if node in keys:
            return _parts_column(f"k{keys.index(node)}")
        inner = node.this if isinstance(node, exp.Filter) else node
        if type(inner) not in _AGGREGATES or not _is_mergeable(inner):
            return node
        if node not in aggregates:
            aggregates.append(node.copy())
        return _merge_aggregate(inner, f"a{aggregates.index(node)}")

    whole = tree.copy()
    for clause in ("from_", "where", "group"):
        whole.set(clause, None)
    # The merging aggregates that are inserted are not visited again.
    whole.transform(replaced, copy=False)
    if keys:
        by = [_parts_column(f"k{n}") for n in range(len(keys))]
        whole.set("group", exp.Group(expressions=by))
    return (
        (whole, aggregates)
        if all(_is_allowed(node, whole) for node in whole.walk())
        else (None, [])
    )


def _is_allowed(node: exp.Expr, whole: exp.Select) -> bool:
    """Return whether a node is allowed in the query over parts."""
    if isinstance(node, exp.Column):
        return node.table == _PARTS or _is_result(node, whole)
    if isinstance(node, exp.AggFunc):  # an inserted one, on a column of the parts
        return isinstance(node.this, exp.Column)
    return type(node).__name__ in _ALLOWED_AROUND


def _is_mergeable(node: exp.Expr) -> bool:
    families = _AGGREGATES[type(node)]
    if _has_other_arguments(node, "this", "big_int") or isinstance(
        node.this, exp.Distinct | exp.Order
    ):
        return False
    return families is None or family(node.this) in families


def _merge_aggregate(node: exp.Expr, name: str) -> exp.Expr:
    found = _parts_column(name)
    match node:
        case exp.Count():
            return exp.cast(exp.Sum(this=found), "bigint")
        case _:
            return type(node)(this=found)


def _parts_column(name: str) -> exp.Column:
    return exp.column(name, table=_PARTS)


def _is_result(node: exp.Column, whole: exp.Select) -> bool:
    """Return whether it is the name of a result column in ORDER BY."""
    ordered = node.find_ancestor(exp.Order) is not None
    return ordered and not node.table and node.name in {each.alias for each in whole.selects}


def _build_part(
    tree: exp.Select, keys: Sequence[exp.Expr], aggregates: Sequence[exp.Expr], condition: exp.Expr
) -> exp.Select:
    """Return the query of the keys and aggregates over the rows that match a condition."""
    named = [
        *(exp.alias_(key.copy(), f"k{n}") for n, key in enumerate(keys)),
        *(exp.alias_(each.copy(), f"a{n}") for n, each in enumerate(aggregates)),
    ]
    part = exp.Select(expressions=named).from_(tree.args["from_"].this.copy(), copy=False)
    if tree.args.get("where"):
        part = part.where(tree.args["where"].this.copy(), copy=False)
    part = part.where(condition.copy(), copy=False)
    return part.group_by(*(key.copy() for key in keys), copy=False) if keys else part


def _time_constant(at: datetime, kind: str) -> exp.Expr | None:
    """Return a time as a literal of the column's type."""
    text = at.isoformat(" ", "microseconds")
    match kind:
        case "timestamptz":
            return exp.cast(exp.Literal.string(f"{text}+00:00"), "timestamptz")
        case "timestamp":
            return exp.cast(exp.Literal.string(text), "timestamp")
        case "date" if at.time() == datetime.min.time():
            return exp.cast(exp.Literal.string(text[:10]), "date")
    return None


def _duckdb_type(column: ResultColumn) -> str | None:
    found = _DECIMAL.fullmatch(column.type)
    return f"DECIMAL({found[1]}, {found[2]})" if found else _TYPES.get(column.type)


def _constant_row(row: Sequence[Any], kinds: Sequence[str | None]) -> exp.Tuple:
    return exp.Tuple(expressions=[_constant(v, k) for v, k in zip(row, kinds, strict=True)])


def _constant(value: Any, kind: str | None) -> exp.Expr:
    constant: exp.Expr = exp.Null()
    if isinstance(value, bool):
        constant = exp.Boolean(this=value)
    elif value is not None:
        constant = exp.Literal.string(str(value))
    return exp.cast(constant, kind or "text", dialect="duckdb")

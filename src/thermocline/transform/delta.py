"""Which part of a model's output can a change in its inputs touch? Decided from the SQL alone.

Two shapes of query can be computed incrementally, and everything else is computed in full:

- *row by row*: one table, no aggregate, join, window, DISTINCT or LIMIT. New input rows then give
  exactly the new output rows.
- *by substitution*: to find which partitions (or keys) of the output a change in table S can
  touch, run the model with one occurrence of S replaced by S's changed rows, old and new images
  alike, and every other changed table replaced by its new rows plus its old images. What comes
  out names all touched partitions, provided that nothing in the query can hide an output row
  that the full inputs would show. So the rewritten query loses what could hide one: HAVING,
  QUALIFY, filters over aggregated or windowed columns; outer joins onto the changed rows become
  inner. Constructs for which this is not provable (EXCEPT, NOT IN, subqueries in conditions,
  windows that reach across partitions, …) make the query unfit, with the reason.

Where the changed table stands in a join of the outermost SELECT, a row that joins with the old
and with the new image alike is no difference: a version of a customer that was closed today takes
part in every order since it began, and changes none of them. `differing` counts such rows against
each other.

Touching too much is only slower; touching too little would be wrong. Every doubt says "unfit".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from thermocline.transform import lineage, windows
from thermocline.transform.models import table_references
from thermocline.transform.parts import OLD


@dataclass(frozen=True)
class Unfit:
    """Why a query cannot be computed incrementally."""

    reason: str


def row_by_row(query: exp.Query) -> bool:
    """Whether each output row comes from exactly one input row of the one table it reads."""
    if not isinstance(query, exp.Select) or query.find(exp.Join, exp.SetOperation, exp.Subquery):
        return False
    forbidden = (exp.AggFunc, exp.Window, exp.Distinct, exp.Group, exp.Limit, exp.Offset)
    if query.find(*forbidden, exp.Unnest, exp.Explode, exp.Lateral, exp.CTE, exp.Order):
        return False
    return len(table_references(query)) == 1


def unfit_for_substitution(
    query: exp.Query, target: Sequence[str], days: Collection[str] = ()
) -> Unfit | None:
    """Why touched values of the `target` output columns cannot be found; None if they can.

    Of those among `days` only the day counts.
    """
    for kind, reason in _NEVER:
        if query.find(kind):
            return Unfit(reason)
    for node in query.find_all(exp.Subquery, exp.Select):
        if isinstance(node, exp.Select) and _in_condition(node):
            return Unfit("a subquery in a condition or in the select list")
    for join in query.find_all(exp.Join):
        if join.args.get("using") and _aggregates(_source_query(join.this, query)):
            continue  # USING names columns of both sides; grouped ones are checked below
        if _joins_on_aggregate(join, query):
            return Unfit("a join on an aggregated column")
    for distinct in query.find_all(exp.Distinct):
        if distinct.args.get("on"):
            return Unfit("DISTINCT ON")
    for group in query.find_all(exp.Group):
        if group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
            return Unfit("grouping sets")
    for join in query.find_all(exp.Join):
        for word in (join.kind, join.method):
            if word in {"ANTI", "ASOF", "POSITIONAL"}:
                return Unfit(f"{word} JOIN")
    doubt = _moves(query, target)
    if doubt is not None:
        return Unfit(doubt)
    if not windows.stay_inside(query, target, days):
        return Unfit("a window that reaches across partitions")
    return None


_NEVER: tuple[tuple[type[exp.Expression], str], ...] = (
    (exp.Except, "EXCEPT"),
    (exp.Intersect, "INTERSECT"),
    (exp.Limit, "LIMIT"),
    (exp.Offset, "OFFSET"),
    (exp.Fetch, "FETCH"),
    (exp.Exists, "EXISTS"),
    (exp.Rand, "random numbers"),
    (exp.CurrentTimestamp, "the current time"),
    (exp.CurrentDate, "the current date"),
    (exp.TableSample, "a sample"),
    (exp.Pivot, "PIVOT"),
)


def widened(query: exp.Query) -> exp.Query:
    """A copy of a query that hides no output row, and may give some that the query does not."""
    copy = query.copy()
    _widen(copy)
    return copy


def substitutions(query: exp.Query, table: str) -> Iterator[tuple[exp.Query, exp.Table]]:
    """For each occurrence of a table: a widened copy of the query, and that occurrence in it.

    The caller replaces the occurrence by the changed rows.
    """
    count = sum(1 for reference in table_references(query) if _is(reference, table))
    for index in range(count):
        copy = widened(query)
        occurrence = [r for r in table_references(copy) if _is(r, table)][index]
        _make_inner(occurrence)
        yield _without_other_branches(copy, occurrence), occurrence


def differing(query: exp.Query, occurrence: exp.Table, target: Sequence[str]) -> exp.Select | None:
    """The target columns of those joined rows that old and new images do not give alike.

    `query` is a substitution; its occurrence is to be replaced by the changed rows with a column
    OLD. What an output row says is a function of the joined rows' columns that stand anywhere
    but in a join's condition. Rows that agree in them, and in all columns of the other tables,
    cancel out: as many from new images as from old ones mean no change. None where a column's
    table or a join's nature leaves any doubt.
    """
    if not isinstance(query, exp.Select) or not _joins_plainly(query, occurrence):
        return None
    name, kept = occurrence.alias_or_name.lower(), dict[str, exp.Column]()
    sources = {source.alias_or_name.lower() for source in lineage.sources(query)}
    inside_ctes = {id(node) for cte in query.ctes for node in cte.find_all(exp.Column)}
    for column in query.find_all(exp.Column):
        if id(column) in inside_ctes:
            continue
        if column.table.lower() not in sources:
            return None
        if column.table.lower() != name or column.find_ancestor(exp.Join) is None:
            kept[column.sql().lower()] = column
    wanted = [p for p in query.selects if p.alias_or_name.lower() in {t.lower() for t in target}]
    if len(wanted) != len(target) or any(p.find(exp.AggFunc) for p in wanted):
        return None
    sign = exp.func("IF", exp.column(OLD, table=occurrence.alias_or_name), exp.Literal.number(-1),
                    exp.Literal.number(1))  # fmt: skip
    counted = exp.Select(expressions=[p.copy() for p in wanted])
    for part in ("with_", "from_", "joins", "where"):
        counted.set(part, query.args.get(part))
    counted.group_by(*(column.copy() for column in kept.values()), copy=False)
    uneven = exp.NEQ(this=exp.Sum(this=sign), expression=exp.Literal.number(0))
    return counted.having(uneven, copy=False)


def _joins_plainly(query: exp.Select, occurrence: exp.Table) -> bool:
    """Whether a SELECT joins stored tables and CTEs by conditions, the occurrence among them."""
    joins = query.args.get("joins") or []
    sources = lineage.sources(query)
    if not joins or not any(source is occurrence for source in sources):
        return False
    if not all(isinstance(source, exp.Table) for source in sources):
        return False
    if _has_star(query) or query.find(exp.Window) or query.args.get("distinct"):
        return False
    return all(
        join.side in {"", "LEFT"} and join.kind in {"", "INNER"} and join.args.get("on")
        for join in joins
    )


def columns_read(query: exp.Query, available: Sequence[str]) -> list[str]:
    """The columns of a table that a query may read, by name; all of them if it says `*`."""
    if _has_star(query):
        return list(available)
    named = {column.name.lower() for column in query.find_all(exp.Column)}
    # A struct's field is written like a qualified column: its root is the table part.
    named |= {column.table.lower() for column in query.find_all(exp.Column) if column.table}
    named |= {identifier.name.lower() for identifier in query.find_all(exp.Identifier)}
    return [name for name in available if name.lower() in named]


def _has_star(query: exp.Query) -> bool:
    return any(not isinstance(star.parent, exp.Count) for star in query.find_all(exp.Star))


def _is(reference: exp.Table, table: str) -> bool:
    return f"{reference.db}.{reference.name}" == table


def _in_condition(select: exp.Select) -> bool:
    """Whether a SELECT stands anywhere but as the query, a CTE, a FROM/JOIN source or a branch."""
    parent = select.parent
    while isinstance(parent, exp.Subquery | exp.Paren):
        if isinstance(parent.parent, exp.From | exp.Join):
            return False
        parent = parent.parent
    return not (
        parent is None or isinstance(parent, exp.CTE | exp.SetOperation | exp.From | exp.Join)
    )


def _source_query(source: exp.Expr | None, query: exp.Query) -> exp.Query | None:
    """The query behind a FROM or JOIN source: a derived table or a CTE; None for a stored table."""
    if isinstance(source, exp.Subquery):
        inner = source.unnest()
        return inner if isinstance(inner, exp.Query) else None
    if isinstance(source, exp.Table) and not source.db:
        for cte in query.find_all(exp.CTE):
            if cte.alias_or_name == source.name and isinstance(cte.this, exp.Query):
                return cte.this
    return None


def _aggregates(source: exp.Query | None) -> bool:
    return source is not None and source.find(exp.AggFunc, exp.Window, exp.Group) is not None


def _joins_on_aggregate(join: exp.Join, query: exp.Query) -> bool:
    """Whether a join's condition uses a computed column of an aggregating source."""
    select = join.parent
    if not isinstance(select, exp.Select):
        return True
    condition = join.args.get("on")
    columns = list(condition.find_all(exp.Column)) if condition else []
    columns += [exp.column(name.name) for name in join.args.get("using") or ()]
    computed: set[str] = set()
    for source in lineage.sources(select):
        inner = _source_query(source, query)
        if inner is not None and _aggregates(inner):
            computed |= _computed_columns(inner)
    return any(column.name.lower() in computed for column in columns)


def _computed_columns(query: exp.Query) -> set[str]:
    """Output columns that come from an aggregate or a window, in any branch or inner query."""
    return {
        projection.alias_or_name.lower()
        for select in query.find_all(exp.Select)
        for projection in select.expressions
        if projection.find(exp.AggFunc, exp.Window)
    }


def _nullable_aliases(select: exp.Select) -> set[str]:
    """The sources of a SELECT that an outer join may fill with nulls."""
    nullable: set[str] = set()
    seen: list[str] = []
    for source in lineage.sources(select):
        join = source.parent if isinstance(source.parent, exp.Join) else None
        side = join.side if join is not None else ""
        if side in {"LEFT", "FULL"}:
            nullable.add(source.alias_or_name.lower())
        if side in {"RIGHT", "FULL"}:
            nullable.update(seen)
        seen.append(source.alias_or_name.lower())
    return nullable


def _moves(query: exp.Query, target: Sequence[str]) -> str | None:
    """Why the rows of a changed input may belong to a part that they do not name themselves.

    A part that is an aggregate depends on rows that did not change. And a row that loses or finds
    its partner in an outer join may change its part; its old one would not be found by joining with
    the changed rows.
    """
    for name in target:
        for select, value in lineage.passed(query, name):
            if value is None:
                return "a partition or key whose origin cannot be followed"
            if value.find(exp.AggFunc, exp.Window):
                return "a partition or key that is an aggregate"
            nullable = _nullable_aliases(select)
            columns = value.find_all(exp.Column) if nullable else ()
            if any(not column.table or column.table.lower() in nullable for column in columns):
                return "an outer join that may supply the partition or key itself"
    return None


def _widen(query: exp.Query) -> None:
    """Take out everything that could hide an output row when inputs are only partly there."""
    for select in list(query.find_all(exp.Select)):
        select.set("having", None)
        select.set("qualify", None)
        computed = any(
            _aggregates(_source_query(source, query)) for source in lineage.sources(select)
        )
        if computed or _nullable_aliases(select):
            select.set("where", None)


def _without_other_branches(query: exp.Query, occurrence: exp.Table) -> exp.Query:
    """Drop the branches of unions that no changed row reaches: they would name every part."""
    holding: set[str] = set()

    def reached(node: exp.Expr) -> bool:
        return any(
            found is occurrence or (not found.db and found.name in holding)
            for found in node.find_all(exp.Table)
        )

    ctes = list(query.find_all(exp.CTE))
    for _ in ctes:
        holding |= {cte.alias_or_name for cte in ctes if reached(cte.this)}
    for union in list(query.find_all(exp.Union)):
        left, right = union.left, union.right
        if not (isinstance(left, exp.Query) and isinstance(right, exp.Query)):
            continue
        kept = left if not reached(right) else right if not reached(left) else None
        if kept is None or left.is_star or right.is_star:
            continue
        if kept is right:
            _rename(right, [projection.alias_or_name for projection in left.selects])
        if union.args.get("with_"):
            kept.set("with_", union.args["with_"])
        if union is query:
            query = kept.pop()
        else:
            union.replace(kept)
    return query


def _rename(query: exp.Query, names: Sequence[str]) -> None:
    """Give a branch the column names that a union takes from its first branch."""
    first: exp.Expr = query
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    if [projection.alias_or_name for projection in query.selects] != list(names):
        renamed = zip(query.selects, names, strict=True)
        first.set("expressions", [exp.alias_(p.unalias(), name) for p, name in renamed])


def _make_inner(occurrence: exp.Table) -> None:
    """Keep only output rows that a changed row takes part in.

    An outer join that preserves the other side would let all of that side through. The same
    holds for the joins further out, when the occurrence stands in a derived table or a CTE.
    """
    node: exp.Expr = occurrence
    while node.parent is not None:
        parent = node.parent
        if isinstance(parent, exp.Join):
            if parent.side in {"LEFT", "FULL"}:
                parent.set("side", None)
        elif isinstance(parent, exp.From):
            for join in parent.parent.args.get("joins") or [] if parent.parent else []:
                if join.side in {"RIGHT", "FULL"}:
                    join.set("side", "LEFT" if join.side == "FULL" else None)
        elif isinstance(parent, exp.CTE):
            _make_users_inner(parent)
        node = parent


def _make_users_inner(cte: exp.CTE) -> None:
    root = cte.root()
    for reference in root.find_all(exp.Table):
        if not reference.db and reference.name == cte.alias_or_name:
            _make_inner(reference)

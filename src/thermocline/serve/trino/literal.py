"""A list that is known here, written as a query that any engine can run without a table.

The rows travel in one text, so that a list of thousands of columns is a tree of a few nodes. Of a
list that is asked for by name only what the query can see is written: the columns that it names,
and the rows that its plain comparisons leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from thermocline.serve.trino.likeness import Like
from thermocline.sql.guard import QueryRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot import exp

    from thermocline.serve.trino.catalog_tables import Cell, Lake, Listed, Row

_LINE, _CELL, _NULL = 10, 31, 26
"""Characters between rows, between cells, and for no value. No name holds them."""
MOST = 4_000_000
"""Characters of a list: some fifty thousand columns."""


def written(listed: Listed, lake: Lake, catalog: str, mention: exp.Table) -> exp.Select:
    """The query that gives what a mention of a list can see of it."""
    columns = _seen(listed, mention)
    tests = list(_tests(mention, listed.columns))
    rows = [row for row in listed.rows(lake, catalog) if all(test(row[at]) for at, test in tests)]
    places = [at for at, each in enumerate(listed.columns) if each in columns]
    return _query(columns, [tuple(row[at] for at in places) for row in rows])


def _seen(listed: Listed, mention: exp.Table) -> tuple[tuple[str, str], ...]:
    """The columns that the whole statement names, or all where it says *."""
    from sqlglot import exp

    alias = mention.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return listed.visible  # they are renamed by their places
    root = mention.root()
    named = {node.name.lower() for node in root.find_all(exp.Identifier)}
    whole = root.find(exp.Star) is not None
    found = tuple(
        (name, kind)
        for name, kind in listed.columns
        if name in named or (whole and name not in listed.hidden)
    )
    return found or listed.visible[:1]


def _tests(
    mention: exp.Table, columns: Sequence[tuple[str, str]]
) -> Iterable[tuple[int, Callable[[Cell], bool]]]:
    """What the WHERE of the mention's own SELECT demands of its columns.

    Leaving out rows that such a condition refuses is always right: whatever they were joined to,
    the condition would have refused the result too.
    """
    from sqlglot import exp

    select = mention.parent_select
    where = select.args.get("where") if select else None
    if select is None or where is None:
        return
    alone = not select.args.get("joins") and not select.args.get("laterals")
    parts = where.this.flatten() if isinstance(where.this, exp.And) else [where.this]
    for part in parts:
        found = _test(part.unnest())
        if found is None:
            continue
        column, test = found
        mine = column.table.lower() == mention.alias_or_name.lower() if column.table else alone
        text = (column.name.lower(), "varchar")
        if mine and text in columns:
            yield columns.index(text), test


def _test(node: exp.Expr) -> tuple[exp.Column, Callable[[Cell], bool]] | None:
    """A comparison of a column with texts, and nothing else: not a negated one, for example."""
    from sqlglot import exp

    escape = None
    if isinstance(node, exp.Escape) and isinstance(node.expression, exp.Literal):
        escape, node = node.expression.name, node.this
    column = node.this
    sides = {name for name, part in node.args.items() if part}
    if not isinstance(column, exp.Column):
        return None
    if isinstance(node, exp.In) and sides == {"this", "expressions"}:
        texts = [each.name for each in node.expressions if _is_text(each)]
        if len(texts) == len(node.expressions):
            return column, lambda cell: cell in texts
    elif sides == {"this", "expression"} and _is_text(node.expression):
        text = node.expression.name
        if isinstance(node, exp.EQ) and escape is None:
            return column, lambda cell: cell == text
        if type(node) is exp.Like:
            fits = Like(text, escape)
            return column, lambda cell: isinstance(cell, str) and fits(cell)
    return None


def _is_text(node: exp.Expr) -> bool:
    from sqlglot import exp

    return isinstance(node, exp.Literal) and node.is_string


def _query(columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> exp.Select:
    from sqlglot import exp

    if not rows:
        return exp.select(*(_cast(exp.null(), *each) for each in columns)).where(exp.false())
    same = [len({row[at] for row in rows}) == 1 for at in range(len(columns))]
    varied = [at for at, constant in enumerate(same) if not constant]
    lines = chr(_LINE).join(chr(_CELL).join(_cell(row[at]) for at in varied) for row in rows)
    if len(lines) > MOST:
        raise QueryRefused(
            f"The list has {len(rows):,} rows, more than can be given at once.",
            "Ask for one schema or table: WHERE table_schema = '…'.",
        )
    chosen = [
        _cast(_constant(rows[0][at]), *columns[at]) if same[at]
        else _cast(_part(varied.index(at) + 1), *columns[at])
        for at in range(len(columns))
    ]  # fmt: skip
    text = exp.Split(this=exp.Literal.string(lines), expression=_char(_LINE))
    listed = exp.Unnest(
        expressions=[text],
        alias=exp.TableAlias(this=exp.to_identifier("listed"), columns=[exp.to_identifier("line")]),
    )
    return exp.select(*chosen).from_(listed)


def _part(place: int) -> exp.Expr:
    from sqlglot import exp

    part = exp.SplitPart(
        this=exp.column("line"), delimiter=_char(_CELL), part_index=exp.Literal.number(place)
    )
    return exp.Nullif(this=part, expression=_char(_NULL))


def _char(code: int) -> exp.Expr:
    from sqlglot import exp

    return exp.Chr(expressions=[exp.Literal.number(code)])


def _cast(value: exp.Expr, name: str, kind: str) -> exp.Expr:
    from sqlglot import exp

    return exp.alias_(exp.cast(value, kind), name, quoted=True)


def _constant(cell: Cell) -> exp.Expr:
    from sqlglot import exp

    return exp.convert(cell)


def _cell(cell: Cell) -> str:
    if cell is None:
        return chr(_NULL)
    text = str(cell).lower() if isinstance(cell, bool) else str(cell)
    return "".join(char if char.isprintable() else " " for char in text)

"""Write the rows of a catalog table as a query that any engine can run without stored tables.

The rows are in one string, so that a table with thousands of rows is a tree of a few nodes. Only
what the query can see is written: the columns that it names, and the rows that match its simple
comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from thermocline.serve.trino.like_pattern import LikePattern
from thermocline.sql.guard import QueryRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot import exp

    from thermocline.serve.trino.catalog_tables import CatalogListing, CatalogTable, Cell, Row

_LINE, _CELL, _NULL = 10, 31, 26
"""Characters between rows, between cells, and for NULL. No name contains them."""
MAX_CHARACTERS = 4_000_000
"""The maximum size of a table: some fifty thousand columns."""


def build_list_query(
    table: CatalogTable, listing: CatalogListing, catalog: str, reference: exp.Table
) -> exp.Select:
    """Return a query for the part of a catalog table that a reference to it can see."""
    columns = _visible_columns(table, reference)
    tests = list(_row_filters(reference, table.columns))
    rows = [row for row in table.rows(listing, catalog) if all(test(row[at]) for at, test in tests)]
    count_parameters = [at for at, each in enumerate(table.columns) if each in columns]
    return _query(columns, [tuple(row[at] for at in count_parameters) for row in rows])


def _visible_columns(table: CatalogTable, reference: exp.Table) -> tuple[tuple[str, str], ...]:
    """Return the columns that the statement names, or all when it selects *."""
    from sqlglot import exp

    alias = reference.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return table.visible  # they are renamed by position
    root = reference.root()
    named = {node.name.lower() for node in root.find_all(exp.Identifier)}
    has_star = root.find(exp.Star) is not None
    found = tuple(
        (name, kind)
        for name, kind in table.columns
        if name in named or (has_star and name not in table.hidden)
    )
    return found or table.visible[:1]


def _row_filters(
    reference: exp.Table, columns: Sequence[tuple[str, str]]
) -> Iterable[tuple[int, Callable[[Cell], bool]]]:
    """Return filters from the WHERE of the SELECT that reads the table.

    Leaving out rows that fail such a condition is always correct: whatever they are joined to, the
    condition would reject the result too.
    """
    from sqlglot import exp

    select = reference.parent_select
    where = select.args.get("where") if select else None
    if select is None or where is None:
        return
    alone = not select.args.get("joins") and not select.args.get("laterals")
    parts = where.this.flatten() if isinstance(where.this, exp.And) else [where.this]
    for part in parts:
        found = _comparison_filter(part.unnest())
        if found is None:
            continue
        column, test = found
        is_own_column = (
            column.table.lower() == reference.alias_or_name.lower() if column.table else alone
        )
        text = (column.name.lower(), "varchar")
        if is_own_column and text in columns:
            yield columns.index(text), test


def _comparison_filter(node: exp.Expr) -> tuple[exp.Column, Callable[[Cell], bool]] | None:
    """Return the filter of a comparison of a column with texts; None for anything else."""
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
            pattern = LikePattern(text, escape)
            return column, lambda cell: isinstance(cell, str) and pattern.matches(cell)
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
    if len(lines) > MAX_CHARACTERS:
        raise QueryRefused(
            f"The table has {len(rows):,} rows, more than one answer may have.",
            "Select one schema or table: WHERE table_schema = '…'.",
        )
    chosen = [
        _cast(_constant(rows[0][at]), *columns[at]) if same[at]
        else _cast(_part(varied.index(at) + 1), *columns[at])
        for at in range(len(columns))
    ]  # fmt: skip
    text = exp.Split(this=exp.Literal.string(lines), expression=_char(_LINE))
    table = exp.Unnest(
        expressions=[text],
        alias=exp.TableAlias(this=exp.to_identifier("listed"), columns=[exp.to_identifier("line")]),
    )
    return exp.select(*chosen).from_(table)


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

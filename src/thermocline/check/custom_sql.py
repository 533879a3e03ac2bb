"""An author's own SQL rule: read, held to one SELECT, and bound to the tables it may read.

The text is written in DuckDB's dialect. `{object}` is the table that is checked, `{property}` the
rule's column; both become identifiers of the parsed query, never pieces of text. Other tables are
named as in a model ("silver.customers") and are read at the snapshot the caller chose. What
could reach outside of the lake (table functions, paths, unknown functions, statements that are
no SELECT) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from thermocline.check.predicate import RuleError, column
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import quote
from thermocline.engine.query_types import Columns
from thermocline.engine.sql_errors import describe_parse_error
from thermocline.engine.view_rewrite import alias_tables
from thermocline.errors import BadInput

_PLACEHOLDER = re.compile(
    r"""(?P<quote>"?)\$?\{\s*(?P<what>object|table|property|column)\s*\}(?P=quote)"""
)
_OBJECT = "_thermocline_object_"
_PROPERTY = "_thermocline_property_"
_WRITTEN = {
    "object": _OBJECT,
    "table": _OBJECT,
    "property": _PROPERTY,
    "column": _PROPERTY,
}
_LONGEST = 20_000

_REFUSED: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.DML, "changes data"),
    (exp.DDL, "changes tables"),
    (exp.Command, "is more than a query"),
    (exp.Into, "writes a table"),
    (exp.Lock, "locks rows"),
    (exp.Placeholder, "has a parameter"),
    (exp.Parameter, "has a parameter"),
    (exp.SessionParameter, "reads a setting"),
    (exp.TableSample, "looks at a sample"),
    (exp.Columns, "chooses columns by a pattern"),
)


def parse(contract: Contract, rule: Rule) -> exp.Select:
    """The rule's query, still with stand-ins for the tables; RuleError when it is refused."""
    text = rule.argument("query")
    if not isinstance(text, str) or not text.strip():
        raise RuleError("has no query")
    if len(text) > _LONGEST or "\0" in text:
        raise RuleError(f"the query is longer than {_LONGEST:,} characters or has a NUL in it")
    written = _PLACEHOLDER.sub(lambda found: f'"{_WRITTEN[found["what"]]}"', text)
    try:
        statements = sqlglot.parse(written, read="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise RuleError(f"the query cannot be read: {describe_parse_error(error)}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Select):
        raise RuleError("the query must be one SELECT")
    query = statements[0]
    if len(query.selects) != 1 or query.is_star:
        raise RuleError("the query must select one value")
    _hold(query)
    _set_property(contract, rule, query)
    return query


def tables(contract: Contract, query: exp.Select) -> list[str]:
    """The other tables that the query reads, as "layer.name"."""
    names = {_name(table) for table in _sources(query)}
    return sorted(names - {_OBJECT, contract.table})


def bind(
    contract: Contract,
    query: exp.Select,
    relation: exp.Table,
    references: Mapping[str, exp.Table],
) -> exp.Select:
    """A copy of the query that reads the given relations."""
    bound = query.copy()
    sources = _sources(bound)
    try:
        alias_tables(bound, [table for table in sources if table.db])
    except BadInput as error:
        raise RuleError(error.cause) from error
    for table in sources:
        name = _name(table)
        held = relation if name in (_OBJECT, contract.table) else references.get(name)
        if held is None:
            raise RuleError(f"the query reads {quote(name)}, which is not a table of the lake")
        alias = exp.to_identifier(table.alias_or_name, quoted=True)
        replacement = exp.alias_(held.copy(), alias, table=True)
        replacement.set("joins", table.args.get("joins"))
        table.replace(replacement)
    return bound


def translate(
    contract: Contract,
    query: exp.Select,
    relation: exp.Table,
    references: Mapping[str, exp.Table],
    columns: Columns,
) -> exp.Query:
    """Return the query for Spark, with the meaning that DuckDB gives it.

    It is translated as served queries are; RuleError where that cannot be done faithfully.
    `columns` are those of all tables that it reads.
    """
    from thermocline.sql.guard import guard
    from thermocline.sql.translate import translate_tree

    named = query.copy()
    layer, own = contract.table.split(".", 1)
    for table in _sources(named):
        if _name(table) == _OBJECT:
            stored = exp.table_(own, db=layer, quoted=True, alias=table.alias_or_name)
            stored.set("joins", table.args.get("joins"))
            table.replace(stored)
    held = {**references, contract.table: relation}
    try:
        guarded = guard(named.sql("duckdb", identify=True, comments=False))
        if unknown := sorted(set(guarded.tables).difference(held)):
            raise RuleError(
                f"the query reads {quote(unknown[0])}, which is not a table of the lake"
            )
        tree = translate_tree(guarded, "spark", held, columns)
    except BadInput as error:
        raise RuleError(f"the query has no equal on Spark: {error.cause}") from error
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("quoted", True)
    return tree


def of_object(query: exp.Select) -> exp.Select:
    """Have a query read the table that is checked."""
    return query.from_(exp.table_(_OBJECT, quoted=True))


def counted_rows(query: exp.Select) -> exp.Expr | None:
    """The condition of `select count(*) from {object} where …`, over columns of the table.

    Such a rule counts rows of the table that is looked at anyway, and they can be shown.
    """
    where = query.args.get("where")
    parts = {name for name, part in query.args.items() if part} - {"expressions", "where", "from_"}
    sources = _sources(query)
    counts = query.selects[0].unalias()
    whole = isinstance(counts, exp.Count) and isinstance(counts.this, exp.Star)
    if parts or where is None or not whole or len(sources) != 1 or _name(sources[0]) != _OBJECT:
        return None
    if where.find(exp.Query, exp.AggFunc, exp.Window) or sources[0].args.get("joins"):
        return None
    condition: exp.Expr = where.this.copy()
    names = (sources[0].alias or _OBJECT).lower()
    for each in condition.find_all(exp.Column):
        first = each.parts[0]
        if len(each.parts) > 1 and first.name.lower() == names:
            first.pop()
    return condition


def _hold(query: exp.Select) -> None:
    for node in query.walk():
        for refused, why in _REFUSED:
            if isinstance(node, refused):
                raise RuleError(f"the query {why}, which a rule may not")
        if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
            raise RuleError(f"the function {quote(node.name)} is not one that every engine has")
        if isinstance(node, exp.With) and node.recursive:
            raise RuleError("the query is recursive, which a rule may not be")
        if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
            raise RuleError(f"the query reads {quote(node.sql('duckdb'))}, which is not a table")
    for literal in query.find_all(exp.Literal):
        if literal.is_string and (_OBJECT in literal.name or _PROPERTY in literal.name):
            raise RuleError("{object} and {property} are names, they have no place in a text")


def _set_property(contract: Contract, rule: Rule, query: exp.Select) -> None:
    used = [each for each in query.find_all(exp.Column) if each.name == _PROPERTY]
    stray = [each for each in query.find_all(exp.Identifier) if each.name == _PROPERTY]
    if not stray:
        return
    if len(used) != len(stray):
        raise RuleError("{property} stands where no column can")
    if len(rule.columns) != 1:
        raise RuleError("the query says {property}, but the rule does not belong to one column")
    value, _ = column(contract, rule.columns[0])
    for each in used:
        named = value.copy()
        if each.table:
            root = next(iter(named.find_all(exp.Column)))
            root.set("table", each.args["table"].copy())
        each.replace(named)


def _sources(query: exp.Select) -> list[exp.Table]:
    """The tables that the query reads, without the names its WITH gives."""
    own = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    return [
        table
        for table in query.find_all(exp.Table)
        if table.args.get("db") is not None or table.name.lower() not in own
    ]


def _name(table: exp.Table) -> str:
    return ".".join(part.name for part in table.parts)

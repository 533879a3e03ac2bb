"""Custom SQL rules: parse them, restrict them to one SELECT, and bind them to allowed tables.

The text is written in DuckDB's dialect. `{object}` is the table that is checked, `{property}` the
rule's column; both become identifiers of the parsed query, never pieces of text. Other tables are
named as in a model ("silver.customers") and are read at the snapshot that the caller pins.
Anything that could reach outside of the lake (table functions, paths, unknown functions,
statements other than SELECT) is refused.
"""

from __future__ import annotations

import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from thermocline.check.checked_table import CheckedTable
from thermocline.check.predicate import RuleError, column
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import quote
from thermocline.engine.sql_errors import describe_parse_error
from thermocline.engine.view_rewrite import alias_tables
from thermocline.errors import BadInput

_PLACEHOLDER = re.compile(
    r"""(?P<quote>"?)\$?\{\s*(?P<what>object|table|property|column)\s*\}(?P=quote)"""
)
_OBJECT = "_thermocline_object_"
_PROPERTY = "_thermocline_property_"
_STAND_INS = {
    "object": _OBJECT,
    "table": _OBJECT,
    "property": _PROPERTY,
    "column": _PROPERTY,
}
_MAX_LENGTH = 20_000

_REFUSED: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.DML, "changes data"),
    (exp.DDL, "changes tables"),
    (exp.Command, "is more than a query"),
    (exp.Into, "writes a table"),
    (exp.Lock, "locks rows"),
    (exp.Placeholder, "has a parameter"),
    (exp.Parameter, "has a parameter"),
    (exp.SessionParameter, "reads a setting"),
    (exp.TableSample, "reads a sample"),
    (exp.Columns, "chooses columns by a pattern"),
)


def parse(contract: Contract, rule: Rule) -> exp.Select:
    """Parse the rule's query, with stand-ins for names; raise RuleError if it is refused."""
    text = rule.argument("query")
    if not isinstance(text, str) or not text.strip():
        raise RuleError("has no query")
    if len(text) > _MAX_LENGTH or "\0" in text:
        raise RuleError(f"the query is longer than {_MAX_LENGTH:,} characters or has a NUL in it")
    written = _PLACEHOLDER.sub(lambda found: f'"{_STAND_INS[found["what"]]}"', text)
    try:
        statements = sqlglot.parse(written, read="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise RuleError(f"the query cannot be read: {describe_parse_error(error)}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Select):
        raise RuleError("the query must be one SELECT")
    query = statements[0]
    if len(query.selects) != 1 or query.is_star:
        raise RuleError("the query must select one value")
    _require_allowed(query)
    _set_property(contract, rule, query)
    return query


def find_tables(contract: Contract, query: exp.Select) -> list[str]:
    """Return the other tables that the query reads, as "layer.name"."""
    names = {_full_name(table) for table in _find_sources(query)}
    return sorted(names - {_OBJECT, contract.table})


def bind(checked: CheckedTable, query: exp.Select) -> exp.Select:
    """Return a copy of the query that reads the relations of the checked table."""
    bound = query.copy()
    sources = _find_sources(bound)
    try:
        alias_tables(bound, [table for table in sources if table.db])
    except BadInput as error:
        raise RuleError(error.cause) from error
    for table in sources:
        name = _full_name(table)
        is_checked = name in (_OBJECT, checked.contract.table)
        source = checked.relation if is_checked else checked.references.get(name)
        if source is None:
            raise RuleError(f"the query reads {quote(name)}, which is not a table of the lake")
        alias = exp.to_identifier(table.alias_or_name, quoted=True)
        replacement = exp.alias_(source.copy(), alias, table=True)
        replacement.set("joins", table.args.get("joins"))
        table.replace(replacement)
    return bound


def translate(checked: CheckedTable, query: exp.Select) -> exp.Query:
    """Return the query for Spark, with DuckDB's semantics.

    It is translated like served queries; raise RuleError if no faithful translation exists.
    """
    from thermocline.sql.guard import guard
    from thermocline.sql.translate import translate_tree

    named = query.copy()
    layer, own = checked.contract.table.split(".", 1)
    for table in _find_sources(named):
        if _full_name(table) == _OBJECT:
            stored = exp.table_(own, db=layer, quoted=True, alias=table.alias_or_name)
            stored.set("joins", table.args.get("joins"))
            table.replace(stored)
    relations = {**checked.references, checked.contract.table: checked.relation}
    try:
        guarded = guard(named.sql("duckdb", identify=True, comments=False))
        if unknown := sorted(set(guarded.tables).difference(relations)):
            raise RuleError(
                f"the query reads {quote(unknown[0])}, which is not a table of the lake"
            )
        tree = translate_tree(guarded, "spark", relations, checked.columns)
    except BadInput as error:
        raise RuleError(f"the query has no equivalent on Spark: {error.cause}") from error
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("quoted", True)
    return tree


def read_checked_table(query: exp.Select) -> exp.Select:
    """Let a query read the checked table."""
    return query.from_(exp.table_(_OBJECT, quoted=True))


def find_row_condition(query: exp.Select) -> exp.Expr | None:
    """Return the condition of `select count(*) from {object} where …`; None for other queries.

    Such a rule counts rows of the checked table, in the same pass as other rules, and these rows
    can be shown.
    """
    where = query.args.get("where")
    parts = {name for name, part in query.args.items() if part} - {"expressions", "where", "from_"}
    sources = _find_sources(query)
    counts = query.selects[0].unalias()
    whole = isinstance(counts, exp.Count) and isinstance(counts.this, exp.Star)
    if (
        parts
        or where is None
        or not whole
        or len(sources) != 1
        or _full_name(sources[0]) != _OBJECT
    ):
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


def _require_allowed(query: exp.Select) -> None:
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
            raise RuleError("{object} and {property} are names, they must not be inside a text")


def _set_property(contract: Contract, rule: Rule, query: exp.Select) -> None:
    used = [each for each in query.find_all(exp.Column) if each.name == _PROPERTY]
    stray = [each for each in query.find_all(exp.Identifier) if each.name == _PROPERTY]
    if not stray:
        return
    if len(used) != len(stray):
        raise RuleError("{property} is used where no column is allowed")
    if len(rule.columns) != 1:
        raise RuleError("the query says {property}, but the rule does not belong to one column")
    value, _ = column(contract, rule.columns[0])
    for each in used:
        named = value.copy()
        if each.table:
            root = next(iter(named.find_all(exp.Column)))
            root.set("table", each.args["table"].copy())
        each.replace(named)


def _find_sources(query: exp.Select) -> list[exp.Table]:
    """Return the tables that the query reads, without its CTEs."""
    own = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    return [
        table
        for table in query.find_all(exp.Table)
        if table.args.get("db") is not None or table.name.lower() not in own
    ]


def _full_name(table: exp.Table) -> str:
    return ".".join(part.name for part in table.parts)

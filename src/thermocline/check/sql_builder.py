"""Build the SQL of checks as expressions, and render it in the dialect of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from thermocline.check import custom_sql
from thermocline.check.checked_table import CheckedTable
from thermocline.check.predicate import RuleError, build_presence, build_violation, column
from thermocline.check.rules import freshness_column
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import quote
from thermocline.contract.types import List, Map, Struct
from thermocline.engine import duck_sql, spark_sql

ROWS = "_rows"
_HERE = "_here"
_SAMPLE = 5


def to_sql(expression: exp.Expr, dialect: str) -> str:
    """Render an expression as SQL; raise RuleError if the dialect does not support it."""
    if dialect == "duckdb":
        expression = expression.copy()
        duck_sql.work_around_bugs(expression)
    try:
        options: dict[str, Any] = {"comments": False, "unsupported_level": ErrorLevel.RAISE}
        if dialect == "spark":
            text = spark_sql.to_sql(expression, **options)
        else:
            text = expression.sql(dialect=dialect, **options)
    except SqlglotError as error:
        raise RuleError(f"cannot be written for {dialect}: {error}") from error
    if dialect != "spark" or "${" not in text:
        return text
    # Spark replaces ${name} in a statement's text before it parses it, so a value could read a
    # setting. In a string the dollar is written by its code; a name cannot be escaped.
    for name in expression.find_all(exp.Identifier):
        if "${" in name.name:
            raise RuleError(f"Spark cannot read the name {quote(name.name)}")
    return text.replace("${", "\\u0024{")


def build_measure_query(
    table: CheckedTable, measured: Mapping[str, Rule]
) -> tuple[exp.Select, dict[str, RuleError]]:
    """Build one statement that measures every rule under its alias; also return refused rules.

    Row-level rules are aggregated in one pass; rules that group or join become scalar subqueries.
    The aggregates are in a subquery of their own, so that a custom rule sees only the columns of
    the tables that it names.
    """
    aggregates: list[exp.Expr] = [exp.alias_(exp.Count(this=exp.Star()), ROWS, quoted=True)]
    outputs: list[exp.Expr] = [exp.column(ROWS, quoted=True)]
    refused: dict[str, RuleError] = {}
    for alias, rule in measured.items():
        try:
            metric = _build_metric(table, rule)
            to_sql(metric, table.dialect)
        except RuleError as error:
            refused[alias] = error
            continue
        if isinstance(metric, exp.Subquery):
            outputs.append(exp.alias_(metric, alias, quoted=True))
        else:
            aggregates.append(exp.alias_(metric, alias, quoted=True))
            outputs.append(exp.column(alias, quoted=True))
    seen = exp.select(*aggregates).from_(table.relation.copy()).subquery("_seen")
    return exp.select(*outputs).from_(seen), refused


def build_sample_query(table: CheckedTable, rule: Rule) -> exp.Query | None:
    """Build the query for a few violating rows; None for a rule that is not about rows."""
    contract = table.contract
    if rule.kind == "duplicates":
        return _sample_repeats(table, rule)
    if rule.kind == "sql":
        condition = custom_sql.find_row_condition(custom_sql.parse(contract, rule))
    elif rule.kind == "reference":
        condition = _build_orphan_condition(table, rule)
    elif rule.is_row_level:
        condition = build_violation(contract, rule, table.dialect)
    else:
        return None
    if condition is None:
        return None
    key = contract.shape.key if contract.key else ()
    offending = list(rule.columns)
    if rule.kind == "sql":
        named = {each.parts[0].name.lower() for each in condition.find_all(exp.Column)}
        offending = [c.name for c in contract.table_columns if c.name.lower() in named]
    shown_columns = [
        exp.alias_(column(contract, name)[0], name, quoted=True)
        for name in dict.fromkeys((*key, *offending))
    ]
    if not shown_columns:
        return None
    order = _build_order(contract, key or offending)
    if rule.kind == "sql" and table.dialect == "spark":
        stored = (
            custom_sql.read_checked_table(exp.select(*shown_columns))
            .where(condition)
            .limit(_SAMPLE)
        )
        stored = stored.order_by(*order) if order else stored
        try:
            return custom_sql.translate(table, stored)
        except RuleError:
            return None  # the outcome is valid without a sample
    query = exp.select(*shown_columns).from_(_alias_checked(table)).where(condition).limit(_SAMPLE)
    return query.order_by(*order) if order else query


def build_reasons(contract: Contract, rules: Mapping[str, Rule], dialect: str) -> exp.Expr:
    """Build an array of the reasons whose rules the row violates."""
    text = exp.DataType.build("VARCHAR[]", dialect="duckdb")
    none = exp.cast(exp.Array(expressions=[]), text)
    broken = {reason: build_violation(contract, rule, dialect) for reason, rule in rules.items()}
    if not broken:
        return none
    reasons = [exp.Case().when(when, exp.Literal.string(why)) for why, when in broken.items()]
    # Most rows violate no rule: they get the empty result before any array is built.
    found = exp.ArrayCompact(this=exp.Array(expressions=reasons))
    return exp.Case().when(exp.or_(*broken.values()), found).else_(none)


def build_any_violation(contract: Contract, rules: Iterable[Rule], dialect: str) -> exp.Expr:
    """Build the condition that a row violates any of the rules; it is never null."""
    found = [build_violation(contract, rule, dialect) for rule in rules]
    return exp.func("COALESCE", exp.or_(*found), exp.false()) if found else exp.false()


def _build_metric(table: CheckedTable, rule: Rule) -> exp.Expr:
    """Build the value to compare with the rule's bounds: an aggregate, or a subquery."""
    contract = table.contract
    if rule.kind == "row_count":
        return exp.Count(this=exp.Star())
    if rule.kind == "missing" and len(rule.columns) == 1 and not rule.argument("values"):
        # Counting values needs no condition, and DuckDB answers it from file statistics.
        value, _ = column(contract, rule.columns[0])
        return exp.Sub(this=exp.Count(this=exp.Star()), expression=exp.Count(this=value))
    if rule.is_row_level:
        return _build_count(build_violation(contract, rule, table.dialect))
    if rule.kind == "freshness":
        return _build_newest(contract, rule)
    if rule.kind == "duplicates":
        return _count_repeats(table, rule)
    if rule.kind == "reference":
        orphan = _build_orphan_condition(table, rule)
        return (
            exp.select(exp.Count(this=exp.Star()))
            .from_(_alias_checked(table))
            .where(orphan)
            .subquery()
        )
    if rule.kind == "sql":
        query = custom_sql.parse(contract, rule)
        if table.dialect == "spark":
            return custom_sql.translate(table, query).subquery()
        condition = custom_sql.find_row_condition(query)
        if condition is not None:
            return _build_count(condition)
        return custom_sql.bind(table, query).subquery()
    raise RuleError(f"there is no rule of kind {quote(rule.kind)}")


def _build_count(condition: exp.Expr) -> exp.Expr:
    # Not count_if: for an empty table DuckDB answers it with null.
    return exp.Count(this=exp.Case().when(condition, exp.Literal.number(1)))


def _build_newest(contract: Contract, rule: Rule) -> exp.Expr:
    """Build the newest moment in microseconds since 1970, which all engines return equally."""
    name = freshness_column(contract, rule)
    if name is None:
        raise RuleError("names no column")
    value, type_ = column(contract, name)
    if str(type_) not in ("date", "timestamp", "timestamptz"):
        raise RuleError(f"a {type_} column does not say when a row was made")
    moment = exp.DataType.build("TIMESTAMPTZ", dialect="duckdb")
    return exp.UnixMicros(this=exp.cast(exp.Max(this=value), moment))


def _count_repeats(table: CheckedTable, rule: Rule) -> exp.Subquery:
    """Count the rows that share the columns with another row; rows with a null share none.

    Grouped rather than count(distinct …): DuckDB takes the same time for both, Spark would copy
    every row once for each distinct count in a statement.
    """
    if not rule.columns:
        raise RuleError("names no column")
    contract = table.contract
    columns = [column(contract, name)[0] for name in rule.columns]
    count = exp.Count(this=exp.Star())
    groups = (
        exp.select(exp.alias_(count, "n"))
        .from_(table.relation.copy())
        .where(build_presence(contract, rule.columns))
        .group_by(*columns)
        .having(_exceeds_one(count))
        .subquery("g")
    )
    total = exp.Coalesce(this=exp.Sum(this=exp.column("n")), expressions=[exp.Literal.number(0)])
    return exp.select(exp.cast(total, "BIGINT")).from_(groups).subquery()


def _exceeds_one(count: exp.Expr) -> exp.Expr:
    return exp.GT(this=count.copy(), expression=exp.Literal.number(1))


def _sample_repeats(table: CheckedTable, rule: Rule) -> exp.Select:
    contract = table.contract
    columns = [column(contract, name)[0] for name in rule.columns]
    count = exp.Count(this=exp.Star())
    named = [
        exp.alias_(value.copy(), name, quoted=True)
        for name, value in zip(rule.columns, columns, strict=True)
    ]
    return (
        exp.select(*named, exp.alias_(count, ROWS, quoted=True))
        .from_(table.relation.copy())
        .where(build_presence(contract, rule.columns))
        .group_by(*columns)
        .having(_exceeds_one(count))
        .order_by(
            exp.Ordered(this=count.copy(), desc=True, nulls_first=False),
            *_build_order(contract, rule.columns),
        )
        .limit(_SAMPLE)
    )


def _build_orphan_condition(table: CheckedTable, rule: Rule) -> exp.Expr:
    """Build the condition that a row refers to a row that the other table does not have."""
    contract = table.contract
    name = rule.argument("table")
    others = rule.argument("columns") or rule.columns
    if not rule.columns or not name or len(others) != len(rule.columns):
        raise RuleError("a reference needs a table and as many of its columns as it has itself")
    target = table.references.get(name) or (table.relation if name == contract.table else None)
    if target is None:
        raise RuleError(f"refers to {quote(name)}, which is not a table of the lake")
    there = exp.alias_(target.copy(), "_there", table=True)
    pairs = [
        exp.EQ(
            this=exp.column(other, table="_there", quoted=True),
            expression=_qualify_checked(column(contract, own)[0]),
        )
        for own, other in zip(rule.columns, others, strict=True)
    ]
    found = exp.select(exp.Literal.number(1)).from_(there).where(exp.and_(*pairs))
    return exp.and_(build_presence(contract, rule.columns), exp.Exists(this=found).not_())


def _alias_checked(table: CheckedTable) -> exp.Expr:
    return exp.alias_(table.relation.copy(), _HERE, table=True)


def _qualify_checked(value: exp.Expr) -> exp.Expr:
    """Qualify a column by the checked relation, because another table may have it too."""
    for each in value.find_all(exp.Column):
        each.set("table", exp.to_identifier(_HERE))
    return value


def _build_order(contract: Contract, names: Iterable[str]) -> list[exp.Ordered]:
    """Return an engine-independent order of a sample, without nested values."""
    columns = (column(contract, name) for name in names)
    return [
        exp.Ordered(this=value, nulls_first=True)
        for value, type_ in columns
        if not isinstance(type_, Struct | List | Map)
    ]

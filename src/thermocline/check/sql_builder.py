"""The SQL of a check, built once as expressions and written in the dialect of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from thermocline.check import custom_sql
from thermocline.check.predicate import RuleError, breaks, column, present
from thermocline.check.rules import freshness_column
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import quote
from thermocline.contract.types import List, Map, Struct
from thermocline.engine import duck_sql, spark_sql
from thermocline.engine.query_types import Columns
from thermocline.errors import BadInput

ROWS = "_rows"
_HERE = "_here"
_SAMPLE = 5


def table(name: str, dialect: str) -> exp.Table:
    """The relation of that name, each part quoted."""
    try:
        found = exp.to_table(name, dialect=dialect)
        parts = found.parts
    except (SqlglotError, AttributeError) as error:
        raise BadInput(f"{quote(name)} is not the name of a table", "Quote its parts.") from error
    if not all(isinstance(part, exp.Identifier) for part in parts):
        raise BadInput(f"{quote(name)} is not the name of a table", "Quote its parts.")
    for part in parts:
        part.set("quoted", True)
    return found


def write(expression: exp.Expr, dialect: str) -> str:
    """The expression as SQL text; RuleError when the engine has no words for it."""
    if dialect == "duckdb":
        expression = expression.copy()
        duck_sql.work_around_bugs(expression)
    try:
        how: dict[str, Any] = {"comments": False, "unsupported_level": ErrorLevel.RAISE}
        if dialect == "spark":
            text = spark_sql.to_sql(expression, **how)
        else:
            text = expression.sql(dialect=dialect, **how)
    except SqlglotError as error:
        raise RuleError(f"cannot be written for {dialect}: {error}") from error
    if dialect != "spark" or "${" not in text:
        return text
    # Spark replaces ${name} in the text of a statement before it parses it, so that a value could
    # read a setting. In a string the dollar is written by its code; a name cannot be escaped.
    for name in expression.find_all(exp.Identifier):
        if "${" in name.name:
            raise RuleError(f"Spark cannot read the name {quote(name.name)}")
    return text.replace("${", "\\u0024{")


def measure(
    contract: Contract,
    measured: Mapping[str, Rule],
    relation: exp.Table,
    references: Mapping[str, exp.Table],
    dialect: str,
    columns: Columns,
) -> tuple[exp.Select, dict[str, RuleError]]:
    """One statement that measures every rule under its alias, and the rules that it cannot.

    What needs one look at each row is aggregated together; what has to group or join is a scalar
    subquery beside it. The aggregates come from a subquery of their own, so that a custom rule
    sees no column but those of the tables it names.
    """
    aggregates: list[exp.Expr] = [exp.alias_(exp.Count(this=exp.Star()), ROWS, quoted=True)]
    outputs: list[exp.Expr] = [exp.column(ROWS, quoted=True)]
    refused: dict[str, RuleError] = {}
    for alias, rule in measured.items():
        try:
            metric = _metric(contract, rule, relation, references, dialect, columns)
            write(metric, dialect)
        except RuleError as error:
            refused[alias] = error
            continue
        if isinstance(metric, exp.Subquery):
            outputs.append(exp.alias_(metric, alias, quoted=True))
        else:
            aggregates.append(exp.alias_(metric, alias, quoted=True))
            outputs.append(exp.column(alias, quoted=True))
    seen = exp.select(*aggregates).from_(relation.copy()).subquery("_seen")
    return exp.select(*outputs).from_(seen), refused


def sample(
    contract: Contract,
    rule: Rule,
    relation: exp.Table,
    references: Mapping[str, exp.Table],
    dialect: str,
    columns: Columns,
) -> exp.Query | None:
    """A few of the rows that break the rule, or None for a rule that is not about rows."""
    if rule.kind == "duplicates":
        return _repeated(contract, rule, relation)
    if rule.kind == "sql":
        condition = custom_sql.counted_rows(custom_sql.parse(contract, rule))
    elif rule.kind == "reference":
        condition = _orphan(contract, rule, relation, references)
    elif rule.is_row_level:
        condition = breaks(contract, rule, dialect)
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
    order = _order(contract, key or offending)
    if rule.kind == "sql" and dialect == "spark":
        stored = custom_sql.of_object(exp.select(*shown_columns)).where(condition).limit(_SAMPLE)
        stored = stored.order_by(*order) if order else stored
        try:
            return custom_sql.translate(contract, stored, relation, references, columns)
        except RuleError:
            return None  # the verdict stands without rows to show
    query = exp.select(*shown_columns).from_(_here(relation)).where(condition).limit(_SAMPLE)
    return query.order_by(*order) if order else query


def reasons(contract: Contract, rules: Mapping[str, Rule], dialect: str) -> exp.Expr:
    """An array of the given reasons, each there when the row breaks its rule."""
    text = exp.DataType.build("VARCHAR[]", dialect="duckdb")
    none = exp.cast(exp.Array(expressions=[]), text)
    broken = {reason: breaks(contract, rule, dialect) for reason, rule in rules.items()}
    if not broken:
        return none
    said = [exp.Case().when(when, exp.Literal.string(why)) for why, when in broken.items()]
    # Most rows break nothing: they are told so before any array is built.
    found = exp.ArrayCompact(this=exp.Array(expressions=said))
    return exp.Case().when(exp.or_(*broken.values()), found).else_(none)


def broken(contract: Contract, rules: Iterable[Rule], dialect: str) -> exp.Expr:
    """Whether a row breaks any of the rules; never null."""
    found = [breaks(contract, rule, dialect) for rule in rules]
    return exp.func("COALESCE", exp.or_(*found), exp.false()) if found else exp.false()


def _metric(
    contract: Contract,
    rule: Rule,
    relation: exp.Table,
    references: Mapping[str, exp.Table],
    dialect: str,
    columns: Columns,
) -> exp.Expr:
    """What is compared with the rule's bounds: an aggregate of the relation, or a subquery."""
    if rule.kind == "row_count":
        return exp.Count(this=exp.Star())
    if rule.kind == "missing" and len(rule.columns) == 1 and not rule.argument("values"):
        # Counting values needs no condition, and DuckDB answers it from file statistics.
        value, _ = column(contract, rule.columns[0])
        return exp.Sub(this=exp.Count(this=exp.Star()), expression=exp.Count(this=value))
    if rule.is_row_level:
        return _count(breaks(contract, rule, dialect))
    if rule.kind == "freshness":
        return _newest(contract, rule)
    if rule.kind == "duplicates":
        return _repeats(contract, rule, relation)
    if rule.kind == "reference":
        orphan = _orphan(contract, rule, relation, references)
        return (
            exp.select(exp.Count(this=exp.Star())).from_(_here(relation)).where(orphan).subquery()
        )
    if rule.kind == "sql":
        query = custom_sql.parse(contract, rule)
        if dialect == "spark":
            return custom_sql.translate(contract, query, relation, references, columns).subquery()
        condition = custom_sql.counted_rows(query)
        if condition is not None:
            return _count(condition)
        return custom_sql.bind(contract, query, relation, references).subquery()
    raise RuleError(f"there is no rule of kind {quote(rule.kind)}")


def _count(condition: exp.Expr) -> exp.Expr:
    # Not count_if: for an empty table DuckDB answers it with null.
    return exp.Count(this=exp.Case().when(condition, exp.Literal.number(1)))


def _newest(contract: Contract, rule: Rule) -> exp.Expr:
    """The newest moment in microseconds since 1970: every engine returns that alike."""
    name = freshness_column(contract, rule)
    if name is None:
        raise RuleError("names no column")
    value, type_ = column(contract, name)
    if str(type_) not in ("date", "timestamp", "timestamptz"):
        raise RuleError(f"a {type_} column does not say when a row was made")
    moment = exp.DataType.build("TIMESTAMPTZ", dialect="duckdb")
    return exp.UnixMicros(this=exp.cast(exp.Max(this=value), moment))


def _repeats(contract: Contract, rule: Rule, relation: exp.Table) -> exp.Subquery:
    """How many rows share the columns with another row; a row that lacks one of them shares none.

    Grouped rather than count(distinct …): DuckDB takes the same time for both, Spark would copy
    every row once for each distinct count in a statement.
    """
    if not rule.columns:
        raise RuleError("names no column")
    columns = [column(contract, name)[0] for name in rule.columns]
    count = exp.Count(this=exp.Star())
    groups = (
        exp.select(exp.alias_(count, "n"))
        .from_(relation.copy())
        .where(present(contract, rule.columns))
        .group_by(*columns)
        .having(_more_than_one(count))
        .subquery("g")
    )
    total = exp.Coalesce(this=exp.Sum(this=exp.column("n")), expressions=[exp.Literal.number(0)])
    return exp.select(exp.cast(total, "BIGINT")).from_(groups).subquery()


def _more_than_one(count: exp.Expr) -> exp.Expr:
    return exp.GT(this=count.copy(), expression=exp.Literal.number(1))


def _repeated(contract: Contract, rule: Rule, relation: exp.Table) -> exp.Select:
    columns = [column(contract, name)[0] for name in rule.columns]
    count = exp.Count(this=exp.Star())
    named = [
        exp.alias_(value.copy(), name, quoted=True)
        for name, value in zip(rule.columns, columns, strict=True)
    ]
    return (
        exp.select(*named, exp.alias_(count, ROWS, quoted=True))
        .from_(relation.copy())
        .where(present(contract, rule.columns))
        .group_by(*columns)
        .having(_more_than_one(count))
        .order_by(
            exp.Ordered(this=count.copy(), desc=True, nulls_first=False),
            *_order(contract, rule.columns),
        )
        .limit(_SAMPLE)
    )


def _orphan(
    contract: Contract,
    rule: Rule,
    relation: exp.Table,
    references: Mapping[str, exp.Table],
) -> exp.Expr:
    """The condition that a row names something the other table does not have."""
    name = rule.argument("table")
    others = rule.argument("columns") or rule.columns
    if not rule.columns or not name or len(others) != len(rule.columns):
        raise RuleError("a reference needs a table and as many of its columns as it has itself")
    target = references.get(name) or (relation if name == contract.table else None)
    if target is None:
        raise RuleError(f"refers to {quote(name)}, which is not a table of the lake")
    there = exp.alias_(target.copy(), "_there", table=True)
    pairs = [
        exp.EQ(
            this=exp.column(other, table="_there", quoted=True),
            expression=_outer(column(contract, own)[0]),
        )
        for own, other in zip(rule.columns, others, strict=True)
    ]
    found = exp.select(exp.Literal.number(1)).from_(there).where(exp.and_(*pairs))
    return exp.and_(present(contract, rule.columns), exp.Exists(this=found).not_())


def _here(relation: exp.Table) -> exp.Expr:
    return exp.alias_(relation.copy(), _HERE, table=True)


def _outer(value: exp.Expr) -> exp.Expr:
    """The column as one of the checked relation, where another table may have it too."""
    for each in value.find_all(exp.Column):
        each.set("table", exp.to_identifier(_HERE))
    return value


def _order(contract: Contract, names: Iterable[str]) -> list[exp.Ordered]:
    """The order of a sample, the same on every engine. Not every engine can sort nested values."""
    columns = (column(contract, name) for name in names)
    return [
        exp.Ordered(this=value, nulls_first=True)
        for value, type_ in columns
        if not isinstance(type_, Struct | List | Map)
    ]

"""A guarded question as SQL of the engine that is to answer it, with the same answer everywhere.

The question's own tree is left as it is. Where the engine's dialect is the one it is written in,
only its tables are replaced. Otherwise it is first made plain (each column with its table, aliases
and stars written out), then said in the other dialect rule by rule; see `dialect`. What was not
found to mean the same is refused as Unfaithful, with the construct named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, cast

from thermocline.engine import duck_sql
from thermocline.engine.query_types import schema
from thermocline.engine.view_rewrite import alias_tables
from thermocline.sql.dialect import qualify, signed_zero, utc
from thermocline.sql.dialect.rewrite import Unfaithful, unfaithful
from thermocline.sql.guard import SUBSTITUTION

if TYPE_CHECKING:
    from sqlglot import exp

    from thermocline.engine.query_types import Columns
    from thermocline.sql.guard import Question

__all__ = ["Engine", "Unfaithful", "plainly", "translate", "translate_tree", "undetermined"]

Engine = Literal["duckdb", "spark", "trino"]
LONGEST = 2_000_000
"""Characters of a translation. Saying one construct by several can make a text grow."""

_STORED = "stored"
"""Under this name a node remembers which stored table it mentions."""


def translate(
    question: Question,
    to: Engine,
    names: Mapping[str, exp.Expr | str],
    columns: Columns | None = None,
) -> str:
    """The question as the engine's SQL. `names` says what stands for each stored table.

    A text is a view's name, or for Trino a table as one writes it there (`lake.a.b FOR VERSION AS
    OF 1`); an expression is put in as it is. `columns` are the tables' columns at the snapshots
    that will be read, with their types: without them only what is the same for every type can be
    translated. Raises Unfaithful.
    """
    try:
        tree = translate_tree(question, to, names, columns)
        sql = _written(tree, to, identify=to != question.dialect)
    except RecursionError:
        unfaithful("a query nested so deeply")
    if to == "spark" and SUBSTITUTION in sql:
        unfaithful(f"a text with {SUBSTITUTION}", "Spark takes it for a variable")
    if len(sql) > LONGEST:
        unfaithful("a query of this length", "it would grow too long")
    return sql


def translate_tree(
    question: Question,
    to: Engine,
    names: Mapping[str, exp.Expr | str],
    columns: Columns | None = None,
) -> exp.Query:
    """Return the translation as a tree of the engine's dialect, to be part of a larger one."""
    try:
        tree = _named(question)
        if to == question.dialect:
            alias_tables(tree, _mentions(tree))
            if to == "trino":
                signed_zero.forget_signs(tree, to, schema(columns or {}))
        else:
            spelt = _spelt(tree, question.dialect, columns or {})
            tree = _said(tree, question.dialect, to, columns or {})
            _spell_results(tree, spelt)
        if to == "duckdb":
            utc.without_zones(tree, lambda table: table.meta.get(_STORED), columns or {})
            duck_sql.mended(tree)
        _replace_tables(tree, names, to)
    except RecursionError:
        unfaithful("a query nested so deeply")
    return tree


def plainly(question: Question, columns: Columns) -> exp.Query:
    """A question of DuckDB's dialect made plain, in the same dialect; its types are known.

    Each column has its table, each result its name, and stars and aliases are written out. Raises
    Unfaithful, where a name cannot be told.
    """
    tree = _named(question)
    spelt = _spelt(tree, question.dialect, columns)
    alias_tables(tree, _mentions(tree))
    tree = qualify.made(tree, question.dialect, schema(columns))
    _spell_results(tree, spelt)
    return tree


def undetermined(question: Question) -> str | None:
    """Why two right answers to the question may differ; None when there is only one.

    The order of rows that no ORDER BY asks for counts for nothing here: answers are compared as
    sets. It is rather about which rows or values they are.
    """
    from sqlglot import exp

    for node in question.tree.walk():
        if isinstance(node, exp.Limit | exp.Offset | exp.Fetch):
            return "LIMIT keeps some of the rows, and others may be as good"
        if isinstance(node, _FREE):
            return f"{node.sql_name().lower()} may take any of several values"
        if isinstance(node, exp.Distinct) and node.args.get("on"):
            return "DISTINCT ON keeps any of several rows"
        if isinstance(node, exp.TableSample):
            return "a sample is another one each time"
        if isinstance(node, exp.Window) and not isinstance(_innermost(node), _ORDERLESS):
            return "a window may see rows in any order that its ORDER BY leaves open"
        if isinstance(node, exp.Anonymous) and node.name.lower() in _FREE_NAMES:
            return f"{node.name.lower()} may take any of several values"
    return None


# Steps --------------------------------------------------------------------------------------------


def _named(question: Question) -> exp.Query:
    """A copy that is ours to change; its results have the names that they are to have."""
    tree = _copied(question)
    _name_results(tree, question.dialect)
    duck_sql.count_plainly(tree)
    return tree


def _copied(question: Question) -> exp.Query:
    mentions = {id(node): table for table, nodes in question.tables.items() for node in nodes}
    tree = question.tree.copy()
    for before, after in zip(question.tree.walk(), tree.walk(), strict=True):
        if id(before) in mentions:
            after.meta[_STORED] = mentions[id(before)]
    return tree


def _name_results(tree: exp.Query, dialect: str) -> None:
    """Give every unnamed result column the name that its own dialect gives it."""
    for place, node in enumerate(list(duck_sql.results(tree))):
        if not duck_sql.named(node):
            trinos = dialect == "trino"
            duck_sql.name_result(node, f"_col{place}" if trinos else duck_sql.result_name(node))


def _spelt(tree: exp.Query, dialect: str, columns: Columns) -> dict[str, str]:
    """How the names of results are spelt, which are made lower case to be told apart.

    A column's is for DuckDB as the table has it, for Trino as the query has it.
    """
    from sqlglot import exp

    found = {name.lower(): name for table in columns.values() for name in table}
    for node in duck_sql.results(tree):
        if node.output_name and (isinstance(node, exp.Alias) or dialect != "duckdb"):
            found[node.output_name.lower()] = node.output_name
    return found


def _spell_results(tree: exp.Query, spelt: Mapping[str, str]) -> None:
    from sqlglot import exp

    for node in duck_sql.results(tree):
        if isinstance(node, exp.Alias):
            name = spelt.get(node.alias.lower(), node.alias)
            node.set("alias", exp.to_identifier(name, quoted=True))


def _mentions(tree: exp.Query) -> list[exp.Table]:
    """The mentions of stored tables in a tree of ours."""
    from sqlglot import exp

    return [node for node in tree.find_all(exp.Table) if _STORED in node.meta]


def _said(tree: exp.Query, source: str, to: Engine, columns: Columns) -> exp.Query:
    """The tree in the dialect of another engine, by way of DuckDB's meaning."""
    from thermocline.engine.query_types import annotate
    from thermocline.sql.dialect import from_trino, to_spark, to_trino
    from thermocline.sql.dialect.rewrite import say

    if source == "spark":
        unfaithful("Spark's dialect", "only Spark answers it")
    alias_tables(tree, _mentions(tree))
    known = schema(columns)
    tree = qualify.made(tree, source, known)
    if source == "trino":
        tree = say(tree, from_trino.RULES, from_trino.SAME)
    if to == "duckdb":
        return tree
    qualify.told_apart(tree, columns)
    if source == "trino":
        annotate(tree, known)
    if to == "spark":
        return say(tree, to_spark.RULES, to_spark.SAME)
    return to_trino.finished(say(tree, to_trino.RULES, to_trino.SAME))


def _written(tree: exp.Query, to: Engine, *, identify: bool) -> str:
    from thermocline.engine import spark_sql

    if to == "spark":
        return spark_sql.written(tree, comments=False, identify=identify)
    return tree.sql(dialect=to, comments=False, identify=identify)


def _replace_tables(tree: exp.Query, names: Mapping[str, exp.Expr | str], to: Engine) -> None:
    from sqlglot import exp

    for node in list(tree.find_all(exp.Table)):
        table = node.meta.get(_STORED)
        if table is None:
            continue
        name = names[cast("str", table)]
        alias = node.args.get("alias")
        if isinstance(name, str):
            # A text for Trino has more than a name in it, so it is not quoted.
            this = exp.Var(this=name) if to == "trino" else exp.to_identifier(name, quoted=True)
            # With its schema no CTE of the query can stand for it. Spark's views have none.
            schema = exp.to_identifier("main") if to == "duckdb" else None
            node.replace(_kept(exp.Table(this=this, db=schema, alias=alias), node))
        elif isinstance(name, exp.Query):
            node.replace(_kept(exp.Subquery(this=name.copy(), alias=alias), node))
        else:
            put = name.copy()
            put.set("alias", alias)
            node.replace(_kept(put, node))


def _kept(put: exp.Expr, node: exp.Table) -> exp.Expr:
    """What stands for a table takes over the joins that the parser hung on it."""
    for key in ("joins", "laterals"):
        if node.args.get(key):
            put.set(key, node.args[key])
    return put


def _innermost(node: exp.Expr) -> exp.Expr:
    from sqlglot import exp

    while isinstance(node, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        node = node.this
    return node


def _kinds(names: Iterable[str]) -> tuple[type[exp.Func], ...]:
    from sqlglot import exp

    return tuple(getattr(exp, name) for name in names)


_FREE = _kinds(
    ["AnyValue", "First", "Last", "ArgMax", "ArgMin", "ArrayAgg", "GroupConcat", "ApproxDistinct",
     "ApproxQuantile", "Mode", "List"]
)  # fmt: skip
_ORDERLESS = _kinds(["Rank", "DenseRank", "PercentRank", "CumeDist", "Count", "Min", "Max"])
_FREE_NAMES = frozenset({"string_agg", "list_agg", "max_by", "min_by", "arbitrary", "map_agg",
                         "histogram", "reservoir_quantile", "approx_count_distinct",
                         "approx_most_frequent", "multimap_agg", "checksum"})  # fmt: skip

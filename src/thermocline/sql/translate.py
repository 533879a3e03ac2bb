"""Translate a guarded query to the SQL of an engine, so that every engine returns the same result.

The query's own tree is not changed. If the query is already in the engine's dialect, only its
tables are replaced. Otherwise it is first qualified (each column with its table, aliases and stars
expanded), then rewritten rule by rule; see `dialect`. A construct that is not known to have the
same meaning is refused as Untranslatable, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, cast

from thermocline.engine import duck_sql
from thermocline.engine.query_types import build_schema
from thermocline.engine.view_rewrite import alias_tables
from thermocline.sql.dialect import qualify, signed_zero, utc
from thermocline.sql.dialect.rewrite import Untranslatable, refuse_translation
from thermocline.sql.guard import SUBSTITUTION

if TYPE_CHECKING:
    from sqlglot import exp

    from thermocline.engine.query_types import Columns
    from thermocline.sql.guard import GuardedQuery

__all__ = [
    "Engine",
    "Untranslatable",
    "explain_nondeterminism",
    "normalize_query",
    "translate",
    "translate_tree",
]

Engine = Literal["duckdb", "spark", "trino"]
MAX_TRANSLATION_CHARACTERS = 2_000_000
"""Maximum characters of a translation. Rewriting a construct can make the text longer."""

_STORED_TABLE = "stored"
"""Key of a node's metadata: the stored table that it refers to."""


def translate(
    question: GuardedQuery,
    to: Engine,
    names: Mapping[str, exp.Expr | str],
    columns: Columns | None = None,
) -> str:
    """Return the query as the engine's SQL. `names` has the replacement of each stored table.

    A string is the name of a view, or for Trino a table expression (`lake.a.b FOR VERSION AS
    OF 1`); an expression is inserted unchanged. `columns` has the tables' columns and types at the
    snapshots to read: without them, only constructs that are the same for every type can be
    translated. Raises Untranslatable.
    """
    try:
        tree = translate_tree(question, to, names, columns)
        sql = _to_sql(tree, to, identify=to != question.dialect)
    except RecursionError:
        refuse_translation("a query nested too deeply")
    if to == "spark" and SUBSTITUTION in sql:
        refuse_translation(f"a text with {SUBSTITUTION}", "Spark treats it as a variable")
    if len(sql) > MAX_TRANSLATION_CHARACTERS:
        refuse_translation("a query of this length", "the translation is too long")
    return sql


def translate_tree(
    question: GuardedQuery,
    to: Engine,
    names: Mapping[str, exp.Expr | str],
    columns: Columns | None = None,
) -> exp.Query:
    """Return the translation as a tree of the engine's dialect, to be part of a larger one."""
    try:
        tree = _copy_with_named_results(question)
        if to == question.dialect:
            alias_tables(tree, _list_references(tree))
            if to == "trino":
                signed_zero.remove_zero_signs(tree, to, build_schema(columns or {}))
        else:
            spelt = _collect_spellings(tree, question.dialect, columns or {})
            tree = _change_dialect(tree, question.dialect, to, columns or {})
            _spell_results(tree, spelt)
        if to == "duckdb":
            utc.remove_zones(tree, lambda table: table.meta.get(_STORED_TABLE), columns or {})
            duck_sql.work_around_bugs(tree)
        _replace_tables(tree, names, to)
    except RecursionError:
        refuse_translation("a query nested too deeply")
    return tree


def normalize_query(question: GuardedQuery, columns: Columns) -> exp.Query:
    """Return a query of DuckDB's dialect qualified and typed, in the same dialect.

    Each column has its table, each result its name, and stars and aliases are expanded. Raises
    Untranslatable if a name is ambiguous.
    """
    tree = _copy_with_named_results(question)
    spelt = _collect_spellings(tree, question.dialect, columns)
    alias_tables(tree, _list_references(tree))
    tree = qualify.qualify_query(tree, question.dialect, build_schema(columns))
    _spell_results(tree, spelt)
    return tree


def explain_nondeterminism(question: GuardedQuery) -> str | None:
    """Return why two correct results of the query may differ, or None if there is only one.

    The order of rows without ORDER BY does not matter: results are compared as sets. It is about
    which rows or values a result has.
    """
    from sqlglot import exp

    for node in question.tree.walk():
        if isinstance(node, exp.Limit | exp.Offset | exp.Fetch):
            return "LIMIT keeps some of the rows, and others are equally valid"
        if isinstance(node, _NONDETERMINISTIC):
            return f"{node.sql_name().lower()} may return any of several values"
        if isinstance(node, exp.Distinct) and node.args.get("on"):
            return "DISTINCT ON keeps any of several rows"
        if isinstance(node, exp.TableSample):
            return "a sample differs each time"
        if isinstance(node, exp.Window) and not isinstance(
            _unwrap_window(node), _ORDER_INDEPENDENT
        ):
            return "a window may process rows in any order that its ORDER BY allows"
        if isinstance(node, exp.Anonymous) and node.name.lower() in _NONDETERMINISTIC_NAMES:
            return f"{node.name.lower()} may return any of several values"
    return None


# Steps --------------------------------------------------------------------------------------------


def _copy_with_named_results(question: GuardedQuery) -> exp.Query:
    """Return a copy of the tree in which every result has its final name."""
    tree = _copy_tree(question)
    _name_results(tree, question.dialect)
    duck_sql.rewrite_count_if(tree)
    return tree


def _copy_tree(question: GuardedQuery) -> exp.Query:
    references = {id(node): table for table, nodes in question.tables.items() for node in nodes}
    tree = question.tree.copy()
    for before, after in zip(question.tree.walk(), tree.walk(), strict=True):
        if id(before) in references:
            after.meta[_STORED_TABLE] = references[id(before)]
    return tree


def _name_results(tree: exp.Query, dialect: str) -> None:
    """Give every unnamed result column the name that its own dialect gives it."""
    for place, node in enumerate(list(duck_sql.list_results(tree))):
        if not duck_sql.has_name(node):
            trinos = dialect == "trino"
            duck_sql.name_result(
                node, f"_col{place}" if trinos else duck_sql.derive_result_name(node)
            )


def _collect_spellings(tree: exp.Query, dialect: str, columns: Columns) -> dict[str, str]:
    """Return the original spelling of each result name; qualification lower-cases them.

    DuckDB uses the table's spelling of a column, Trino the query's.
    """
    from sqlglot import exp

    found = {name.lower(): name for table in columns.values() for name in table}
    for node in duck_sql.list_results(tree):
        if node.output_name and (isinstance(node, exp.Alias) or dialect != "duckdb"):
            found[node.output_name.lower()] = node.output_name
    return found


def _spell_results(tree: exp.Query, spelt: Mapping[str, str]) -> None:
    from sqlglot import exp

    for node in duck_sql.list_results(tree):
        if isinstance(node, exp.Alias):
            name = spelt.get(node.alias.lower(), node.alias)
            node.set("alias", exp.to_identifier(name, quoted=True))


def _list_references(tree: exp.Query) -> list[exp.Table]:
    """Return the references to stored tables in a copied tree."""
    from sqlglot import exp

    return [node for node in tree.find_all(exp.Table) if _STORED_TABLE in node.meta]


def _change_dialect(tree: exp.Query, source: str, to: Engine, columns: Columns) -> exp.Query:
    """Translate the tree to the dialect of another engine, through DuckDB's semantics."""
    from thermocline.engine.query_types import annotate
    from thermocline.sql.dialect import from_trino, to_spark, to_trino
    from thermocline.sql.dialect.rewrite import rewrite_tree

    if source == "spark":
        refuse_translation("a query in Spark's dialect", "only Spark can run it")
    alias_tables(tree, _list_references(tree))
    known = build_schema(columns)
    tree = qualify.qualify_query(tree, source, known)
    if source == "trino":
        tree = rewrite_tree(tree, from_trino.RULES, from_trino.UNCHANGED)
    if to == "duckdb":
        return tree
    qualify.rename_ambiguous_sources(tree, columns)
    if source == "trino":
        annotate(tree, known)
    if to == "spark":
        return rewrite_tree(tree, to_spark.RULES, to_spark.UNCHANGED)
    return to_trino.set_time_precision(rewrite_tree(tree, to_trino.RULES, to_trino.UNCHANGED))


def _to_sql(tree: exp.Query, to: Engine, *, identify: bool) -> str:
    from thermocline.engine import spark_sql

    if to == "spark":
        return spark_sql.to_sql(tree, comments=False, identify=identify)
    return tree.sql(dialect=to, comments=False, identify=identify)


def _replace_tables(tree: exp.Query, names: Mapping[str, exp.Expr | str], to: Engine) -> None:
    from sqlglot import exp

    for node in list(tree.find_all(exp.Table)):
        table = node.meta.get(_STORED_TABLE)
        if table is None:
            continue
        name = names[cast("str", table)]
        alias = node.args.get("alias")
        if isinstance(name, str):
            # A string for Trino is more than a name, so it is not quoted.
            this = exp.Var(this=name) if to == "trino" else exp.to_identifier(name, quoted=True)
            # With a schema, no CTE of the query can shadow it. Spark's views have no schema.
            schema = exp.to_identifier("main") if to == "duckdb" else None
            node.replace(_move_joins(exp.Table(this=this, db=schema, alias=alias), node))
        elif isinstance(name, exp.Query):
            node.replace(_move_joins(exp.Subquery(this=name.copy(), alias=alias), node))
        else:
            put = name.copy()
            put.set("alias", alias)
            node.replace(_move_joins(put, node))


def _move_joins(put: exp.Expr, node: exp.Table) -> exp.Expr:
    """Move the joins that the parser attached to a table to its replacement."""
    for key in ("joins", "laterals"):
        if node.args.get(key):
            put.set(key, node.args[key])
    return put


def _unwrap_window(node: exp.Expr) -> exp.Expr:
    from sqlglot import exp

    while isinstance(node, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        node = node.this
    return node


def _node_types(names: Iterable[str]) -> tuple[type[exp.Func], ...]:
    from sqlglot import exp

    return tuple(getattr(exp, name) for name in names)


_NONDETERMINISTIC = _node_types(
    ["AnyValue", "First", "Last", "ArgMax", "ArgMin", "ArrayAgg", "GroupConcat", "ApproxDistinct",
     "ApproxQuantile", "Mode", "List"]
)  # fmt: skip
_ORDER_INDEPENDENT = _node_types(
    ["Rank", "DenseRank", "PercentRank", "CumeDist", "Count", "Min", "Max"]
)
_NONDETERMINISTIC_NAMES = frozenset({
    "string_agg", "list_agg", "max_by", "min_by", "arbitrary", "map_agg", "histogram",
    "reservoir_quantile", "approx_count_distinct", "approx_most_frequent", "multimap_agg",
    "checksum",
})  # fmt: skip

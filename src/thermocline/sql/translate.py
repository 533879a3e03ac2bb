"""A guarded question as SQL of the engine that is to answer it, with the same answer everywhere.

The question's own tree is left as it is. Where the engine's dialect is the one it is written in,
only its tables are replaced. Otherwise it is first made plain (each column with its table, aliases
and stars written out), then said in the other dialect rule by rule; see `dialect`. What was not
found to mean the same is refused as Untranslatable, with the construct named.
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
"""Characters of a translation. Saying one construct by several can make a text grow."""

_STORED_TABLE = "stored"
"""Under this name a node remembers which stored table it mentions."""


def translate(
    question: GuardedQuery,
    to: Engine,
    names: Mapping[str, exp.Expr | str],
    columns: Columns | None = None,
) -> str:
    """The question as the engine's SQL. `names` says what stands for each stored table.

    A text is a view's name, or for Trino a table as one writes it there (`lake.a.b FOR VERSION AS
    OF 1`); an expression is put in as it is. `columns` are the tables' columns at the snapshots
    that will be read, with their types: without them only what is the same for every type can be
    translated. Raises Untranslatable.
    """
    try:
        tree = translate_tree(question, to, names, columns)
        sql = _to_sql(tree, to, identify=to != question.dialect)
    except RecursionError:
        refuse_translation("a query nested so deeply")
    if to == "spark" and SUBSTITUTION in sql:
        refuse_translation(f"a text with {SUBSTITUTION}", "Spark takes it for a variable")
    if len(sql) > MAX_TRANSLATION_CHARACTERS:
        refuse_translation("a query of this length", "it would grow too long")
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
        refuse_translation("a query nested so deeply")
    return tree


def normalize_query(question: GuardedQuery, columns: Columns) -> exp.Query:
    """A question of DuckDB's dialect made plain, in the same dialect; its types are known.

    Each column has its table, each result its name, and stars and aliases are written out. Raises
    Untranslatable, where a name cannot be told.
    """
    tree = _copy_with_named_results(question)
    spelt = _collect_spellings(tree, question.dialect, columns)
    alias_tables(tree, _list_references(tree))
    tree = qualify.qualify_query(tree, question.dialect, build_schema(columns))
    _spell_results(tree, spelt)
    return tree


def explain_nondeterminism(question: GuardedQuery) -> str | None:
    """Why two right answers to the question may differ; None when there is only one.

    The order of rows that no ORDER BY asks for counts for nothing here: answers are compared as
    sets. It is rather about which rows or values they are.
    """
    from sqlglot import exp

    for node in question.tree.walk():
        if isinstance(node, exp.Limit | exp.Offset | exp.Fetch):
            return "LIMIT keeps some of the rows, and others may be as good"
        if isinstance(node, _NONDETERMINISTIC):
            return f"{node.sql_name().lower()} may take any of several values"
        if isinstance(node, exp.Distinct) and node.args.get("on"):
            return "DISTINCT ON keeps any of several rows"
        if isinstance(node, exp.TableSample):
            return "a sample is another one each time"
        if isinstance(node, exp.Window) and not isinstance(
            _unwrap_window(node), _ORDER_INDEPENDENT
        ):
            return "a window may see rows in any order that its ORDER BY leaves open"
        if isinstance(node, exp.Anonymous) and node.name.lower() in _NONDETERMINISTIC_NAMES:
            return f"{node.name.lower()} may take any of several values"
    return None


# Steps --------------------------------------------------------------------------------------------


def _copy_with_named_results(question: GuardedQuery) -> exp.Query:
    """A copy that is ours to change; its results have the names that they are to have."""
    tree = _copy_tree(question)
    _name_results(tree, question.dialect)
    duck_sql.rewrite_count_if(tree)
    return tree


def _copy_tree(question: GuardedQuery) -> exp.Query:
    mentions = {id(node): table for table, nodes in question.tables.items() for node in nodes}
    tree = question.tree.copy()
    for before, after in zip(question.tree.walk(), tree.walk(), strict=True):
        if id(before) in mentions:
            after.meta[_STORED_TABLE] = mentions[id(before)]
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
    """How the names of results are spelt, which are made lower case to be told apart.

    A column's is for DuckDB as the table has it, for Trino as the query has it.
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
    """The mentions of stored tables in a tree of ours."""
    from sqlglot import exp

    return [node for node in tree.find_all(exp.Table) if _STORED_TABLE in node.meta]


def _change_dialect(tree: exp.Query, source: str, to: Engine, columns: Columns) -> exp.Query:
    """The tree in the dialect of another engine, by way of DuckDB's meaning."""
    from thermocline.engine.query_types import annotate
    from thermocline.sql.dialect import from_trino, to_spark, to_trino
    from thermocline.sql.dialect.rewrite import rewrite_tree

    if source == "spark":
        refuse_translation("Spark's dialect", "only Spark answers it")
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
            # A text for Trino has more than a name in it, so it is not quoted.
            this = exp.Var(this=name) if to == "trino" else exp.to_identifier(name, quoted=True)
            # With its schema no CTE of the query can stand for it. Spark's views have none.
            schema = exp.to_identifier("main") if to == "duckdb" else None
            node.replace(_move_joins(exp.Table(this=this, db=schema, alias=alias), node))
        elif isinstance(name, exp.Query):
            node.replace(_move_joins(exp.Subquery(this=name.copy(), alias=alias), node))
        else:
            put = name.copy()
            put.set("alias", alias)
            node.replace(_move_joins(put, node))


def _move_joins(put: exp.Expr, node: exp.Table) -> exp.Expr:
    """What stands for a table takes over the joins that the parser hung on it."""
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
_NONDETERMINISTIC_NAMES = frozenset({"string_agg", "list_agg", "max_by", "min_by", "arbitrary", "map_agg",
                         "histogram", "reservoir_quantile", "approx_count_distinct",
                         "approx_most_frequent", "multimap_agg", "checksum"})  # fmt: skip

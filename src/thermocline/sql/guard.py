"""The guard: parse a text into one SELECT over tables, or refuse it with the reason.

The guard knows no tables and no callers. It decides by the text alone whether an engine may run
the query; all later steps work on the parsed tree.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.sql_errors import describe_parse_error
from thermocline.errors import BadInput
from thermocline.sql import allowlist

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.tokenizer_core import Token

DIALECTS = ("duckdb", "trino", "spark")
CATALOG_NAME = "lake"
"""Name of this catalog in clients that have catalogs."""

SUBSTITUTION = "${"
"""Start of a variable that Spark replaces by a setting or environment variable, anywhere in a text.

Our sessions disable this substitution; refusing the text is the second line of defense.
"""
DIVISION_BY_ZERO = "Division by zero"
"""Error text of a query that divides by zero, where that must fail."""
MAX_REPEATED_PARSES = 4_096
"""Maximum number of repeated parses: about half a second."""
_OPENING_BRACKETS = {"L_PAREN", "L_BRACKET", "L_BRACE"}
_CLOSING_BRACKETS = {"R_PAREN", "R_BRACKET", "R_BRACE"}
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


PARSER_CRASHES = (
    RecursionError, LookupError, ValueError, AttributeError, TypeError, AssertionError,
    ArithmeticError,
)  # fmt: skip
"""What sqlglot raises, besides its own errors, on unexpected texts."""


class QueryRefused(BadInput):
    """A query that no engine may run."""

    code = "refused"


@dataclass(frozen=True)
class SyntaxLimits:
    """Maximum size of a query. `depth` limits nested brackets, `nodes` the size of the tree."""

    characters: int = 200_000
    tokens: int = 20_000
    depth: int = 60
    nodes: int = 20_000
    columns: int = 1_000


@dataclass(frozen=True)
class GuardedQuery:
    """A guarded query, and its references to each stored table ("layer.name")."""

    tree: exp.Query
    dialect: str
    tables: dict[str, list[exp.Table]]


def guard(sql: str, dialect: str = "duckdb", bounds: SyntaxLimits | None = None) -> GuardedQuery:
    """Parse and validate a query. Raises QueryRefused; reads no table and has no side effect."""
    from sqlglot import exp

    bounds = bounds or SyntaxLimits()
    if dialect not in DIALECTS:
        raise QueryRefused(
            f"Unknown dialect {sanitize(dialect)}.", f"Use one of: {', '.join(DIALECTS)}."
        )
    _check_size(sql, dialect, bounds)
    tree = _parse(sql, dialect)
    if not isinstance(tree, exp.Query) or isinstance(tree, exp.Table):
        raise QueryRefused("Only SELECT statements are allowed.", "Send one SELECT statement.")
    if tree.args.get("into") or tree.args.get("locks") or tree.args.get("hint"):
        raise QueryRefused("SELECT with INTO, FOR or hints is refused.", "Remove these clauses.")
    _rewrite_fetch_as_limit(tree)
    for count, node in enumerate(tree.walk(), start=1):
        if count > bounds.nodes:
            raise QueryRefused(
                f"The query has more than {bounds.nodes:,} parts.", "Split it into smaller queries."
            )
        _check_node(node, bounds)
    _lower_table_names(tree)
    return GuardedQuery(tree, dialect, _find_tables(tree))


def _rewrite_fetch_as_limit(tree: exp.Query) -> None:
    """Rewrite FETCH FIRST … ROWS ONLY as LIMIT. FETCH WITH TIES stays, and is refused later."""
    from sqlglot import exp

    for node in list(tree.find_all(exp.Fetch)):
        options = node.args.get("limit_options")
        ties = options is not None and (
            options.args.get("percent") or options.args.get("with_ties")
        )
        if not ties:
            count = node.args.get("count") or exp.Literal.number(1)
            node.replace(exp.Limit(expression=count))


def _lower_table_names(tree: exp.Query) -> None:
    """Lower-case the names of tables, quoted or not: every engine ignores their case, so lookups
    must as well."""
    from sqlglot import exp

    for node in tree.find_all(exp.Table, exp.TableAlias, exp.Column):
        parts = ("this", "db", "catalog") if isinstance(node, exp.Table) else ("this",)
        if isinstance(node, exp.Column):
            parts = ("table", "db", "catalog")
        for part in parts:
            name = node.args.get(part)
            if isinstance(name, exp.Identifier):
                name.set("this", name.name.lower())


def _check_size(sql: str, dialect: str, bounds: SyntaxLimits) -> None:
    """Check size and brackets before parsing, because the cost of parsing grows with both."""
    from sqlglot import errors, tokenize

    if len(sql) > bounds.characters:
        raise QueryRefused(
            f"The query has {len(sql):,} characters, more than {bounds.characters:,}.",
            "Shorten it; put long lists of values into a table.",
        )
    if dialect == "spark" and SUBSTITUTION in sql:
        raise QueryRefused(
            f"{SUBSTITUTION} is not allowed in Spark's dialect, not even in a string.",
            "Spark treats it as a variable; write concat('$', '{…').",
        )
    if "\0" in sql:
        raise QueryRefused("The query contains a NUL character.", "Remove it.")
    try:
        tokens = tokenize(sql, read=dialect)
    except (errors.SqlglotError, *PARSER_CRASHES) as error:
        raise _parse_error(error) from error
    if len(tokens) > bounds.tokens:
        raise QueryRefused(
            f"The query has {len(tokens):,} words, more than {bounds.tokens:,}.",
            "Shorten it; put long lists of values into a table.",
        )
    if not is_cheap_to_parse(tokens, bounds):
        raise QueryRefused(
            f"Brackets are nested more than {bounds.depth} deep, or too deep inside type names.",
            "Move inner queries into WITH.",
        )


def is_cheap_to_parse(tokens: Sequence[Token], bounds: SyntaxLimits) -> bool:
    """Return whether these tokens can be parsed quickly.

    The cost of parsing grows with the depth of brackets. Brackets after the name of a type are
    parsed twice, because `DATE(…)` may be a type or a call: each nested level doubles the cost,
    and fifty levels would never finish.
    """
    from sqlglot.parser import Parser

    opened: list[bool] = []
    doubled = work = 0
    before: Token | None = None
    for token in tokens:
        kind = token.token_type.name
        if kind in _OPENING_BRACKETS:
            opened.append(before is not None and before.token_type in Parser.TYPE_TOKENS)
            doubled += opened[-1]
            work += 2**doubled if opened[-1] else 0
        elif kind in _CLOSING_BRACKETS and opened:
            doubled -= opened.pop()
        if len(opened) > bounds.depth or work > MAX_REPEATED_PARSES:
            return False
        before = token
    return True


def _parse(sql: str, dialect: str) -> exp.Expr:
    import sqlglot
    from sqlglot import errors, exp

    # sqlglot logs what it does not understand, including the text of the query.
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    try:
        found = sqlglot.parse(
            sql, read=_parser_dialect(dialect), error_level=sqlglot.ErrorLevel.IMMEDIATE
        )
    except (errors.SqlglotError, *PARSER_CRASHES) as error:
        raise _parse_error(error) from error
    statements = [each for each in found if each is not None and type(each) is not exp.Semicolon]
    if len(statements) != 1:
        raise QueryRefused(
            f"The text has {len(statements)} statements instead of one.",
            "Send one SELECT at a time.",
        )
    return statements[0]


def _parser_dialect(dialect: str) -> Any:
    """Return the parser's dialect for a text."""
    if dialect != "trino":
        return dialect
    from thermocline.sql.dialect.trino_parser import TrinoDialect

    return TrinoDialect


def _parse_error(error: Exception) -> QueryRefused:
    return QueryRefused(
        f"The query cannot be parsed: {sanitize(describe_parse_error(error))}", "Fix the SQL."
    )


def _check_node(node: exp.Expr, bounds: SyntaxLimits) -> None:
    from sqlglot import exp

    from thermocline.sql import value_limits

    kind = type(node).__name__
    if isinstance(node, exp.Anonymous):
        if node.name.lower() not in allowlist.ANONYMOUS_FUNCTIONS:
            raise _function_refused(node.name)
    elif isinstance(node, exp.Func) and kind not in allowlist.OPERATORS:
        if kind not in allowlist.FUNCTIONS:
            raise _function_refused(node.sql_name())
    elif kind not in allowlist.STRUCTURE | allowlist.OPERATORS:
        raise QueryRefused(
            f"{_split_words(kind)} is not allowed in a query.", "Rewrite the query without it."
        )
    value_limits.check_value_size(node)
    if isinstance(node, exp.Join):
        _check_join(node)
    elif isinstance(node, exp.Select) and len(node.expressions) > bounds.columns:
        raise QueryRefused(
            f"The query selects more than {bounds.columns:,} columns.",
            "Select fewer columns, or *.",
        )
    elif isinstance(node, exp.Table):
        _check_table(node)
    elif isinstance(node, exp.Column) and re.match(r"\$[a-z_]", node.name, re.IGNORECASE):
        # Trino's hidden columns about the file of a row.
        raise QueryRefused(
            f"There is no column {sanitize(node.name)}.", "`thermo show TABLE` lists the columns."
        )


def _check_join(node: exp.Join) -> None:
    for argument, allowed in allowlist.JOINS.items():
        word = str(node.args.get(argument) or "").upper()
        if word not in allowed:
            raise QueryRefused(
                f"{word} JOIN is not allowed.", "Use INNER, LEFT, RIGHT or FULL JOIN."
            )


def _check_table(node: exp.Table) -> None:
    """Allow a name or a series of values as a table; refuse files and functions that read."""
    from sqlglot import exp

    if isinstance(node.this, exp.GenerateSeries | exp.Unnest | exp.Anonymous | exp.Explode):
        return  # checked as a function
    parts = [node.args.get("this"), node.args.get("db"), node.args.get("catalog")]
    for part in parts:
        if part is None or part == "":
            continue
        if not isinstance(part, exp.Identifier) or not _TABLE_NAME.fullmatch(part.name):
            raise QueryRefused(
                f"{sanitize(node.sql())} is not a table name.",
                "Write tables as layer.name; `thermo tables` lists them.",
            )


def _find_tables(tree: exp.Query) -> dict[str, list[exp.Table]]:
    found: dict[str, list[exp.Table]] = {}
    for node in _find_references(tree):
        if not node.db or (node.catalog and node.catalog.lower() != CATALOG_NAME):
            raise QueryRefused(
                f"There is no table {sanitize(node.sql())}.",
                "Write tables as layer.name; `thermo tables` lists them.",
            )
        found.setdefault(f"{node.db}.{node.name}".lower(), []).append(node)
    return found


def _find_references(tree: exp.Query) -> Iterator[exp.Table]:
    """Yield the references to stored tables, leaving out references to a visible CTE.

    A reference outside every scope was not resolved, so replacing tables with views would miss it:
    such a query is refused.
    """
    from sqlglot import errors, exp
    from sqlglot.optimizer.scope import traverse_scope

    try:
        scopes = traverse_scope(tree)
    except (errors.SqlglotError, *PARSER_CRASHES) as error:
        raise _parse_error(error) from error
    seen: set[int] = set()
    for scope in scopes:
        for source in scope.tables:
            if id(source) in seen or not isinstance(source.this, exp.Identifier):
                continue
            seen.add(id(source))
            if source.db or source.name not in scope.cte_sources:
                yield source
    for node in tree.find_all(exp.Table):
        if isinstance(node.this, exp.Identifier) and id(node) not in seen:
            raise QueryRefused(
                f"The table {sanitize(node.sql())} is not allowed there.", "Use it in FROM or JOIN."
            )


def _function_refused(name: str) -> QueryRefused:
    return QueryRefused(
        f"The function {sanitize(name.lower())} is not allowed.",
        "Use functions that depend only on their arguments.",
    )


def _split_words(kind: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).upper()


def sanitize(text: str) -> str:
    """Shorten a caller's text for a message and replace its control characters."""
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return plain if len(plain) <= 100 else f"{plain[:100]}…"

"""The guard: a text becomes one SELECT over plain tables, or is refused with the reason.

It knows no tables and no callers. It decides by the text alone whether a question is one that any
engine may be asked at all; everything behind it works on the parsed tree.
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
"""The name under which clients that know catalogs see this one."""

SUBSTITUTION = "${"
"""What Spark expands to settings and environment variables, anywhere in a text, unless told not to.

Its sessions here are told not to; this is the second wall.
"""
DIVISION_BY_ZERO = "Division by zero"
"""The text by which an engine fails a query that divides by zero, where that is to be an error."""
MAX_REPEATED_PARSES = 4_096
"""Second readings by the parser: half a second of them."""
_OPENING_BRACKETS = {"L_PAREN", "L_BRACKET", "L_BRACE"}
_CLOSING_BRACKETS = {"R_PAREN", "R_BRACKET", "R_BRACE"}
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


PARSER_CRASHES = (RecursionError, LookupError, ValueError, AttributeError, TypeError, AssertionError,
            ArithmeticError)  # fmt: skip
"""What sqlglot raises, beside its own errors, on texts that its authors did not think of."""


class QueryRefused(BadInput):
    """A question that no engine is asked."""

    code = "refused"


@dataclass(frozen=True)
class SyntaxLimits:
    """How large a question may be. `depth` is that of brackets, `nodes` the size of the tree."""

    characters: int = 200_000
    tokens: int = 20_000
    depth: int = 60
    nodes: int = 20_000
    columns: int = 1_000


@dataclass(frozen=True)
class GuardedQuery:
    """A guarded query, and each of its mentions of a stored table (layer, name)."""

    tree: exp.Query
    dialect: str
    tables: dict[str, list[exp.Table]]


def guard(sql: str, dialect: str = "duckdb", bounds: SyntaxLimits | None = None) -> GuardedQuery:
    """Parse and judge a question. Raises Refused; changes nothing and asks nobody."""
    from sqlglot import exp

    bounds = bounds or SyntaxLimits()
    if dialect not in DIALECTS:
        raise QueryRefused(
            f"There is no dialect {sanitize(dialect)}.", f"Use {', '.join(DIALECTS)}."
        )
    _check_size(sql, dialect, bounds)
    tree = _parse(sql, dialect)
    if not isinstance(tree, exp.Query) or isinstance(tree, exp.Table):
        raise QueryRefused("Only a SELECT can be asked here.", "Send one SELECT statement.")
    if tree.args.get("into") or tree.args.get("locks") or tree.args.get("hint"):
        raise QueryRefused("A SELECT with INTO, FOR or hints is refused.", "Leave those words out.")
    _rewrite_fetch_as_limit(tree)
    for count, node in enumerate(tree.walk(), start=1):
        if count > bounds.nodes:
            raise QueryRefused(
                f"The query has more than {bounds.nodes:,} parts.", "Ask for less at a time."
            )
        _check_node(node, bounds)
    _lower_table_names(tree)
    return GuardedQuery(tree, dialect, _find_tables(tree))


def _rewrite_fetch_as_limit(tree: exp.Query) -> None:
    """Write FETCH FIRST … ROWS ONLY as the LIMIT that it is; with ties it stays, and is refused."""
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
    """Write the names of tables small, quoted or not: to every engine they are the same in any
    case, and so they must be to whoever looks here for what a name stands for."""
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
    """Look at size and brackets before the parser, whose work grows with both."""
    from sqlglot import errors, tokenize

    if len(sql) > bounds.characters:
        raise QueryRefused(
            f"The query has {len(sql):,} characters, more than {bounds.characters:,}.",
            "Shorten it; long lists of values belong in a table.",
        )
    if dialect == "spark" and SUBSTITUTION in sql:
        raise QueryRefused(
            f"{SUBSTITUTION} is refused in Spark's dialect, wherever it stands.",
            "Spark takes it for a variable; write concat('$', '{…').",
        )
    if "\0" in sql:
        raise QueryRefused("The query holds a NUL character.", "Remove it.")
    try:
        tokens = tokenize(sql, read=dialect)
    except (errors.SqlglotError, *PARSER_CRASHES) as error:
        raise _parse_error(error) from error
    if len(tokens) > bounds.tokens:
        raise QueryRefused(
            f"The query has {len(tokens):,} words, more than {bounds.tokens:,}.",
            "Shorten it; long lists of values belong in a table.",
        )
    if not is_cheap_to_parse(tokens, bounds):
        raise QueryRefused(
            f"Brackets are nested more than {bounds.depth} deep, or deeply behind words for types.",
            "Use WITH for inner queries.",
        )


def is_cheap_to_parse(tokens: Sequence[Token], bounds: SyntaxLimits) -> bool:
    """Whether the parser is soon done with words.

    Its work grows with the depth of brackets. What stands in brackets behind the name of a type
    it reads twice, as `DATE(…)` may be a type or a call: where such brackets stand in one another
    each level doubles the work, and a line of fifty would keep it for ever.
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

    # It warns on the log of what it does not understand, with the text of the query.
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
            f"There are {len(statements)} statements, not one.", "Send one SELECT at a time."
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
        f"The query cannot be read: {sanitize(describe_parse_error(error))}", "Mend the SQL."
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
            f"{_split_words(kind)} cannot be used in a query here.", "Write it otherwise."
        )
    value_limits.check_value_size(node)
    if isinstance(node, exp.Join):
        _check_join(node)
    elif isinstance(node, exp.Select) and len(node.expressions) > bounds.columns:
        raise QueryRefused(
            f"The query selects more than {bounds.columns:,} columns.", "Select fewer, or *."
        )
    elif isinstance(node, exp.Table):
        _check_table(node)
    elif isinstance(node, exp.Column) and re.match(r"\$[a-z_]", node.name, re.IGNORECASE):
        # What Trino says of the file that a row is in.
        raise QueryRefused(
            f"There is no column {sanitize(node.name)}.", "`thermo show` lists them."
        )


def _check_join(node: exp.Join) -> None:
    for argument, allowed in allowlist.JOINS.items():
        word = str(node.args.get(argument) or "").upper()
        if word not in allowed:
            raise QueryRefused(
                f"A {word} JOIN cannot be used here.", "Use INNER, LEFT, RIGHT or FULL."
            )


def _check_table(node: exp.Table) -> None:
    """A table is a name, or a series of values; never a file, nor a function that reads."""
    from sqlglot import exp

    if isinstance(node.this, exp.GenerateSeries | exp.Unnest | exp.Anonymous | exp.Explode):
        return  # a function like any other, and judged as one
    parts = [node.args.get("this"), node.args.get("db"), node.args.get("catalog")]
    for part in parts:
        if part is None or part == "":
            continue
        if not isinstance(part, exp.Identifier) or not _TABLE_NAME.fullmatch(part.name):
            raise QueryRefused(
                f"{sanitize(node.sql())} is no name of a table.",
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
    """The mentions of stored tables: not those of a CTE that is in sight there.

    A mention that lies in no scope is one that the rules of sight were not applied to, and whoever
    replaces tables by a caller's view of them would miss it: such a query is refused.
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
                f"{sanitize(node.sql())} stands where no table can be.", "Use it in FROM or JOIN."
            )


def _function_refused(name: str) -> QueryRefused:
    return QueryRefused(
        f"The function {sanitize(name.lower())} cannot be used here.",
        "Only functions that look at their arguments alone can.",
    )


def _split_words(kind: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).upper()


def sanitize(text: str) -> str:
    """A text of the caller's in a message: short, and without characters that do anything."""
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return plain if len(plain) <= 100 else f"{plain[:100]}…"

"""Tokenize and parse statements.

sqlglot parses queries, but not the inside of PREPARE, SHOW and similar statements.
`StatementReader` reads those token by token, with sqlglot's tokenizer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from thermocline.engine.sql_errors import describe_parse_error
from thermocline.serve.trino.error_codes import TrinoError
from thermocline.sql.guard import PARSER_CRASHES, SyntaxLimits, is_cheap_to_parse, sanitize

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.tokenizer_core import Token

SYNTAX_LIMITS = SyntaxLimits()
_BLANK = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")


def split_keyword(sql: str) -> tuple[str, str]:
    """Return the first word of a statement in upper case, and the text after it.

    The word is empty when a bracket or another sign comes first.
    """
    if len(sql) > SYNTAX_LIMITS.characters:
        raise TrinoError(
            "QUERY_TEXT_TOO_LARGE",
            f"The query has {len(sql):,} characters, more than {SYNTAX_LIMITS.characters:,}.",
            "Shorten it; long lists of values belong in a table.",
        )
    start = _BLANK.match(sql).end()  # type: ignore[union-attr]  # it matches the empty text too
    word = _WORD.match(sql, start)
    return (word.group().upper(), sql[word.end() :]) if word else ("", sql[start:])


def tokenize(sql: str) -> list[Token]:
    """Return the tokens of a text. Refuse too many tokens, or too deep nesting, before parsing."""
    from sqlglot import errors, tokenize

    if "\0" in sql:
        raise TrinoError("SYNTAX_ERROR", "The statement holds a NUL character.", "Remove it.")
    try:
        found = tokenize(sql, read="trino")
    except (errors.SqlglotError, *PARSER_CRASHES) as error:
        raise syntax_error(error) from error
    if len(found) > SYNTAX_LIMITS.tokens or not is_cheap_to_parse(found, SYNTAX_LIMITS):
        raise TrinoError(
            "QUERY_TEXT_TOO_LARGE",
            f"The query has more than {SYNTAX_LIMITS.tokens:,} words, or is nested too deeply.",
            "Shorten it; use WITH for inner queries.",
        )
    return found


def parse_query(reader: list[Token], sql: str) -> exp.Query:
    """Parse tokens into one query."""
    import logging

    import sqlglot
    from sqlglot import errors, exp

    from thermocline.sql.dialect.trino_parser import TrinoDialect

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # it warns with the query's text
    parser = TrinoDialect().parser(error_level=sqlglot.ErrorLevel.IMMEDIATE)
    try:
        found = parser.parse(reader, sql)
    except (errors.SqlglotError, *PARSER_CRASHES) as error:
        raise syntax_error(error) from error
    statements = [each for each in found if each is not None and type(each) is not exp.Semicolon]
    if len(statements) != 1:
        raise TrinoError(
            "SYNTAX_ERROR",
            f"There are {len(statements)} statements, not one.",
            "Send one at a time.",
        )
    [tree] = statements
    if isinstance(tree, exp.Values):
        tree = _select_values(tree)
    if not isinstance(tree, exp.Query) or isinstance(tree, exp.Table):
        raise TrinoError("NOT_SUPPORTED", "Only SELECT is supported.", "Send one SELECT.")
    return tree


def _select_values(values: exp.Values) -> exp.Select:
    """Return VALUES as a SELECT, with Trino's names of its columns."""
    from sqlglot import exp

    first = values.expressions[0]
    width = len(first.expressions) if isinstance(first, exp.Tuple) else 1
    names = [exp.to_identifier(f"_col{place}") for place in range(width)]
    values.set("alias", exp.TableAlias(this=exp.to_identifier("listed"), columns=names))
    return exp.select(exp.Star()).from_(values)


def syntax_error(error: Exception) -> TrinoError:
    """Return the error of the parser in one line."""
    message = sanitize(describe_parse_error(error))
    return TrinoError("SYNTAX_ERROR", f"The query cannot be read: {message}", "Fix the SQL.")


class StatementReader:
    """Reads the tokens after a statement's first word from left to right."""

    def __init__(self, statement: str, text: str) -> None:
        self._statement = statement
        # After SELECT, the tokenizer takes no word for the start of an opaque command.
        self._read_statement = f"SELECT {text}"
        self._tokens = tokenize(self._read_statement)[1:]
        while self._tokens and self._tokens[-1].token_type.name == "SEMICOLON":
            self._tokens.pop()
        self._at = 0

    def accept(self, *reader: str) -> bool:
        """Consume these words if they come next; return whether they did."""
        ahead = self._tokens[self._at : self._at + len(reader)]
        if len(ahead) < len(reader) or any(
            each.text.upper() != word or each.token_type.name in {"STRING", "IDENTIFIER"}
            for each, word in zip(ahead, reader)
        ):
            return False
        self._at += len(reader)
        return True

    def accept_any(self, *reader: str) -> bool:
        """Consume one of these words if it comes next; return whether one did."""
        return any(self.accept(word) for word in reader)

    def expect(self, *reader: str) -> None:
        """Consume these words. Raises TrinoError when others come next."""
        if not self.accept(*reader):
            raise self.error(f"{' '.join(reader)} is missing")

    def read_string(self) -> str:
        """Read a text in quotes."""
        token = self._next("a text in quotes")
        if token.token_type.name != "STRING":
            raise self.error("a text in quotes is missing")
        return token.text

    def read_name(self) -> str:
        """Read a name in lower case: names are case-insensitive in Trino."""
        token = self._next("a name")
        quoted = token.token_type.name == "IDENTIFIER"
        if not quoted and not re.fullmatch(r"[A-Za-z_]\w*", token.text):
            raise self.error("a name is missing")
        if token.token_type.name == "STRING" or len(token.text) > 1000:
            raise self.error("a name is missing")
        return token.text.lower()

    def read_names(self, max_parts: int) -> list[str]:
        """Read names separated by dots."""
        found = [self.read_name()]
        while self.accept("."):
            found.append(self.read_name())
        if len(found) > max_parts:
            raise self.error("the name has too many parts")
        return found

    def read_rest(self) -> str:
        """Return the original text of the remaining tokens."""
        if self._at >= len(self._tokens):
            raise self.error("it ends too early")
        start, end = self._tokens[self._at].start, self._tokens[-1].end
        self._at = len(self._tokens)
        return self._read_statement[start : end + 1]

    @property
    def is_at_end(self) -> bool:
        """Whether all tokens were read."""
        return self._at >= len(self._tokens)

    def expect_end(self) -> None:
        """Raise TrinoError if tokens remain."""
        if not self.is_at_end:
            raise self.error(f"{sanitize(self._tokens[self._at].text)} is not expected")

    def error(self, why: str) -> TrinoError:
        """Return a syntax error of this statement."""
        return TrinoError(
            "SYNTAX_ERROR", f"{self._statement} cannot be read: {why}.", "Fix the SQL."
        )

    def _next(self, what: str) -> Token:
        if self.is_at_end:
            raise self.error(f"{what} is missing")
        token = self._tokens[self._at]
        self._at += 1
        return token

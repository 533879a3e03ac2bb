"""Reading a statement by its words: which one it is, and what its short parts say.

The parser knows queries; of PREPARE, SHOW and their like it makes one lump of text. These are
read here, word by word, with the parser's own idea of what a word is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from thermocline.engine.sql_errors import describe_parse_error
from thermocline.serve.trino.faults import Faulty
from thermocline.sql.guard import PARSER_CRASHES, SyntaxLimits, is_cheap_to_parse, sanitize

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.tokenizer_core import Token

BOUNDS = SyntaxLimits()
_BLANK = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")


def leading(sql: str) -> tuple[str, str]:
    """The first word of a statement in capitals, and the text after it.

    There is no word where a bracket or anything else comes first.
    """
    if len(sql) > BOUNDS.characters:
        raise Faulty(
            "QUERY_TEXT_TOO_LARGE",
            f"The query has {len(sql):,} characters, more than {BOUNDS.characters:,}.",
            "Shorten it; long lists of values belong in a table.",
        )
    start = _BLANK.match(sql).end()  # type: ignore[union-attr]  # it matches the empty text too
    word = _WORD.match(sql, start)
    return (word.group().upper(), sql[word.end() :]) if word else ("", sql[start:])


def tokens(sql: str) -> list[Token]:
    """The words of a text. Too many, or brackets in brackets, are refused before any parsing."""
    from sqlglot import errors, tokenize

    if "\0" in sql:
        raise Faulty("SYNTAX_ERROR", "The statement holds a NUL character.", "Remove it.")
    try:
        found = tokenize(sql, read="trino")
    except (errors.SqlglotError, *PARSER_CRASHES) as error:
        raise unreadable(error) from error
    if len(found) > BOUNDS.tokens or not is_cheap_to_parse(found, BOUNDS):
        raise Faulty(
            "QUERY_TEXT_TOO_LARGE",
            f"The query has more than {BOUNDS.tokens:,} words, or is nested too deeply.",
            "Shorten it; use WITH for inner queries.",
        )
    return found


def parsed(words: list[Token], sql: str) -> exp.Query:
    """The one query that words make up."""
    import logging

    import sqlglot
    from sqlglot import errors, exp

    from thermocline.sql.dialect.trino_parser import TrinoDialect

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # it warns with the query's text
    parser = TrinoDialect().parser(error_level=sqlglot.ErrorLevel.IMMEDIATE)
    try:
        found = parser.parse(words, sql)
    except (errors.SqlglotError, *PARSER_CRASHES) as error:
        raise unreadable(error) from error
    statements = [each for each in found if each is not None and type(each) is not exp.Semicolon]
    if len(statements) != 1:
        raise Faulty(
            "SYNTAX_ERROR",
            f"There are {len(statements)} statements, not one.",
            "Send one at a time.",
        )
    [tree] = statements
    if isinstance(tree, exp.Values):
        tree = _selected(tree)
    if not isinstance(tree, exp.Query) or isinstance(tree, exp.Table):
        raise Faulty("NOT_SUPPORTED", "Only a SELECT can be asked here.", "Send one SELECT.")
    return tree


def _selected(values: exp.Values) -> exp.Select:
    """VALUES as a query of its own, with the names that Trino gives to its columns."""
    from sqlglot import exp

    first = values.expressions[0]
    width = len(first.expressions) if isinstance(first, exp.Tuple) else 1
    names = [exp.to_identifier(f"_col{place}") for place in range(width)]
    values.set("alias", exp.TableAlias(this=exp.to_identifier("listed"), columns=names))
    return exp.select(exp.Star()).from_(values)


def unreadable(error: Exception) -> Faulty:
    """What the parser said, in one line."""
    said = sanitize(describe_parse_error(error))
    return Faulty("SYNTAX_ERROR", f"The query cannot be read: {said}", "Mend the SQL.")


class Words:
    """What comes after a statement's first word, read from left to right."""

    def __init__(self, statement: str, text: str) -> None:
        self._statement = statement
        # Behind another word, none is taken for the beginning of a lump of text.
        self._text = f"SELECT {text}"
        self._tokens = tokens(self._text)[1:]
        while self._tokens and self._tokens[-1].token_type.name == "SEMICOLON":
            self._tokens.pop()
        self._at = 0

    def took(self, *words: str) -> bool:
        """Whether these words come next; if they do, they are read."""
        ahead = self._tokens[self._at : self._at + len(words)]
        if len(ahead) < len(words) or any(
            each.text.upper() != word or each.token_type.name in {"STRING", "IDENTIFIER"}
            for each, word in zip(ahead, words)
        ):
            return False
        self._at += len(words)
        return True

    def took_one(self, *words: str) -> bool:
        """Whether one of these words comes next."""
        return any(self.took(word) for word in words)

    def need(self, *words: str) -> None:
        """Read these words, or refuse the statement."""
        if not self.took(*words):
            raise self.wrong(f"{' '.join(words)} is missing")

    def string(self) -> str:
        """Read a text in quotes."""
        token = self._next("a text in quotes")
        if token.token_type.name != "STRING":
            raise self.wrong("a text in quotes is missing")
        return token.text

    def name(self) -> str:
        """Read a name; without regard to case, as names are in Trino."""
        token = self._next("a name")
        quoted = token.token_type.name == "IDENTIFIER"
        if not quoted and not re.fullmatch(r"[A-Za-z_]\w*", token.text):
            raise self.wrong("a name is missing")
        if token.token_type.name == "STRING" or len(token.text) > 1000:
            raise self.wrong("a name is missing")
        return token.text.lower()

    def names(self, most: int) -> list[str]:
        """Read names with dots between them."""
        found = [self.name()]
        while self.took("."):
            found.append(self.name())
        if len(found) > most:
            raise self.wrong("the name has too many parts")
        return found

    def rest(self) -> str:
        """The text that was not read yet, as it was written."""
        if self._at >= len(self._tokens):
            raise self.wrong("it ends too early")
        start, end = self._tokens[self._at].start, self._tokens[-1].end
        self._at = len(self._tokens)
        return self._text[start : end + 1]

    @property
    def ended(self) -> bool:
        """Whether all was read."""
        return self._at >= len(self._tokens)

    def end(self) -> None:
        """Refuse the statement if anything is left of it."""
        if not self.ended:
            raise self.wrong(f"{sanitize(self._tokens[self._at].text)} is not expected")

    def wrong(self, why: str) -> Faulty:
        """The statement is not as it should be."""
        return Faulty("SYNTAX_ERROR", f"{self._statement} cannot be read: {why}.", "Mend the SQL.")

    def _next(self, what: str) -> Token:
        if self.ended:
            raise self.wrong(f"{what} is missing")
        token = self._tokens[self._at]
        self._at += 1
        return token

"""Translate Trino's regular expressions that match the same text in DuckDB.

`.` and `$` treat line ends differently in Trino and DuckDB. So a query that applies a pattern with
them to a text of several lines fails.
"""

from __future__ import annotations

import re

from sqlglot import exp

from thermocline.engine.query_types import T, with_type
from thermocline.sql.dialect.rewrite import (
    call,
    integer_value,
    is_portable_pattern,
    parenthesize,
    refuse_translation,
)
from thermocline.sql.dialect.shared_rules import require_family
from thermocline.sql.dialect.text_rules import check_regexp, text_literal

_TOKEN = re.compile(
    r"(?P<class>\[\^?(?:[A-Za-z0-9 _@#/,:;=<>%&~!\"'.+*?()|{}$-]|\\[\]\\.^/+*?$-])+\])"
    r"|(?P<escaped>\\[.\\/+*?()\[\]{}|^$-])"
    r"|(?P<group>\(\?:|\((?!\?))"
    r"|(?P<line>[.$])"
    r"|(?P<plain>[A-Za-z0-9 _@#/,:;=<>%&~!\"'^)|-]|[*+?]\??|\{[0-9]{1,2}(?:,[0-9]{0,2})?\})"
)


class TrinoPattern:
    """A constant pattern with one meaning in both engines; anything else is refused."""

    def __init__(self, node: exp.Expr, of: str) -> None:
        if not (isinstance(node, exp.Literal) and node.is_string):
            refuse_translation(f"{of} with a pattern that is not a constant")
        self.text = node.name
        tokens = []
        at = 0
        while at < len(self.text):
            found = _TOKEN.match(self.text, at)
            if found is None:
                refuse_translation(f"{of} with the pattern part {self.text[at : at + 2]!r}")
            tokens.append(found)
            at = found.end()
        try:
            compiled = re.compile(self.text)
        except re.error:
            refuse_translation(f"{of} with a pattern that cannot be parsed")
        self.groups = compiled.groups
        self.sees_lines = any(token.lastgroup == "line" for token in tokens)
        self.may_skip_groups = bool(re.search(r"[|]|\)[*?{]", self.text))
        self.finds_nothing = compiled.search("") is not None

    def on_lines(self, value: exp.Expr, found: exp.Expr, kind: exp.DType = T.TEXT) -> exp.Expr:
        """Return the result for one line; fail for several lines if the engines would differ."""
        if not self.sees_lines:
            return found
        several = call("contains", value.copy(), call("chr", exp.Literal.number(10)))
        failing = call(
            "error", text_literal("A pattern with . or $ was applied to a text of several lines.")
        )
        case = exp.Case(ifs=[exp.If(this=several, true=failing)], default=found)
        return with_type(exp.paren(case), kind)


def rewrite_regexp_like(node: exp.Expr) -> exp.Expr:
    """Rewrite REGEXP_LIKE: whether the pattern matches a part of the text."""
    if is_portable_pattern(node.expression):
        return check_regexp(node)
    require_family(node.this, "text", of=node)
    pattern = TrinoPattern(node.expression, "REGEXP_LIKE")
    found = call("regexp_matches", node.this, text_literal(pattern.text), kind=T.BOOLEAN)
    return pattern.on_lines(node.this, found, T.BOOLEAN)


def rewrite_regexp_replace(node: exp.Expr) -> exp.Expr:
    """Rewrite REGEXP_REPLACE of all matches; `$1` in the replacement refers to a group."""
    require_family(node.this, "text", of=node)
    pattern = TrinoPattern(node.expression, "REGEXP_REPLACE")
    if pattern.finds_nothing:
        refuse_translation("REGEXP_REPLACE with a pattern that matches an empty text")
    by = node.args.get("replacement")
    if not (isinstance(by, exp.Literal) and by.is_string):
        refuse_translation("REGEXP_REPLACE with a replacement that is not a constant")
    parts = re.split(r"\$([1-9])", by.name)
    if any(set(each) & set("\\$") for each in parts[::2]):
        refuse_translation("REGEXP_REPLACE with \\ or $ in the replacement")
    if any(int(group) > pattern.groups for group in parts[1::2]):
        refuse_translation("REGEXP_REPLACE with a group that the pattern does not have")
    spelt = re.sub(r"\$([1-9])", r"\\\1", by.name)
    found = call(
        "regexp_replace",
        node.this,
        text_literal(pattern.text),
        text_literal(spelt),
        text_literal("g"),
    )
    return pattern.on_lines(node.this, with_type(found, T.TEXT))


def rewrite_regexp_extract(node: exp.Expr) -> exp.Expr:
    """Rewrite REGEXP_EXTRACT: without a match Trino returns null, DuckDB an empty text."""
    require_family(node.this, "text", of=node)
    pattern = TrinoPattern(node.expression, "REGEXP_EXTRACT")
    group = integer_value(node.args["group"]) if node.args.get("group") is not None else 0
    if group is None or not 0 <= group <= pattern.groups:
        refuse_translation("REGEXP_EXTRACT of a group that the pattern does not have")
    if group and pattern.may_skip_groups:
        refuse_translation("REGEXP_EXTRACT of a group that may not match")
    given = text_literal(pattern.text)
    is_found = call("regexp_matches", node.this.copy(), given.copy())
    found = call("regexp_extract", node.this, given, exp.Literal.number(group))
    case = with_type(exp.Case(ifs=[exp.If(this=is_found, true=found)]), T.TEXT)
    return pattern.on_lines(node.this, parenthesize(case))

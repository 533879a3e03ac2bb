"""Text rules that Spark and Trino share: functions that treat every character equally."""

from __future__ import annotations

import re

from sqlglot import exp

from thermocline.engine.query_types import T, with_type
from thermocline.sql.dialect.rewrite import (
    call,
    construct_name,
    integer_value,
    is_portable_pattern,
    refuse_translation,
)
from thermocline.sql.dialect.shared_rules import require_family


def text_literal(value: str) -> exp.Expr:
    """Return a string literal."""
    return with_type(exp.Literal.string(value), T.TEXT)


def check_escape(node: exp.Expr) -> exp.Expr:
    """Check LIKE with ESCAPE: the escape is one character."""
    if not isinstance(node.this, exp.Like) or len(node.expression.name) != 1:
        refuse_translation("ESCAPE")
    return node


def check_regexp(node: exp.Expr) -> exp.Expr:
    """Check that a regular expression has one meaning in all engines."""
    require_family(node.this, "text", of=node)
    if not is_portable_pattern(node.expression) or node.args.get("flag"):
        refuse_translation(
            "a regular expression with more than letters, digits, classes, groups, * + ? and ^"
        )
    return node


def check_substring(node: exp.Expr) -> exp.Expr:
    """Check SUBSTRING: start and length are constants that all engines count in the same way."""
    require_family(node.this, "text", of=node)
    start, length = integer_value(node.args.get("start")), node.args.get("length")
    count = 0 if length is None else integer_value(length)
    if start is None or start < 1 or count is None or count < 0:
        refuse_translation("SUBSTRING with a start or length that is not a constant of at least 1")
    return node


def check_left_right(node: exp.Expr) -> exp.Expr:
    """Check LEFT and RIGHT: the count is a constant."""
    require_family(node.this, "text", of=node)
    count = integer_value(node.expression)
    if count is None or count < 0:
        refuse_translation(f"{construct_name(node)} with a count that is not a constant from 0")
    return node


def check_trim(node: exp.Expr) -> exp.Expr:
    """Check TRIM of a text."""
    require_family(node.this, "text", of=node)
    return node


BYTE_COUNT_FUNCTIONS = frozenset({"strlen"})
"""DuckDB's function for the number of bytes of a text."""


def byte_count_argument(node: exp.Expr) -> exp.Expr:
    """Return the text whose bytes are counted."""
    if len(node.expressions) != 1:
        refuse_translation(f"{node.name.lower()} of several values")
    require_family(node.expressions[0], "text", of=node)
    found: exp.Expr = node.expressions[0]
    return found


def check_replace(node: exp.Expr) -> exp.Expr:
    """Check REPLACE: engines differ on an empty search text."""
    for each in (node.this, node.expression, node.args.get("replacement")):
        if each is None:
            refuse_translation("REPLACE of an empty text")
        require_family(each, "text", of=node)
    search = node.expression
    if not (isinstance(search, exp.Literal) and search.name):
        refuse_translation("REPLACE of a text that is not a constant")
    return node


def check_split_part(node: exp.Expr) -> exp.Expr:
    """Check SPLIT_PART: separator and position are constants."""
    index = integer_value(node.args.get("part_index"))
    delimiter = node.args.get("delimiter")
    plain = isinstance(delimiter, exp.Literal) and bool(delimiter.name)
    if index is None or index < 1 or not plain:
        refuse_translation("SPLIT_PART with a separator or position that is not a constant")
    require_family(node.this, "text", of=node)
    return node


def check_position(node: exp.Expr) -> exp.Expr:
    """Check POSITION: the search starts at the beginning."""
    if node.args.get("position") or node.args.get("occurrence"):
        refuse_translation("POSITION with a start")
    require_family(node.this, "text", of=node)
    require_family(node.args["substr"], "text", of=node)
    return node


def check_containment(node: exp.Expr) -> exp.Expr:
    """Check CONTAINS and ENDS_WITH."""
    require_family(node.this, "text", of=node)
    require_family(node.expression, "text", of=node)
    return node


def rewrite_regexp_replace(node: exp.Expr) -> exp.Expr:
    """Rewrite REGEXP_REPLACE of all matches by a constant without back-references.

    Engines differ in how often a pattern with an empty match is replaced.
    """
    require_family(node.this, "text", of=node)
    if node.text("modifiers") != "g" or node.args.get("position"):
        refuse_translation("REGEXP_REPLACE with options other than 'g'")
    found, by = node.expression, node.args["replacement"]
    if not is_portable_pattern(found) or re.search(found.name, "") is not None:
        refuse_translation("REGEXP_REPLACE by a pattern beyond letters, digits, classes, groups")
    if not (isinstance(by, exp.Literal) and by.is_string) or set(by.name) & set("\\$"):
        refuse_translation("REGEXP_REPLACE with a replacement that is not a simple constant")
    return call("REGEXP_REPLACE", node.this, found, by, kind=T.TEXT)


def check_string_agg(node: exp.Expr) -> exp.Expr:
    """Check STRING_AGG with ORDER BY: all engines skip nulls, and return null for no values."""
    order, separator = node.this, node.args.get("separator")
    if not isinstance(order, exp.Order) or isinstance(order.this, exp.Distinct):
        refuse_translation("STRING_AGG without ORDER BY, or of DISTINCT values")
    if not (isinstance(separator, exp.Literal) and separator.is_string):
        refuse_translation("STRING_AGG with a separator that is not a constant")
    require_family(order.this, "text", of=node)
    if isinstance(node.find_ancestor(exp.Window, exp.Select), exp.Window):
        refuse_translation("STRING_AGG over a window")
    return node

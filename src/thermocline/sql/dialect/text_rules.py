"""Rules for texts that hold for Spark and Trino alike: what all engines do with every character."""

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
    """A text constant."""
    return with_type(exp.Literal.string(value), T.TEXT)


def check_escape(node: exp.Expr) -> exp.Expr:
    """LIKE with ESCAPE by one character."""
    if not isinstance(node.this, exp.Like) or len(node.expression.name) != 1:
        refuse_translation("ESCAPE")
    return node


def check_regexp(node: exp.Expr) -> exp.Expr:
    """A regular expression that all engines read alike."""
    require_family(node.this, "text", of=node)
    if not is_portable_pattern(node.expression) or node.args.get("flag"):
        refuse_translation(
            "a regular expression beyond letters, digits, classes, groups, * + ? and ^"
        )
    return node


def check_substring(node: exp.Expr) -> exp.Expr:
    """A part from a place and for a length that all engines count alike."""
    require_family(node.this, "text", of=node)
    start, length = integer_value(node.args.get("start")), node.args.get("length")
    count = 0 if length is None else integer_value(length)
    if start is None or start < 1 or count is None or count < 0:
        refuse_translation("SUBSTRING from or for a number that is no constant from 1 on")
    return node


def check_left_right(node: exp.Expr) -> exp.Expr:
    """LEFT and RIGHT by a number of characters."""
    require_family(node.this, "text", of=node)
    count = integer_value(node.expression)
    if count is None or count < 0:
        refuse_translation(f"{construct_name(node)} of a count that is no constant from 0 on")
    return node


def check_trim(node: exp.Expr) -> exp.Expr:
    """TRIM of a text."""
    require_family(node.this, "text", of=node)
    return node


BYTE_COUNT_FUNCTIONS = frozenset({"strlen"})
"""The function of DuckDB that counts the bytes of a text."""


def byte_count_argument(node: exp.Expr) -> exp.Expr:
    """The text whose bytes are counted."""
    if len(node.expressions) != 1:
        refuse_translation(f"{node.name.lower()} of several values")
    require_family(node.expressions[0], "text", of=node)
    found: exp.Expr = node.expressions[0]
    return found


def check_replace(node: exp.Expr) -> exp.Expr:
    """REPLACE of a text that is not empty: an empty one is found nowhere, or everywhere."""
    for each in (node.this, node.expression, node.args.get("replacement")):
        if each is None:
            refuse_translation("REPLACE by nothing")
        require_family(each, "text", of=node)
    search = node.expression
    if not (isinstance(search, exp.Literal) and search.name):
        refuse_translation("REPLACE of something that is no constant")
    return node


def check_split_part(node: exp.Expr) -> exp.Expr:
    """SPLIT_PART by a constant text and at a constant place."""
    index = integer_value(node.args.get("part_index"))
    delimiter = node.args.get("delimiter")
    plain = isinstance(delimiter, exp.Literal) and bool(delimiter.name)
    if index is None or index < 1 or not plain:
        refuse_translation("SPLIT_PART by something that is no constant")
    require_family(node.this, "text", of=node)
    return node


def check_position(node: exp.Expr) -> exp.Expr:
    """Where a text is found in another, from its beginning on."""
    if node.args.get("position") or node.args.get("occurrence"):
        refuse_translation("a position from somewhere on")
    require_family(node.this, "text", of=node)
    require_family(node.args["substr"], "text", of=node)
    return node


def check_containment(node: exp.Expr) -> exp.Expr:
    """Whether a text is in another, or at its end."""
    require_family(node.this, "text", of=node)
    require_family(node.expression, "text", of=node)
    return node


def rewrite_regexp_replace(node: exp.Expr) -> exp.Expr:
    """REGEXP_REPLACE of all that a pattern finds, by a constant that refers to nothing in it.

    A pattern that finds nothing at all between two letters is found there differently often.
    """
    require_family(node.this, "text", of=node)
    if node.text("modifiers") != "g" or node.args.get("position"):
        refuse_translation("REGEXP_REPLACE without the option 'g' alone")
    found, by = node.expression, node.args["replacement"]
    if not is_portable_pattern(found) or re.search(found.name, "") is not None:
        refuse_translation("REGEXP_REPLACE of a pattern beyond letters, digits, classes and groups")
    if not (isinstance(by, exp.Literal) and by.is_string) or set(by.name) & set("\\$"):
        refuse_translation("REGEXP_REPLACE by something that is no plain constant")
    return call("REGEXP_REPLACE", node.this, found, by, kind=T.TEXT)


def check_string_agg(node: exp.Expr) -> exp.Expr:
    """STRING_AGG of texts in an order: all engines pass nulls over, and of nothing make null."""
    order, separator = node.this, node.args.get("separator")
    if not isinstance(order, exp.Order) or isinstance(order.this, exp.Distinct):
        refuse_translation("STRING_AGG without ORDER BY, or of DISTINCT values")
    if not (isinstance(separator, exp.Literal) and separator.is_string):
        refuse_translation("STRING_AGG by something that is no constant")
    require_family(order.this, "text", of=node)
    if isinstance(node.find_ancestor(exp.Window, exp.Select), exp.Window):
        refuse_translation("STRING_AGG over a window")
    return node

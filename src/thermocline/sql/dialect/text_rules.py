"""Rules for texts that hold for Spark and Trino alike: what all engines do with every character."""

from __future__ import annotations

import re

from sqlglot import exp

from thermocline.engine.query_types import T, typed
from thermocline.sql.dialect.rewrite import (
    call,
    named,
    number,
    plain_pattern,
    unfaithful,
)
from thermocline.sql.dialect.shared_rules import need


def text(value: str) -> exp.Expr:
    """A text constant."""
    return typed(exp.Literal.string(value), T.TEXT)


def escape(node: exp.Expr) -> exp.Expr:
    """LIKE with ESCAPE by one character."""
    if not isinstance(node.this, exp.Like) or len(node.expression.name) != 1:
        unfaithful("ESCAPE")
    return node


def regexp(node: exp.Expr) -> exp.Expr:
    """A regular expression that all engines read alike."""
    need(node.this, "text", of=node)
    if not plain_pattern(node.expression) or node.args.get("flag"):
        unfaithful("a regular expression beyond letters, digits, classes, groups, * + ? and ^")
    return node


def substring(node: exp.Expr) -> exp.Expr:
    """A part from a place and for a length that all engines count alike."""
    need(node.this, "text", of=node)
    start, length = number(node.args.get("start")), node.args.get("length")
    count = 0 if length is None else number(length)
    if start is None or start < 1 or count is None or count < 0:
        unfaithful("SUBSTRING from or for a number that is no constant from 1 on")
    return node


def ends(node: exp.Expr) -> exp.Expr:
    """LEFT and RIGHT by a number of characters."""
    need(node.this, "text", of=node)
    count = number(node.expression)
    if count is None or count < 0:
        unfaithful(f"{named(node)} of a count that is no constant from 0 on")
    return node


def trimmed(node: exp.Expr) -> exp.Expr:
    """TRIM of a text."""
    need(node.this, "text", of=node)
    return node


BYTES = frozenset({"strlen"})
"""The function of DuckDB that counts the bytes of a text."""


def of_bytes(node: exp.Expr) -> exp.Expr:
    """The text whose bytes are counted."""
    if len(node.expressions) != 1:
        unfaithful(f"{node.name.lower()} of several values")
    need(node.expressions[0], "text", of=node)
    found: exp.Expr = node.expressions[0]
    return found


def replaced(node: exp.Expr) -> exp.Expr:
    """REPLACE of a text that is not empty: an empty one is found nowhere, or everywhere."""
    for each in (node.this, node.expression, node.args.get("replacement")):
        if each is None:
            unfaithful("REPLACE by nothing")
        need(each, "text", of=node)
    search = node.expression
    if not (isinstance(search, exp.Literal) and search.name):
        unfaithful("REPLACE of something that is no constant")
    return node


def part(node: exp.Expr) -> exp.Expr:
    """SPLIT_PART by a constant text and at a constant place."""
    index = number(node.args.get("part_index"))
    delimiter = node.args.get("delimiter")
    plain = isinstance(delimiter, exp.Literal) and bool(delimiter.name)
    if index is None or index < 1 or not plain:
        unfaithful("SPLIT_PART by something that is no constant")
    need(node.this, "text", of=node)
    return node


def position(node: exp.Expr) -> exp.Expr:
    """Where a text is found in another, from its beginning on."""
    if node.args.get("position") or node.args.get("occurrence"):
        unfaithful("a position from somewhere on")
    need(node.this, "text", of=node)
    need(node.args["substr"], "text", of=node)
    return node


def found_in(node: exp.Expr) -> exp.Expr:
    """Whether a text is in another, or at its end."""
    need(node.this, "text", of=node)
    need(node.expression, "text", of=node)
    return node


def pattern_replaced(node: exp.Expr) -> exp.Expr:
    """REGEXP_REPLACE of all that a pattern finds, by a constant that refers to nothing in it.

    A pattern that finds nothing at all between two letters is found there differently often.
    """
    need(node.this, "text", of=node)
    if node.text("modifiers") != "g" or node.args.get("position"):
        unfaithful("REGEXP_REPLACE without the option 'g' alone")
    found, by = node.expression, node.args["replacement"]
    if not plain_pattern(found) or re.search(found.name, "") is not None:
        unfaithful("REGEXP_REPLACE of a pattern beyond letters, digits, classes and groups")
    if not (isinstance(by, exp.Literal) and by.is_string) or set(by.name) & set("\\$"):
        unfaithful("REGEXP_REPLACE by something that is no plain constant")
    return call("REGEXP_REPLACE", node.this, found, by, kind=T.TEXT)


def joined(node: exp.Expr) -> exp.Expr:
    """STRING_AGG of texts in an order: all engines pass nulls over, and of nothing make null."""
    order, separator = node.this, node.args.get("separator")
    if not isinstance(order, exp.Order) or isinstance(order.this, exp.Distinct):
        unfaithful("STRING_AGG without ORDER BY, or of DISTINCT values")
    if not (isinstance(separator, exp.Literal) and separator.is_string):
        unfaithful("STRING_AGG by something that is no constant")
    need(order.this, "text", of=node)
    if isinstance(node.find_ancestor(exp.Window, exp.Select), exp.Window):
        unfaithful("STRING_AGG over a window")
    return node

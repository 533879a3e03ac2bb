"""Trino's own aggregates in DuckDB's words. What is only near there may be exact here."""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import NUMBERS, T, family, typed
from thermocline.sql.dialect.rewrite import Rule, call, named, unfaithful
from thermocline.sql.dialect.shared_rules import need


def distinct(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """APPROX_DISTINCT, counted exactly."""
    if family(node.this) in {"double", "real", "list", "map", "struct", "unknown"}:
        unfaithful(f"APPROX_DISTINCT of {family(node.this)}")
    return place(typed(exp.Count(this=exp.Distinct(expressions=[node.this.copy()])), T.BIGINT))


def percentile(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """APPROX_PERCENTILE: a value that is there, at exactly that place."""
    share = node.args.get("quantile")
    need(node.this, *NUMBERS, of=node)
    if node.args.get("weight") or node.args.get("accuracy"):
        unfaithful("APPROX_PERCENTILE with weights or an accuracy")
    if not (isinstance(share, exp.Literal) and not share.is_string and 0 <= float(share.name) <= 1):
        unfaithful("APPROX_PERCENTILE at something that is no constant between 0 and 1")
    return place(call("quantile_disc", node.this.copy(), share.copy(), kind=node.this.type))


def listed(node: exp.Expr) -> exp.Expr:
    """ARRAY_AGG, in an order or in any."""
    of = node.this.this if isinstance(node.this, exp.Order) else node.this
    if isinstance(of, exp.Distinct) or family(of) in {"unknown", "null"}:
        unfaithful("ARRAY_AGG of DISTINCT values, or of values without a type")
    if isinstance(node.find_ancestor(exp.Window, exp.Select), exp.Window):
        unfaithful(f"{named(node)} over a window")
    return call("list", node.this, kind=node.type)

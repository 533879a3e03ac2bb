"""Translate Trino's aggregates to DuckDB. Approximate aggregates are computed exactly."""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import NUMBERS, T, family, with_type
from thermocline.sql.dialect.rewrite import Rule, call, construct_name, refuse_translation
from thermocline.sql.dialect.shared_rules import require_family


def rewrite_approx_distinct(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """Rewrite APPROX_DISTINCT as an exact count."""
    if family(node.this) in {"double", "real", "list", "map", "struct", "unknown"}:
        refuse_translation(f"APPROX_DISTINCT of {family(node.this)}")
    return place(with_type(exp.Count(this=exp.Distinct(expressions=[node.this.copy()])), T.BIGINT))


def rewrite_approx_percentile(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """Rewrite APPROX_PERCENTILE as the exact discrete percentile."""
    share = node.args.get("quantile")
    require_family(node.this, *NUMBERS, of=node)
    if node.args.get("weight") or node.args.get("accuracy"):
        refuse_translation("APPROX_PERCENTILE with weights or an accuracy")
    if not (isinstance(share, exp.Literal) and not share.is_string and 0 <= float(share.name) <= 1):
        refuse_translation("APPROX_PERCENTILE at a fraction that is not a constant between 0 and 1")
    return place(call("quantile_disc", node.this.copy(), share.copy(), kind=node.this.type))


def rewrite_array_agg(node: exp.Expr) -> exp.Expr:
    """Rewrite ARRAY_AGG, with or without ORDER BY."""
    of = node.this.this if isinstance(node.this, exp.Order) else node.this
    if isinstance(of, exp.Distinct) or family(of) in {"unknown", "null"}:
        refuse_translation("ARRAY_AGG of DISTINCT values, or of values without a type")
    if isinstance(node.find_ancestor(exp.Window, exp.Select), exp.Window):
        refuse_translation(f"{construct_name(node)} over a window")
    return call("list", node.this, kind=node.type)

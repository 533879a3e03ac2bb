"""Generate Spark SQL from a syntax tree."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator


class _SparkWithNestedCtes(Spark):
    """sqlglot's Spark dialect, but with nested CTEs.

    sqlglot moves all CTEs to the top, as old versions of Spark required: two of the same name then
    fail, and a CTE that uses columns of an outer query cannot resolve them.
    """

    class Generator(SparkGenerator):
        EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[exp.Expr]]] = set()


def to_sql(tree: exp.Expr, **options: Any) -> str:
    """Return the text; `options` are the parser's."""
    return tree.sql(dialect=_SparkWithNestedCtes, **options)

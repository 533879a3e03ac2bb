"""A query's tree as Spark's SQL."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator


class _SparkWithNestedCtes(Spark):
    """The parser's Spark, which has CTEs where the query has them.

    It moves all of them to the top, as old versions of Spark need: two of one name end as an error
    there, and one that uses columns of an outer query no longer finds them.
    """

    class Generator(SparkGenerator):
        EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[exp.Expr]]] = set()


def to_sql(tree: exp.Expr, **options: Any) -> str:
    """Return the text; `options` are the parser's."""
    return tree.sql(dialect=_SparkWithNestedCtes, **options)

"""The total order of rows on Spark, so that the newest row never depends on the order of arrival.

A row ranks by the contract's ordering columns (null first), then a delete over an upsert, then by
its content. The last step has no meaning for a user; it only makes the result independent of which
of two different rows at the same position arrives first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.contract import types
from thermocline.engine.spark_types import EXACT_JSON, quote_identifier
from thermocline.transform.write_rules import DELETED, content_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from thermocline.contract.definition import Column, Contract


def build_comparable(column: Column, alias: str | None = None) -> str:
    """Build SQL for a column's value that can be compared; Spark has no order on maps."""
    name = f"{alias}.{quote_identifier(column.name)}" if alias else quote_identifier(column.name)
    return f"to_json(struct({name}), {EXACT_JSON})" if _has_map(column.type) else name


def build_equality(columns: Sequence[Column], left: str, right: str) -> str:
    """Build SQL that is true if two rows are equal in all columns; null equals null."""
    if not columns:
        return "true"
    return f"{_struct(columns, left)} <=> {_struct(columns, right)}"


def build_rank(contract: Contract, alias: str, deleted: str) -> str:
    """Build SQL for a row's rank in the order, to compare with another row's."""
    ordering = [f"{alias}.{quote_identifier(name)}" for name in contract.order_by]
    values = [build_comparable(column, alias) for column in content_columns(contract)]
    return f"struct({', '.join([*ordering, deleted, *values])})"


def build_position(contract: Contract, alias: str) -> str:
    """Build SQL for the ordering columns alone, null first; equal for all rows without any."""
    names = [f"{alias}.{quote_identifier(name)}" for name in contract.order_by]
    return f"struct({', '.join(names) or '0'})"


def build_ascending_order(contract: Contract, skip: int = 0) -> list[Expression]:
    """Build sort keys from oldest to newest, without the first `skip` ordering columns."""
    from pyspark.sql import functions as F

    names = [quote_identifier(name) for name in contract.order_by[skip:]]
    values = [build_comparable(column) for column in content_columns(contract)]
    return [F.expr(text).asc_nulls_first() for text in (*names, DELETED, *values)]


def select_newest(events: DataFrame, contract: Contract) -> DataFrame:
    """Select one row per key: its newest event, deletes included. One shuffle, one sort.

    It tests that no row follows rather than `row_number() = 1`: Spark plans the latter with an
    extra sort before the shuffle, which pays only if most rows are duplicates.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    system = [F.expr(build_comparable(column)) for column in contract.system_columns]
    window = Window.partitionBy(*(quote_identifier(name) for name in contract.key))
    last = F.lead(F.lit(1)).over(window.orderBy(*build_ascending_order(contract), *system))
    return events.withColumn("_tc_next", last).where("_tc_next is null").drop("_tc_next")


def _struct(columns: Sequence[Column], alias: str) -> str:
    return f"struct({', '.join(build_comparable(column, alias) for column in columns)})"


def _has_map(type_: types.Type) -> bool:
    match type_:
        case types.Map():
            return True
        case types.List(element):
            return _has_map(element)
        case types.Struct(fields):
            return any(_has_map(field.type) for field in fields)
    return False

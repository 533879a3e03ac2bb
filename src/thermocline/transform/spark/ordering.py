"""Which of two rows is newer: one total order, so that the last word never depends on arrival.

A row ranks by the contract's ordering columns (null first), then a delete over an upsert, then by
its content. The last step means nothing to a user; it only makes two different rows with the same
place in time give the same answer whichever comes first.
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


def comparable(column: Column, alias: str | None = None) -> str:
    """SQL for a column's value that can be compared; Spark has no order on maps."""
    name = f"{alias}.{quote_identifier(column.name)}" if alias else quote_identifier(column.name)
    return f"to_json(struct({name}), {EXACT_JSON})" if _has_map(column.type) else name


def same(columns: Sequence[Column], left: str, right: str) -> str:
    """SQL that holds when two rows agree in all columns, null with null."""
    if not columns:
        return "true"
    return f"{_struct(columns, left)} <=> {_struct(columns, right)}"


def rank(contract: Contract, alias: str, deleted: str) -> str:
    """SQL for a row's place in the order, comparable with another's."""
    ordering = [f"{alias}.{quote_identifier(name)}" for name in contract.order_by]
    values = [comparable(column, alias) for column in content_columns(contract)]
    return f"struct({', '.join([*ordering, deleted, *values])})"


def place(contract: Contract, alias: str) -> str:
    """SQL for the ordering columns alone, null first; the same for all rows if there are none."""
    names = [f"{alias}.{quote_identifier(name)}" for name in contract.order_by]
    return f"struct({', '.join(names) or '0'})"


def ascending(contract: Contract, skip: int = 0) -> list[Expression]:
    """Sort keys from oldest to newest, to be used after the first `skip` ordering columns."""
    from pyspark.sql import functions as F

    names = [quote_identifier(name) for name in contract.order_by[skip:]]
    values = [comparable(column) for column in content_columns(contract)]
    return [F.expr(text).asc_nulls_first() for text in (*names, DELETED, *values)]


def newest(events: DataFrame, contract: Contract) -> DataFrame:
    """One row a key: its newest event, deletes included. One shuffle, one sort.

    "Nothing follows me" rather than `row_number() = 1`: Spark answers the latter with an extra
    sort before the shuffle, which pays only where most rows are duplicates.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    system = [F.expr(comparable(column)) for column in contract.system_columns]
    window = Window.partitionBy(*(quote_identifier(name) for name in contract.key))
    last = F.lead(F.lit(1)).over(window.orderBy(*ascending(contract), *system))
    return events.withColumn("_tc_next", last).where("_tc_next is null").drop("_tc_next")


def _struct(columns: Sequence[Column], alias: str) -> str:
    return f"struct({', '.join(comparable(column, alias) for column in columns)})"


def _has_map(type_: types.Type) -> bool:
    match type_:
        case types.Map():
            return True
        case types.List(element):
            return _has_map(element)
        case types.Struct(fields):
            return any(_has_map(field.type) for field in fields)
    return False

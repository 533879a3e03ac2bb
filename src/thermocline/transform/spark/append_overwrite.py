"""Write strategies that ignore the table's existing rows: append, replace, partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark_types import quote_identifier
from thermocline.transform.spark import commits
from thermocline.transform.spark.conform import conform_rows
from thermocline.transform.spark.write_errors import explain_errors
from thermocline.transform.write_rules import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft

Partitions = Sequence[Mapping[str, Any]]
"""Partitions, as values of the partitioning columns."""


def append(rows: DataFrame, contract: Contract, draft: Draft, *, bookmark: Any, full: bool) -> int:
    """Append the rows; with `full`, replace the whole table by them and keep its history."""
    prepared = conform_rows(rows, contract).drop(DELETED)

    def commit(target: str) -> None:
        with explain_errors(rows, contract):
            (commits.replace if full else commits.append)(prepared, target)

    operation = "replace" if full else "append"
    return draft.commit(contract.table, commit, bookmark=bookmark, operation=operation)


def partitions(
    rows: DataFrame,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Any,
    computed: Expression | Partitions | None,
) -> int:
    """Replace whole partitions by the model's new rows for them.

    `computed` are the partitions that the model computed: a condition that selects exactly them, or
    the values of their columns. One without rows is emptied; a row outside of them is an error.
    Without it, the partitions that occur in the rows are replaced.
    """
    prepared = conform_rows(rows, contract).drop(DELETED)
    if computed is None:
        return _replace_present(rows, prepared, contract, draft, bookmark)
    within = computed if not isinstance(computed, Sequence) else build_condition(computed)
    guarded = _guard_partitions(prepared, contract, within)

    def commit(target: str) -> None:
        with explain_errors(rows, contract):
            guarded.writeTo(target).overwrite(within)

    return draft.commit(contract.table, commit, bookmark=bookmark, operation="partitions")


def build_condition(partitions: Partitions) -> Expression:
    """Build the condition that selects exactly these partitions of identity-partitioned columns."""
    from pyspark.sql import functions as F

    def equal(name: str, value: Any) -> Expression:
        column = F.col(quote_identifier(name))
        return column.isNull() if value is None else column == F.lit(value)

    each = [reduce(and_, (equal(*item) for item in values.items())) for values in partitions]
    return reduce(or_, each, F.lit(False))


def _replace_present(
    rows: DataFrame, prepared: DataFrame, contract: Contract, draft: Draft, bookmark: Any
) -> int:
    def commit(target: str) -> None:
        before = draft.head(contract.table)
        with explain_errors(rows, contract):
            prepared.writeTo(target).overwritePartitions()
        # Iceberg skips the commit when there is nothing to write, and the bookmark with it.
        if draft.head(contract.table) == before:
            commits.append(prepared.limit(0), target)

    return draft.commit(contract.table, commit, bookmark=bookmark, operation="partitions")


def _guard_partitions(prepared: DataFrame, contract: Contract, within: Expression) -> DataFrame:
    """Make rows outside the partitions fail: they would be added to a partition's old rows.

    The guard is in a column rather than in a filter: Spark may push a filter below the model's own
    joins, to rows that the model discards.
    """
    from pyspark.sql import functions as F

    first = contract.partition[0].column if contract.partition else prepared.columns[0]
    message = F.concat(
        F.lit(f"{contract.table}: a row lies outside the partitions that were computed: "),
        F.to_json(F.struct(*(F.col(quote_identifier(p.column)) for p in contract.partition))),
    )
    inside = F.when(within, F.col(quote_identifier(first))).otherwise(F.raise_error(message))
    kept = prepared.schema[first].dataType
    return prepared.withColumn(first, inside.cast(kept))

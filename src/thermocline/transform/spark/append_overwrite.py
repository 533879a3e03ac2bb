"""Strategies that never look at the rows already there: append, partitions, replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark_types import quote_identifier
from thermocline.transform.spark import commits
from thermocline.transform.spark.conform import shaped
from thermocline.transform.spark.write_errors import explained
from thermocline.transform.write_rules import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft

Partitions = Sequence[Mapping[str, Any]]
"""Partitions by the values of the columns that they are cut by."""


def append(rows: DataFrame, contract: Contract, draft: Draft, *, bookmark: Any, full: bool) -> int:
    """Add the rows; with `full` they take the place of everything."""
    ready = shaped(rows, contract).drop(DELETED)

    def commit(target: str) -> None:
        with explained(rows, contract):
            (commits.replace if full else commits.append)(ready, target)

    operation = "replace" if full else "append"
    return draft.commit(contract.table, commit, bookmark=bookmark, operation=operation)


def replace(rows: DataFrame, contract: Contract, draft: Draft, *, bookmark: Any) -> int:
    """Put the rows in the place of the whole table, in one commit that keeps the history."""
    return append(rows, contract, draft, bookmark=bookmark, full=True)


def partitions(
    rows: DataFrame,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Any,
    full: bool,
    computed: Expression | Partitions | None,
) -> int:
    """Replace whole partitions by the rows that the model now gives for them.

    `computed` says which partitions the model was asked for: a condition that selects exactly
    those, or the values of their columns. One that got no row is emptied; a row outside them is
    an error. Without it, the partitions that occur in the rows are replaced.
    """
    if full:
        return replace(rows, contract, draft, bookmark=bookmark)
    ready = shaped(rows, contract).drop(DELETED)
    if computed is None:
        return _replace_present(rows, ready, contract, draft, bookmark)
    within = computed if not isinstance(computed, Sequence) else condition(computed)
    guarded = _guarded(ready, contract, within)

    def commit(target: str) -> None:
        with explained(rows, contract):
            guarded.writeTo(target).overwrite(within)

    return draft.commit(contract.table, commit, bookmark=bookmark, operation="partitions")


def condition(partitions: Partitions) -> Expression:
    """The condition that selects exactly these partitions of identity-partitioned columns."""
    from pyspark.sql import functions as F

    def equal(name: str, value: Any) -> Expression:
        column = F.col(quote_identifier(name))
        return column.isNull() if value is None else column == F.lit(value)

    each = [reduce(and_, (equal(*item) for item in values.items())) for values in partitions]
    return reduce(or_, each, F.lit(False))


def _replace_present(
    rows: DataFrame, ready: DataFrame, contract: Contract, draft: Draft, bookmark: Any
) -> int:
    def commit(target: str) -> None:
        before = draft.head(contract.table)
        with explained(rows, contract):
            ready.writeTo(target).overwritePartitions()
        # Iceberg skips the commit when there is nothing to write, and the bookmark with it.
        if draft.head(contract.table) == before:
            commits.append(ready.limit(0), target)

    return draft.commit(contract.table, commit, bookmark=bookmark, operation="partitions")


def _guarded(ready: DataFrame, contract: Contract, within: Expression) -> DataFrame:
    """The same rows, failing on one outside: it would be added beside a partition's old rows.

    The guard sits in a column rather than in a filter, which Spark may move below the model's own
    joins and there meet rows that the model throws away.
    """
    from pyspark.sql import functions as F

    first = contract.partition[0].column if contract.partition else ready.columns[0]
    message = F.concat(
        F.lit(f"{contract.table}: a row lies outside the partitions that were computed: "),
        F.to_json(F.struct(*(F.col(quote_identifier(p.column)) for p in contract.partition))),
    )
    inside = F.when(within, F.col(quote_identifier(first))).otherwise(F.raise_error(message))
    kept = ready.schema[first].dataType
    return ready.withColumn(first, inside.cast(kept))

"""Merge: one row a key, the newest, whatever the order of arrival.

What happens to each row is decided before anything is written, by looking up the batch's keys in
the table. So a row that changes nothing is not written, a batch of new keys is a plain append,
and the MERGE itself compares keys only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark_types import quote_identifier
from thermocline.transform import tombstones
from thermocline.transform.spark import commits, ordering
from thermocline.transform.spark.conform import shaped
from thermocline.transform.spark.write_errors import explained, without
from thermocline.transform.write_rules import (
    ACTION,
    DELETED,
    content_columns,
    is_empty,
    written_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft

BROADCAST_ROWS = 500_000
"""A batch of at most so many keys is sent to where the table is read, and not the other way."""


@dataclass(frozen=True)
class Survey:
    """What must be known of a batch before it is written."""

    rows: int
    deletes: int


def events(rows: DataFrame, contract: Contract, draft: Draft, *, bookmark: Any, full: bool) -> int:
    """Write rows that are events: of each key the newest by `order_by` stays, or its delete.

    The table is the same for every order and batching of the same events. Deletes are remembered
    in the companion table, which is committed to the draft first.
    """
    companion = tombstones.contract_for(contract)
    events = shaped(rows, contract, deletes=True)
    newest = ordering.newest(events, contract)
    tables = [each.table for each in (contract, companion) if each is not None]
    if full or all(is_empty(draft, table) for table in tables):
        # Nothing to compare with: the rows go straight to the table, and are not kept on the way.
        put = _replaced if full else _commit
        if companion is None or commits.repeatable(events):
            if companion is not None:
                put(rows, shaped(_last_words(events, contract), companion), companion, draft, None)
            return put(rows, newest.where(f"not {DELETED}"), contract, draft, bookmark)
    with commits.evaluated_once(newest) as kept:
        survey = surveyed(kept, contract)
        if companion is None:
            return _settle(rows, kept, contract, draft, survey, bookmark)
        if full:
            _replaced(rows, kept.where(DELETED), companion, draft, None)
            return _replaced(rows, kept.where(f"not {DELETED}"), contract, draft, bookmark)
        if survey.deletes:
            _remember(kept.where(DELETED), companion, draft, survey)
        alive = _not_buried(kept, contract, companion, draft)
        return _settle(rows, alive, contract, draft, survey, bookmark)


def _last_words(events: DataFrame, contract: Contract) -> DataFrame:
    """The deletes that are the newest event of their key, in key and ordering columns.

    The same rows as `ordering.newest` gives, but the events' other columns are not read for it.
    """
    from pyspark.sql import functions as F

    key = [quote_identifier(name) for name in contract.key]
    places = [quote_identifier(name) for name in contract.order_by if name not in contract.key]
    narrow = events.select(*key, *places, DELETED)
    gone = narrow.where(DELETED).select(*key).distinct()
    ranked = narrow.join(gone, list(contract.key), "leftsemi").groupBy(*key)
    order = [quote_identifier(name) for name in contract.order_by]
    last = ranked.agg(F.max(F.struct(*order, DELETED)).alias("_tc_last"))
    return last.where(f"_tc_last.{DELETED}").select(*key, *(f"_tc_last.{name}" for name in places))


def state(
    rows: DataFrame,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Any,
    full: bool,
    affected: DataFrame | None,
) -> int:
    """Write rows that are the state of some keys: what is there becomes what the rows say.

    Keys in `affected` that have no row are deleted. A key with two rows is an error.
    """
    states = _one_each(shaped(rows, contract, deletes=True), contract, affected)
    if full:
        return _replaced(rows, states.where(f"not {DELETED}"), contract, draft, bookmark)
    with commits.evaluated_once(states) as kept:
        survey = surveyed(kept, contract)
        return _settle(rows, kept, contract, draft, survey, bookmark)


def surveyed(kept: DataFrame, contract: Contract, needed: Sequence[str] = ()) -> Survey:
    """Count a batch's rows and deletes in one pass, which also fills the cache.

    Raises CheckFailed where rows have no key, or no value in another column that is `needed`:
    SQL's equality would never find them again.
    """
    from pyspark.sql import functions as F

    needed = (*contract.key, *needed)
    null = " or ".join(f"{quote_identifier(name)} is null" for name in needed)
    found = kept.agg(F.count("*"), F.count_if(F.col(DELETED)), F.count_if(F.expr(null))).first()
    total, deletes, nulls = found or (0, 0, 0)
    if nulls:
        raise without(kept.where(null), contract, needed, nulls)
    return Survey(total, deletes)


def of_these_keys(table: DataFrame, keys: DataFrame, key: tuple[str, ...], rows: int) -> DataFrame:
    """The table's rows that have one of the keys, without moving the table's other rows."""
    from pyspark.sql import functions as F

    wanted = keys.select(*(quote_identifier(name) for name in key)).alias("s")
    few = F.broadcast(wanted) if rows <= BROADCAST_ROWS else wanted
    return table.alias("t").join(few, F.expr(_equal(key)), "leftsemi")


def _one_each(rows: DataFrame, contract: Contract, affected: DataFrame | None) -> DataFrame:
    """The rows, and a delete for each affected key without one. Two rows of a key fail."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [quote_identifier(name) for name in contract.key]
    every = rows.withColumn("_tc_stated", F.lit(True))
    if affected is not None:
        keys = affected.select(*key, F.lit(True).alias(DELETED), F.lit(False).alias("_tc_stated"))
        every = every.unionByName(keys, allowMissingColumns=True)
    number = F.row_number().over(Window.partitionBy(*key).orderBy(F.col("_tc_stated").desc()))
    message = F.concat(
        F.lit(f"{contract.table}: the model gives several rows for the key "),
        F.to_json(F.struct(*key)),
    )
    twice = F.when(F.col("_tc_stated"), F.raise_error(message)).otherwise(False)
    first = F.when(F.col("_tc_number") == 1, True).otherwise(twice)
    numbered = every.withColumn("_tc_number", number)
    return numbered.where(first).drop("_tc_number", "_tc_stated")


def _remember(deletes: DataFrame, companion: Contract, draft: Draft, survey: Survey) -> None:
    """Keep the newest delete of each key, so that an older row finds it."""
    _settle(deletes, shaped(deletes, companion), companion, draft, survey, None)


def _not_buried(
    batch: DataFrame, contract: Contract, companion: Contract, draft: Draft
) -> DataFrame:
    """The batch without rows that a remembered delete outdoes; a tie is the delete's."""
    from pyspark.sql import functions as F

    if is_empty(draft, companion.table):
        return batch
    graves = commits.as_of_now(draft, companion.table).alias("t")
    outdone = F.expr(
        f"not s.{DELETED} and {_equal(contract.key)} and "
        f"{ordering.place(contract, 't')} >= {ordering.place(contract, 's')}"
    )
    return batch.alias("s").join(graves, outdone, "leftanti")


def _settle(
    rows: DataFrame,
    batch: DataFrame,
    contract: Contract,
    draft: Draft,
    survey: Survey,
    bookmark: Any,
) -> int:
    """Decide what each row of the batch does to the table, and commit that."""
    if is_empty(draft, contract.table):
        return _commit(rows, batch, contract, draft, bookmark)
    table = commits.as_of_now(draft, contract.table)
    columns = [column.name for column in written_columns(contract)]
    with ExitStack() as cached:
        changes = _decided(batch, table, contract, survey)
        changes = cached.enter_context(commits.evaluated_once(changes))
        if commits.actions(changes)["compare"]:
            changes = _compared(changes, table, contract, survey)
            changes = cached.enter_context(commits.evaluated_once(changes))

        def commit(target: str) -> None:
            with explained(rows, contract):
                commits.change(changes, target, on=contract.key, columns=columns)

        return draft.commit(contract.table, commit, bookmark=bookmark, operation="merge")


def _decided(batch: DataFrame, table: DataFrame, contract: Contract, survey: Survey) -> DataFrame:
    """The batch with each row's action, from key and ordering columns alone.

    Those are a small part of most tables. Where they leave it open, the action is "compare";
    a table that has no other columns leaves nothing open.
    """
    from pyspark.sql import functions as F

    names = dict.fromkeys((*contract.key, *contract.order_by))
    narrow = table.select(*(quote_identifier(name) for name in names))
    there = of_these_keys(narrow, batch, contract.key, survey.rows)
    ours, theirs = ordering.place(contract, "s"), ordering.place(contract, "t")
    undecided = "null" if {c.name for c in content_columns(contract)} <= {*names} else "'compare'"
    newer = f"{ours} > {theirs} or (s.{DELETED} and {ours} = {theirs})"
    action = (
        f"case when t.{quote_identifier(contract.key[0])} is null then if(s.{DELETED}, null, 'insert') "
        f"when {newer} then if(s.{DELETED}, 'delete', 'update') "
        f"when {ours} = {theirs} then {undecided} end as {ACTION}"
    )
    joined = batch.alias("s").join(there.alias("t"), F.expr(_equal(contract.key)), "left")
    return joined.selectExpr("s.*", action).where(f"{ACTION} is not null")


def _compared(
    changes: DataFrame, table: DataFrame, contract: Contract, survey: Survey
) -> DataFrame:
    """The changes with what was open decided by content: the greater row stays, or the new one
    where the contract knows no order."""
    from pyspark.sql import functions as F

    open_ = changes.where(f"{ACTION} = 'compare'")
    there = of_these_keys(table, open_, contract.key, survey.rows).alias("t")
    if contract.order_by:
        differs = f"{ordering.rank(contract, 's', 'false')} > "
        differs += ordering.rank(contract, "t", "false")
    else:
        differs = f"not ({ordering.same(written_columns(contract), 's', 't')})"
    joined = open_.alias("s").join(there, F.expr(_equal(contract.key)))
    updates = joined.where(differs).select("s.*").withColumn(ACTION, F.lit("update"))
    return changes.where(f"{ACTION} <> 'compare'").unionByName(updates)


def _commit(
    rows: DataFrame, batch: DataFrame, contract: Contract, draft: Draft, bookmark: Any
) -> int:
    """Add a batch to an empty table."""
    ready = batch.where(f"not {DELETED}").drop(DELETED)

    def commit(target: str) -> None:
        with explained(rows, contract):
            commits.append(ready, target)

    return draft.commit(contract.table, commit, bookmark=bookmark, operation="merge")


def _replaced(
    rows: DataFrame, batch: DataFrame, contract: Contract, draft: Draft, bookmark: Any
) -> int:
    """Put a batch in the place of the whole table."""
    ready = shaped(batch, contract).drop(DELETED)

    def commit(target: str) -> None:
        with explained(rows, contract):
            commits.replace(ready, target)

    return draft.commit(contract.table, commit, bookmark=bookmark, operation="merge")


def _equal(key: tuple[str, ...]) -> str:
    return " and ".join(f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in key)

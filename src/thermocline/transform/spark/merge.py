"""Merge on Spark: one row per key, the newest, independent of the order of arrival.

The action of each row is decided before anything is written, by looking up the batch's keys in the
table. So a row that changes nothing is not written, a batch of new keys is a simple append, and the
MERGE itself compares only keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark_types import quote_identifier
from thermocline.transform import tombstones, write_rules
from thermocline.transform.spark import commits, ordering
from thermocline.transform.spark.conform import conform_rows
from thermocline.transform.spark.write_errors import build_missing_key_error, explain_errors
from thermocline.transform.write_rules import ACTION, DELETED, is_empty, written_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft

BROADCAST_ROWS = 500_000
"""Most keys of a batch to broadcast to the readers of the table."""


@dataclass(frozen=True)
class BatchCounts:
    """The row counts of a batch, needed before it is written."""

    rows: int
    deletes: int


def write_events(
    rows: DataFrame, contract: Contract, draft: Draft, *, bookmark: Any, full: bool
) -> int:
    """Write events: keep the newest event of each key by `order_by`, or its delete.

    The table is the same for every order and batching of the same events. Deletes are stored in
    the companion table, which is committed to the draft first.
    """
    companion = tombstones.derive_companion(contract)
    events = conform_rows(rows, contract, deletes=True)
    newest = ordering.select_newest(events, contract)
    tables = [each.table for each in (contract, companion) if each is not None]
    if full or all(is_empty(draft, table) for table in tables):
        # Nothing to compare with: the rows are written directly, without caching them.
        write = _replace_table if full else _append_batch
        if companion is None or commits.is_deterministic(events):
            if companion is not None:
                write(
                    rows,
                    conform_rows(_find_last_deletes(events, contract), companion),
                    companion,
                    draft,
                    None,
                )
            return write(rows, newest.where(f"not {DELETED}"), contract, draft, bookmark)
    with commits.evaluate_once(newest) as batch:
        counts = count_batch(batch, contract)
        if companion is None:
            return _merge_batch(rows, batch, contract, draft, counts, bookmark)
        if full:
            _replace_table(rows, batch.where(DELETED), companion, draft, None)
            return _replace_table(rows, batch.where(f"not {DELETED}"), contract, draft, bookmark)
        if counts.deletes:
            _store_deletes(batch.where(DELETED), companion, draft, counts)
        alive = _remove_deleted(batch, contract, companion, draft)
        return _merge_batch(rows, alive, contract, draft, counts, bookmark)


def _find_last_deletes(events: DataFrame, contract: Contract) -> DataFrame:
    """Return the deletes that are the newest event of their key, in key and ordering columns.

    These are the deletes of `ordering.select_newest`, without reading the events' other columns.
    """
    from pyspark.sql import functions as F

    key = [quote_identifier(name) for name in contract.key]
    places = [quote_identifier(name) for name in contract.order_by if name not in contract.key]
    narrow = events.select(*key, *places, DELETED)
    deleted_keys = narrow.where(DELETED).select(*key).distinct()
    ranked = narrow.join(deleted_keys, list(contract.key), "leftsemi").groupBy(*key)
    order = [quote_identifier(name) for name in contract.order_by]
    last = ranked.agg(F.max(F.struct(*order, DELETED)).alias("_tc_last"))
    return last.where(f"_tc_last.{DELETED}").select(*key, *(f"_tc_last.{name}" for name in places))


def write_states(
    rows: DataFrame,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Any,
    full: bool,
    affected: DataFrame | None,
) -> int:
    """Write states: the rows replace the table's rows of the same keys.

    Keys in `affected` without a row are deleted. A key with two rows is an error.
    """
    states = _require_one_per_key(conform_rows(rows, contract, deletes=True), contract, affected)
    if full:
        return _replace_table(rows, states.where(f"not {DELETED}"), contract, draft, bookmark)
    with commits.evaluate_once(states) as batch:
        counts = count_batch(batch, contract)
        return _merge_batch(rows, batch, contract, draft, counts, bookmark)


def count_batch(batch: DataFrame, contract: Contract, needed: Sequence[str] = ()) -> BatchCounts:
    """Count a batch's rows and deletes in one pass, which also fills the cache.

    Raises CheckFailed if rows lack a value in a key column or another `needed` column: SQL's
    equality would never find them again.
    """
    from pyspark.sql import functions as F

    needed = (*contract.key, *needed)
    null = " or ".join(f"{quote_identifier(name)} is null" for name in needed)
    found = batch.agg(F.count("*"), F.count_if(F.col(DELETED)), F.count_if(F.expr(null))).first()
    total, deletes, nulls = found or (0, 0, 0)
    if nulls:
        raise build_missing_key_error(batch.where(null), contract, needed, nulls)
    return BatchCounts(total, deletes)


def filter_by_keys(table: DataFrame, keys: DataFrame, key: tuple[str, ...], rows: int) -> DataFrame:
    """Return the table's rows that have one of the keys, without shuffling its other rows."""
    from pyspark.sql import functions as F

    key_rows = keys.select(*(quote_identifier(name) for name in key)).alias("s")
    few = F.broadcast(key_rows) if rows <= BROADCAST_ROWS else key_rows
    return table.alias("t").join(few, F.expr(match_keys(key)), "leftsemi")


def _require_one_per_key(
    rows: DataFrame, contract: Contract, affected: DataFrame | None
) -> DataFrame:
    """Return the rows, and a delete for each affected key without a row; two rows per key fail."""
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
    fail_if_duplicate = F.when(F.col("_tc_stated"), F.raise_error(message)).otherwise(False)
    first = F.when(F.col("_tc_number") == 1, True).otherwise(fail_if_duplicate)
    numbered = every.withColumn("_tc_number", number)
    return numbered.where(first).drop("_tc_number", "_tc_stated")


def _store_deletes(
    deletes: DataFrame, companion: Contract, draft: Draft, counts: BatchCounts
) -> None:
    """Store the newest delete of each key, for late rows that are older."""
    _merge_batch(deletes, conform_rows(deletes, companion), companion, draft, counts, None)


def _remove_deleted(
    batch: DataFrame, contract: Contract, companion: Contract, draft: Draft
) -> DataFrame:
    """Return the batch without rows older than a stored delete of their key; a delete wins ties."""
    from pyspark.sql import functions as F

    if is_empty(draft, companion.table):
        return batch
    tombstone_table = commits.read_head(draft, companion.table).alias("t")
    is_deleted = F.expr(
        f"not s.{DELETED} and {match_keys(contract.key)} and "
        f"{ordering.build_position(contract, 't')} >= {ordering.build_position(contract, 's')}"
    )
    return batch.alias("s").join(tombstone_table, is_deleted, "leftanti")


def _merge_batch(
    rows: DataFrame,
    batch: DataFrame,
    contract: Contract,
    draft: Draft,
    counts: BatchCounts,
    bookmark: Any,
) -> int:
    """Decide the action of each row of the batch, and commit the changes."""
    if is_empty(draft, contract.table):
        return _append_batch(rows, batch, contract, draft, bookmark)
    table = commits.read_head(draft, contract.table)
    columns = [column.name for column in written_columns(contract)]
    with ExitStack() as cached:
        changes = _decide_actions(batch, table, contract, counts)
        changes = cached.enter_context(commits.evaluate_once(changes))
        if commits.count_actions(changes)["compare"]:
            changes = _compare_contents(changes, table, contract, counts)
            changes = cached.enter_context(commits.evaluate_once(changes))

        def commit(target: str) -> None:
            with explain_errors(rows, contract):
                commits.apply_actions(changes, target, on=contract.key, columns=columns)

        return draft.commit(contract.table, commit, bookmark=bookmark, operation="merge")


def _decide_actions(
    batch: DataFrame, table: DataFrame, contract: Contract, counts: BatchCounts
) -> DataFrame:
    """Return the batch with each row's action, decided from key and ordering columns alone.

    These are a small part of most tables. If they do not decide, the action is "compare"; in a
    table without other columns they always decide.
    """
    from pyspark.sql import functions as F

    names = dict.fromkeys((*contract.key, *contract.order_by))
    narrow = table.select(*(quote_identifier(name) for name in names))
    there = filter_by_keys(narrow, batch, contract.key, counts.rows)
    ours, theirs = ordering.build_position(contract, "s"), ordering.build_position(contract, "t")
    content = {column.name for column in write_rules.content_columns(contract)}
    undecided = "null" if content <= {*names} else "'compare'"
    newer = f"{ours} > {theirs} or (s.{DELETED} and {ours} = {theirs})"
    action = (
        f"case when t.{quote_identifier(contract.key[0])} is null "
        f"then if(s.{DELETED}, null, 'insert') "
        f"when {newer} then if(s.{DELETED}, 'delete', 'update') "
        f"when {ours} = {theirs} then {undecided} end as {ACTION}"
    )
    joined = batch.alias("s").join(there.alias("t"), F.expr(match_keys(contract.key)), "left")
    return joined.selectExpr("s.*", action).where(f"{ACTION} is not null")


def _compare_contents(
    changes: DataFrame, table: DataFrame, contract: Contract, counts: BatchCounts
) -> DataFrame:
    """Decide the action "compare" by content: the greater row stays, or the new one if the contract
    has no order."""
    from pyspark.sql import functions as F

    open_ = changes.where(f"{ACTION} = 'compare'")
    there = filter_by_keys(table, open_, contract.key, counts.rows).alias("t")
    if contract.order_by:
        differs = f"{ordering.build_rank(contract, 's', 'false')} > "
        differs += ordering.build_rank(contract, "t", "false")
    else:
        differs = f"not ({ordering.build_equality(written_columns(contract), 's', 't')})"
    joined = open_.alias("s").join(there, F.expr(match_keys(contract.key)))
    updates = joined.where(differs).select("s.*").withColumn(ACTION, F.lit("update"))
    return changes.where(f"{ACTION} <> 'compare'").unionByName(updates)


def _append_batch(
    rows: DataFrame, batch: DataFrame, contract: Contract, draft: Draft, bookmark: Any
) -> int:
    """Append a batch to an empty table."""
    ready = batch.where(f"not {DELETED}").drop(DELETED)

    def commit(target: str) -> None:
        with explain_errors(rows, contract):
            commits.append(ready, target)

    return draft.commit(contract.table, commit, bookmark=bookmark, operation="merge")


def _replace_table(
    rows: DataFrame, batch: DataFrame, contract: Contract, draft: Draft, bookmark: Any
) -> int:
    """Replace the whole table by a batch."""
    ready = conform_rows(batch, contract).drop(DELETED)

    def commit(target: str) -> None:
        with explain_errors(rows, contract):
            commits.replace(ready, target)

    return draft.commit(contract.table, commit, bookmark=bookmark, operation="merge")


def match_keys(key: tuple[str, ...]) -> str:
    return " and ".join(f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in key)

"""Commit prepared rows to a table with Spark; each write makes exactly one Iceberg commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thermocline.engine.spark import CATALOG
from thermocline.engine.spark_types import quote_identifier
from thermocline.transform.write_rules import ACTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from thermocline.lake.draft import Draft


def append(rows: DataFrame, target: str) -> None:
    """Append rows; an empty append still makes a commit, which carries the bookmark."""
    rows.writeTo(target).append()


def replace(rows: DataFrame, target: str) -> None:
    """Replace the whole table by rows. Older snapshots keep the old rows."""
    from pyspark.sql import functions as F

    rows.writeTo(target).overwrite(F.lit(True))


def count_actions(changes: DataFrame) -> Counter[str]:
    """Count the rows of each ACTION; rows without an action do not count."""
    rows = changes.where(f"{ACTION} is not null").groupBy(ACTION).count().collect()
    return Counter({row[0]: row[1] for row in rows})


def apply_actions(
    changes: DataFrame, target: str, *, on: Sequence[str], columns: Sequence[str]
) -> None:
    """Insert, update and delete rows by their ACTION.

    `changes` has at most one row per value of the columns `on`. The actions must be valid: rows to
    update or delete exist, rows to insert do not. It is read several times, so it must be evaluated
    once (`evaluate_once`).
    """
    from pyspark.sql import functions as F

    counts = count_actions(changes)
    if not counts["update"] and not counts["delete"]:
        # Inserts need no lookup, so the table is not read at all.
        new = changes.where(f"{ACTION} = 'insert'")
        append(new.select(*(quote_identifier(name) for name in columns)), target)
        return
    values = {quote_identifier(name): F.col(f"s.{quote_identifier(name)}") for name in columns}
    matching = " and ".join(
        f"{target}.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in on
    )
    # Not SQL's MERGE: that takes a view, and Spark 4.1 cannot plan a view over a cached frame
    # that reads the table which is merged into.
    merge = changes.alias("s").mergeInto(target, F.expr(matching))
    if counts["delete"]:
        merge = merge.whenMatched(F.expr(f"s.{ACTION} = 'delete'")).delete()
    if counts["update"]:
        merge = merge.whenMatched(F.expr(f"s.{ACTION} = 'update'")).update(values)
    if counts["insert"]:
        # Without this clause Spark sends the changes to the table instead of shuffling both.
        merge = merge.whenNotMatched(F.expr(f"s.{ACTION} = 'insert'")).insert(values)
    with _prefer_hash_joins(changes.sparkSession):
        merge.merge()


@contextmanager
def _prefer_hash_joins(session: SparkSession) -> Iterator[None]:
    """Let Spark hash-join the few changes, where by default it sorts the whole table.

    It still sorts where the changes are not much smaller than the table. A hint would do it too,
    but Spark heeds it only in the search for the files, where a broadcast is better still.
    """
    name = "spark.sql.join.preferSortMergeJoin"
    before = session.conf.get(name)
    session.conf.set(name, "false")
    try:
        yield
    finally:
        session.conf.set(name, before or "true")


def read_head(draft: Draft, table: str) -> DataFrame:
    """Read the draft's branch of a table, pinned at its newest snapshot.

    A frame over the branch itself would be read again after our own next commit, even if it was
    cached: Spark refreshes cached frames whose table was written.
    """
    reader = draft.lake.spark.session.read.option("versionAsOf", str(draft.head(table)))
    return reader.table(f"{CATALOG}.{table}")


def is_deterministic(rows: DataFrame) -> bool:
    """Return whether Spark considers the rows deterministic."""
    return bool(rows._jdf.queryExecution().analyzed().deterministic())


@contextmanager
def evaluate_once(rows: DataFrame) -> Iterator[DataFrame]:
    """Cache rows, so that they are computed once however often they are read.

    Writes that read their source several times need it: a copy-on-write MERGE first finds the files
    and then rewrites them, and a model that is not deterministic (a random id, the current time)
    must return the same rows to both.
    """
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()

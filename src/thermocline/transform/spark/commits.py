"""Putting prepared rows into a table: each function makes exactly one Iceberg commit."""

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
    """Add rows; no rows still make a commit, which carries the bookmark."""
    rows.writeTo(target).append()


def replace(rows: DataFrame, target: str) -> None:
    """Put rows in the place of everything there is. Older snapshots keep what was there."""
    from pyspark.sql import functions as F

    rows.writeTo(target).overwrite(F.lit(True))


def actions(changes: DataFrame) -> Counter[str]:
    """How many rows there are of each ACTION; of those without one, none."""
    rows = changes.where(f"{ACTION} is not null").groupBy(ACTION).count().collect()
    return Counter({row[0]: row[1] for row in rows})


def change(changes: DataFrame, target: str, *, on: Sequence[str], columns: Sequence[str]) -> None:
    """Insert, update and delete rows as their ACTION says.

    `changes` has at most one row for each value of the columns `on`, and the action is right:
    what is to be updated or deleted is there, what is to be inserted is not. It is read more
    than once, so it must be evaluated once.
    """
    from pyspark.sql import functions as F

    asked = actions(changes)
    if not asked["update"] and not asked["delete"]:
        # Nothing to look for in the table, so it is not read at all.
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
    if asked["delete"]:
        merge = merge.whenMatched(F.expr(f"s.{ACTION} = 'delete'")).delete()
    if asked["update"]:
        merge = merge.whenMatched(F.expr(f"s.{ACTION} = 'update'")).update(values)
    if asked["insert"]:
        # Without this clause Spark sends the changes to the table instead of shuffling both.
        merge = merge.whenNotMatched(F.expr(f"s.{ACTION} = 'insert'")).insert(values)
    with _hash_joins(changes.sparkSession):
        merge.merge()


@contextmanager
def _hash_joins(session: SparkSession) -> Iterator[None]:
    """Let Spark join by a hash of the few changes, where by default it sorts the whole table.

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


def as_of_now(draft: Draft, table: str) -> DataFrame:
    """The draft's branch of a table, fixed at its newest snapshot.

    A frame over the branch itself would be read anew after our own next commit, also when it was
    cached: Spark refreshes cached frames whose table was written.
    """
    reader = draft.lake.spark.session.read.option("versionAsOf", str(draft.head(table)))
    return reader.table(f"{CATALOG}.{table}")


def repeatable(rows: DataFrame) -> bool:
    """Whether rows are the same each time they are computed, as far as Spark knows."""
    return bool(rows._jdf.queryExecution().analyzed().deterministic())


@contextmanager
def evaluated_once(rows: DataFrame) -> Iterator[DataFrame]:
    """Rows that are computed once however often they are read.

    Needed where one write reads its source several times: a copy-on-write MERGE looks for the
    files first and rewrites them after, and a model that is not deterministic (a random id, the
    current time) must not answer the two differently.
    """
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()

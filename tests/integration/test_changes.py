"""Changes between snapshots against a full comparison, over random histories.

The rows of each snapshot come from the engine that wrote them, never from the code under test.
"""

from __future__ import annotations

import itertools
import random
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, In
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from thermocline.engine.arrow import normalize
from thermocline.errors import Permanent
from thermocline.lake.changes import (
    diff_snapshots,
    estimate_read_bytes,
    has_only_appends,
    read_rows,
)
from thermocline.lake.changeset import ChangeSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.lake import Lake

Bag = Counter[tuple[Any, ...]]


def frozen(value: Any) -> Any:
    """A hashable value; NaN equals NaN, 0.0 is not -0.0, maps and structs have no order."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("<d", value)
    if isinstance(value, dict):
        return frozenset((k, frozen(v)) for k, v in value.items())
    if isinstance(value, list):
        if value and all(isinstance(entry, tuple) for entry in value):
            return frozenset((frozen(k), frozen(v)) for k, v in value)
        return tuple(frozen(v) for v in value)
    return value


def bag(table: pa.Table) -> Bag:
    return Counter(tuple(frozen(v) for v in row.values()) for row in table.to_pylist())


def assert_is_the_difference(found: ChangeSet, before: Bag, after: Bag) -> None:
    """It leads from one bag of rows to the other, and no shorter way does."""
    gone = bag(found.deletes) + bag(found.before)
    came = bag(found.inserts) + bag(found.after)
    assert before - gone + came == after
    assert gone == before - after
    assert came == after - before
    if found.key:
        keys = [bag(side.select(list(found.key))) for side in (found.before, found.after)]
        assert keys[0] == keys[1]
        left = [bag(side.select(list(found.key))) for side in (found.deletes, found.inserts)]
        assert not left[0] & left[1]


SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "city", StringType()),
    NestedField(3, "score", DoubleType()),
)
ROW = st.fixed_dictionaries(
    {
        "id": st.integers(0, 6),
        "city": st.sampled_from([None, "", "Bern", "Oslo"]),
        "score": st.sampled_from([None, 0.0, -0.0, 1.5, float("nan"), float("inf")]),
    }
)
ROWS = st.lists(ROW, min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("branch"), ROWS),
        st.tuples(st.just("overwrite"), ROWS, st.integers(0, 6)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 6), min_size=1, max_size=3)),
    ),
    min_size=1,
    max_size=5,
)


def play(table: Table, steps: list[tuple[Any, ...]]) -> None:
    """Write a history with PyIceberg: appends on main and a branch, overwrites, deletes."""
    arrow_schema = table.schema().as_arrow()
    for name, *arguments in steps:
        if name == "delete":
            table.delete(In("id", arguments[0]))
            continue
        given_rows = pa.Table.from_pylist(arguments[0], schema=arrow_schema)
        if name == "overwrite":
            table.overwrite(given_rows, EqualTo("id", arguments[1]))
        elif name == "branch" and (head := table.current_snapshot()):
            if "side" not in table.refs():
                table.manage_snapshots().create_branch(head.snapshot_id, "side").commit()
            table.append(given_rows, branch="side")
        else:
            table.append(given_rows)


@given(first=ROWS, steps=STEPS, partitioned=st.booleans(), data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
def test_any_two_snapshots_of_a_random_history(
    first: list[dict[str, Any]],
    steps: list[tuple[Any, ...]],
    partitioned: bool,
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        warehouse = Path(folder).as_uri()
        catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/c.db", warehouse=warehouse)
        catalog.create_namespace("silver")
        by_city = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city"))
        spec = by_city if partitioned else PartitionSpec()
        table = catalog.create_table("silver.t", SCHEMA, partition_spec=spec)
        play(table, [("append", first), *steps])
        snapshots = [s.snapshot_id for s in table.metadata.snapshots]
        truth = {s: bag(normalize(table.scan(snapshot_id=s).to_arrow())) for s in snapshots}
        pairs = list(itertools.product([None, *snapshots], snapshots))
        chosen = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=6, unique=True))
        for start, end in chosen:
            for key in ((), ("id",), ("city", "id")):
                found = diff_snapshots(table, start, end, key=key)
                before = Counter() if start is None else truth[start]
                assert_is_the_difference(found, before, truth[end])
        catalog.close()


CREATE = """
    CREATE TABLE lake.silver.t (
        id BIGINT, city STRING, amount DECIMAL(12,2), score DOUBLE, at TIMESTAMP, day DATE,
        items ARRAY<STRUCT<sku: STRING, n: INT>>, tags MAP<STRING, STRUCT<w: DOUBLE>>)
    USING iceberg PARTITIONED BY (bucket(3, id), city) TBLPROPERTIES (
        'format-version' = '2', 'write.delete.granularity' = '{granularity}',
        'write.delete.mode' = '{mode}', 'write.update.mode' = '{mode}',
        'write.merge.mode' = '{mode}', 'write.distribution-mode' = 'hash')
"""
# A pure function of id and seed: rerunning a step with the same seed gives the same row.
MADE = """
    SELECT id, element_at(array('Bern', 'Oslo', NULL), 1 + int(id % 3)) city,
        cast(pmod(hash(id, {seed}), 1000) / 100 AS DECIMAL(12,2)) amount,
        CASE id % 5 WHEN 0 THEN double('NaN') WHEN 1 THEN -0.0D WHEN 2 THEN NULL
            ELSE pmod(hash(id, {seed}), 7) / 2 END score,
        timestamp_micros(1767225600000000 + id * 1000001) at,
        date_add(date'2026-01-01', int(id)) day,
        CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN array() ELSE array(
            named_struct('sku', 's' || id, 'n', int(pmod(hash({seed}), 3))), NULL) END items,
        CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN map() ELSE
            map('k', named_struct('w', double(id)), 'j', NULL) END tags
    FROM range({low}, {high})
"""


class History:
    """Random commits of Spark to one table, with what each snapshot held according to Spark."""

    def __init__(self, lake: Lake, mode: str, granularity: str, seed: int) -> None:
        self.lake, self.spark, self.random = lake, lake.spark.session, random.Random(seed)
        lake.catalog.create_namespace("silver")
        self.sql(CREATE.format(mode=mode, granularity=granularity))
        self.sql(f"INSERT INTO lake.silver.t {self.made(0, 60)}")
        self.sql("ALTER TABLE lake.silver.t CREATE BRANCH side")

    def sql(self, text: str) -> None:
        self.spark.sql(text).collect()

    def made(self, low: int, high: int) -> str:
        return MADE.format(seed=self.random.randrange(4), low=low, high=high)

    def step(self, kind: str, target: str = "lake.silver.t") -> None:
        low = self.random.randrange(70)
        high = low + self.random.randrange(1, 25)
        statements: dict[str, Callable[[], str]] = {
            "insert": lambda: f"INSERT INTO {target} {self.made(low, high)}",
            "delete": lambda: f"DELETE FROM {target} WHERE id BETWEEN {low} AND {high} AND n_ok",
            "update": lambda: (
                f"UPDATE {target} SET amount = amount + 1, tags = map('k', NULL) "
                f"WHERE id BETWEEN {low} AND {high} AND n_ok"
            ),
            "merge": lambda: (
                f"MERGE INTO {target} t USING ({self.made(low, high)}) s ON t.id = s.id "
                "WHEN MATCHED AND s.id % 7 = 0 THEN DELETE "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            ),
            "compact": lambda: (
                "CALL lake.system.rewrite_data_files(table => 'silver.t', options => "
                "map('rewrite-all', 'true'))"
            ),
            "compact deletes": lambda: (
                "CALL lake.system.rewrite_position_delete_files(table => 'silver.t', options => "
                "map('rewrite-all', 'true'))"
            ),
        }
        # A condition on more than the partition, so that rows and not whole files go.
        self.sql(statements[kind]().replace("n_ok", "(city IS NULL OR length(city) > id % 4)"))

    def rows(self, snapshot: int) -> pa.Table:
        frame = self.spark.read.option("versionAsOf", str(snapshot)).table("lake.silver.t")
        return normalize(frame.toArrow())

    def check_all_pairs(self, sample: int) -> None:
        table = self.lake.iceberg("silver.t")
        snapshots = [s.snapshot_id for s in table.metadata.snapshots]
        truth = {s: bag(self.rows(s)) for s in snapshots}
        pairs = list(itertools.product([None, *snapshots], snapshots))
        for start, end in self.random.sample(pairs, min(sample, len(pairs))):
            before = Counter() if start is None else truth[start]
            assert_is_the_difference(diff_snapshots(table, start, end), before, truth[end])
            keyed = diff_snapshots(table, start, end, key=["id", "city"])
            assert_is_the_difference(keyed, before, truth[end])


STEPS_OF_SPARK = ["insert", "merge", "update", "delete", "merge", "compact", "update", "delete"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mode", "granularity", "seed"),
    [
        ("merge-on-read", "file", 1),
        ("merge-on-read", "partition", 2),
        ("copy-on-write", "file", 3),
    ],
)
def test_any_two_snapshots_of_what_spark_wrote(
    lake: Lake, mode: str, granularity: str, seed: int
) -> None:
    history = History(lake, mode, granularity, seed)
    steps = [*STEPS_OF_SPARK, "compact deletes"] if mode == "merge-on-read" else STEPS_OF_SPARK
    for kind in history.random.sample(steps, len(steps)):
        history.step(kind)
    for kind in ("merge", "delete"):
        history.step(kind, "lake.silver.t.branch_side")
    if mode == "merge-on-read":
        assert has_position_deletes(lake)
    history.check_all_pairs(sample=40)


def has_position_deletes(lake: Lake) -> bool:
    summaries = [s.summary for s in lake.iceberg("silver.t").metadata.snapshots if s.summary]
    return any(int(s.additional_properties.get("added-position-deletes", 0)) for s in summaries)


def test_a_merge_on_read_update_by_key(lake: Lake, spark: SparkSession) -> None:
    history = History(lake, "merge-on-read", "file", 0)
    before = lake.iceberg("silver.t").current_snapshot()
    history.sql("UPDATE lake.silver.t SET amount = 99 WHERE id = 7")
    history.sql("DELETE FROM lake.silver.t WHERE id = 8")
    table = lake.iceberg("silver.t")
    after = table.current_snapshot()
    assert before and after
    found = diff_snapshots(table, before.snapshot_id, after.snapshot_id, key=["id"])
    assert found.counts == {"inserts": 0, "updates": 1, "deletes": 1}
    assert [(c.key, c.column, str(c.new)) for c in found.changed_cells()] == [
        ((7,), "amount", "99.00")
    ]
    assert found.deletes["id"].to_pylist() == [8]
    projected = diff_snapshots(table, before.snapshot_id, after.snapshot_id, columns=["city"])
    assert projected.counts == {"inserts": 0, "updates": 0, "deletes": 1}

    history.sql(
        "CALL lake.system.rewrite_data_files(table => 'silver.t', "
        "options => map('rewrite-all', 'true', 'delete-file-threshold', '1'))"
    )
    table = lake.iceberg("silver.t")
    compacted = table.current_snapshot()
    assert compacted and compacted.snapshot_id != after.snapshot_id
    assert diff_snapshots(table, after.snapshot_id, compacted.snapshot_id).is_empty
    assert estimate_read_bytes(table, after.snapshot_id, compacted.snapshot_id) == 0
    assert has_only_appends(table, after.snapshot_id, compacted.snapshot_id)
    assert not has_only_appends(table, before.snapshot_id, compacted.snapshot_id)
    assert diff_snapshots(table, before.snapshot_id, compacted.snapshot_id, key=["id"]).counts == (
        found.counts
    )


def test_after_partition_evolution_equal_rows_still_cancel(lake: Lake) -> None:
    history = History(lake, "merge-on-read", "file", 0)
    first = lake.iceberg("silver.t").current_snapshot()
    history.sql("ALTER TABLE lake.silver.t DROP PARTITION FIELD city")
    history.sql("ALTER TABLE lake.silver.t ADD PARTITION FIELD months(at)")
    history.step("compact")
    table = lake.iceberg("silver.t")
    head = table.current_snapshot()
    assert first and head
    specs = {t.file.spec_id for t in table.scan().plan_files()}
    assert specs == {table.spec().spec_id}
    assert diff_snapshots(table, first.snapshot_id, head.snapshot_id, key=["id"]).is_empty
    assert bag(read_rows(table, head.snapshot_id)) == bag(history.rows(first.snapshot_id))


def test_format_3_deletion_vectors_are_refused_clearly(lake: Lake) -> None:
    history = History(lake, "merge-on-read", "file", 0)
    history.sql("ALTER TABLE lake.silver.t SET TBLPROPERTIES ('format-version' = '3')")
    history.sql("DELETE FROM lake.silver.t WHERE id = 8")
    table = lake.iceberg("silver.t")
    head = table.current_snapshot()
    assert head
    with pytest.raises(Permanent, match="PUFFIN"):
        diff_snapshots(table, None, head.snapshot_id)


def test_equality_deletes_are_refused_clearly(lake: Lake) -> None:
    """Neither Spark nor PyIceberg writes them, but Flink does: so one is added through Java."""
    history = History(lake, "merge-on-read", "file", 0)
    jvm = history.spark.sparkContext._jvm
    assert jvm
    session = history.spark._jsparkSession
    java = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, "lake.silver.t")
    partition = java.newScan().planFiles().iterator().next().file().partition()
    ids = history.spark.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = 1
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java.spec())
    delete = (
        builder.ofEqualityDeletes(ids)
        .withPath(java.location() + "/data/eq.parquet")
        .withFormat("parquet")
        .withPartition(partition)
        .withFileSizeInBytes(10)
        .withRecordCount(1)
        .build()
    )
    java.newRowDelta().addDeletes(delete).commit()
    table = lake.iceberg("silver.t")
    head = table.current_snapshot()
    assert head
    with pytest.raises(Permanent, match="equality deletes") as caught:
        diff_snapshots(table, None, head.snapshot_id)
    assert caught.value.next_step.startswith("Compact it first")

"""The table heads that one poll of the catalog returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
)
from pyiceberg.types import (
    DateType,
    DecimalType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from tests.integration.serve.nodes.keeping import (
    BY_DAY,
    NOW,
    WHOLE,
    delete_positions,
    head,
    make_lake,
    make_table,
    put,
    row,
)
from tests.unit.serve.data_files import file, sums

from thermocline.contract import Contract
from thermocline.lake import Lake, refs
from thermocline.serve.file_sums import day_of
from thermocline.serve.replicator import hot_policy as policies
from thermocline.serve.replicator.catalog_poller import CatalogPoller
from thermocline.serve.replicator.hot_policy import HOT_PROPERTY, Policy
from thermocline.serve.values import NO_SNAPSHOT, TableHead

TYPES = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "plain", TimestampType()),
    NestedField(4, "zoned", TimestamptzType()),
    NestedField(5, "city", StringType()),
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path)


def poll(
    lake: Lake, policy: Policy | None = None, contracts: Mapping[str, Contract] | None = None
) -> dict[str, TableHead]:
    sights = CatalogPoller(lake.settings, policy or Policy(), contracts or {}).poll()
    return {table: sight.head for table, sight in sights.items()}


def by(*fields: tuple[int, Transform]) -> PartitionSpec:  # type: ignore[type-arg]
    return PartitionSpec(
        *(PartitionField(s, 1000 + n, t, f"p{n}") for n, (s, t) in enumerate(fields))
    )


@pytest.mark.parametrize(
    ("spec", "time"),
    [
        (by((4, DayTransform())), "zoned"),
        (by((3, HourTransform())), "plain"),
        (by((2, MonthTransform())), "day"),
        (by((2, IdentityTransform())), "day"),
        (by((5, IdentityTransform()), (4, DayTransform())), "zoned"),
        (by((4, BucketTransform(4)), (2, IdentityTransform())), "day"),
        (by((4, IdentityTransform())), None),
        (by((5, IdentityTransform())), None),
        (WHOLE, None),
    ],
)
def test_the_time_is_what_a_table_is_partitioned_by(
    lake: Lake, spec: PartitionSpec, time: str | None
) -> None:
    table = make_table(lake, "gold.t", spec, TYPES)
    at = datetime(2026, 11, 14, 10, 30, 0, 5, tzinfo=UTC)
    plain = at.replace(tzinfo=None)
    put(table, [{"id": 1, "day": date(2026, 11, 14), "plain": plain, "zoned": at, "city": "x"}])
    found = poll(lake)["gold.t"]
    assert found.time == time
    assert found.hot == (math.inf if time is None else 7 * 86400)
    known = {"day": at.replace(hour=0, minute=0, microsecond=0), "plain": at, "zoned": at}
    expected = known.get(time or "")
    day = None if expected is None else day_of(expected)
    assert found.files.within(day, day).rows == 1
    if day is not None:
        assert found.files.within(day + 1, None).rows == found.files.within(None, day - 1).rows == 0


def test_a_contract_says_which_time_and_how_much(lake: Lake) -> None:
    put(make_table(lake, "gold.t", WHOLE), [row(1), row(2, days=3)])
    contract = Contract("gold.t", (), freshness_column="at", hot=timedelta(days=2))
    found = poll(lake, contracts={"gold.t": contract})["gold.t"]
    assert (found.time, found.hot) == ("at", 2 * 86400)
    first = day_of(NOW - timedelta(days=3))
    assert found.files.begun_before(first).rows == 0
    assert found.files.begun_before(first + 1).rows == 2
    wrong = Contract("gold.t", (), freshness_column="note")
    assert poll(lake, contracts={"gold.t": wrong})["gold.t"].time is None


def test_what_is_hot_by_size_and_what_is_never(lake: Lake) -> None:
    put(make_table(lake, "gold.t", WHOLE), [row(1)])
    assert poll(lake)["gold.t"].hot == math.inf
    assert poll(lake, Policy(whole_bytes=10))["gold.t"].hot is None
    asked_for = {"gold.t": Contract("gold.t", (), hot=timedelta(days=1))}
    assert poll(lake, Policy(whole_bytes=10), asked_for)["gold.t"].hot == math.inf
    with lake.iceberg("gold.t").transaction() as transaction:
        transaction.set_properties({HOT_PROPERTY: "off"})
    assert poll(lake, contracts=asked_for)["gold.t"].hot is None


def test_a_window_begins_at_midnight_and_counts_only_its_files() -> None:
    now = datetime(2026, 11, 16, 9, 41, tzinfo=UTC)
    old, new = now - timedelta(days=9), now - timedelta(days=1)
    files = sums(file(100, 1, old, old), file(10, 1, old, new), file(1, 1))
    head_ = TableHead("t", "", 1, "", now, {}, "at", (1,), files, hot=7 * 86400.0)
    since = policies.window_start(head_, now)
    assert since == datetime(2026, 11, 9, tzinfo=UTC)
    assert policies.estimate_bytes(head_, since) == 4 * 11
    assert policies.estimate_bytes(head_, None) == 4 * 111
    assert not policies.is_small(head_, Policy())


def test_companions_are_left_out_and_a_table_without_a_snapshot_is_empty(lake: Lake) -> None:
    put(make_table(lake, "gold.t"), [row(1)])
    put(make_table(lake, "gold.t__tombstones"), [row(1)])
    put(make_table(lake, "gold.stg__orders"), [row(1)])
    make_table(lake, "gold.empty")
    seen = poll(lake)
    assert sorted(seen) == ["gold.empty", "gold.stg__orders", "gold.t"]
    assert seen["gold.empty"].snapshot == NO_SNAPSHOT
    assert seen["gold.empty"].hot is None
    assert list(seen["gold.empty"].columns) == list(seen["gold.t"].columns)


def test_columns_are_those_of_the_snapshot(lake: Lake) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "net", DecimalType(12, 2)),
        NestedField(3, "at", StructType(NestedField(4, "x", LongType()))),
        NestedField(5, "tags", ListType(6, StringType(), element_required=False)),
    )
    table = make_table(lake, "gold.t", WHOLE, schema)
    put(table, [{"id": 1, "net": None, "at": None, "tags": None}])
    with table.refresh().update_schema() as update:
        update.add_column("later", StringType())
    assert poll(lake)["gold.t"].columns == {
        "id": "long",
        "net": "decimal(12,2)",
        "at": "struct<x: long>",
        "tags": "list<string>",
    }
    table.refresh().append(pa.Table.from_pylist([{"id": 2}], schema=table.schema().as_arrow()))
    assert list(poll(lake)["gold.t"].columns)[-1] == "later"


def test_history_is_that_of_main(lake: Lake) -> None:
    table = make_table(lake, "gold.t")
    first, second = put(table, [row(1)]), put(table, [row(2)])
    table.manage_snapshots().create_branch(second, "env-dev").commit()
    rows = pa.Table.from_pylist([row(3)], schema=table.schema().as_arrow())
    table.refresh().append(rows, branch="env-dev")
    found = poll(lake)["gold.t"]
    assert (found.snapshot, found.snapshots) == (second, (second, first))
    lake.commit([refs.rollback(lake.state("gold.t"), first)])
    assert poll(lake)["gold.t"].snapshots == (first,)
    assert poll(lake)["gold.t"].metadata == lake.state("gold.t").metadata_location


def test_only_what_is_new_is_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table, still = make_table(lake, "gold.t"), make_table(lake, "gold.still")
    for number in range(4):
        put(table, [row(number)])
    put(still, [row(1)])
    read: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def counting(self: ManifestFile, *given: object, **named: object) -> object:
        read.append(self.manifest_path)
        return fetch(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counting)
    heads = CatalogPoller(lake.settings, Policy(), {})
    first = heads.poll()
    assert len(read) == 5
    assert heads.poll() == first
    assert len(read) == 5
    put(table, [row(9)])
    read.clear()
    second = heads.poll()
    assert len(read) == 1
    assert second["gold.still"] is first["gold.still"]
    assert second["gold.t"].head.files.total.files == 5
    files = [task.file.file_path for task in table.refresh().scan().plan_files()]
    delete_positions(lake, table, {files[0]: [0]})
    read.clear()
    assert heads.poll()["gold.t"].head.snapshot == head(table)
    assert read == [], "delete files say nothing about bounds"


def test_a_partition_by_day_bounds_every_file(lake: Lake) -> None:
    put(make_table(lake, "gold.t", BY_DAY), [row(n, days=n) for n in range(5)])
    files = poll(lake)["gold.t"].files
    today = day_of(NOW)
    found = [files.within(today - n, today - n).files for n in range(6)]
    assert found == [1, 1, 1, 1, 1, 0]

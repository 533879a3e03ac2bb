"""Equality deletes, which other writers leave: every engine reads them right, or refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from tests.integration.maintained_tables import SCHEMA, TABLE, write_equality_deletes

from thermocline.api.query import execute_query
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.lake.bookmark import COMMIT
from thermocline.lake.file_commit import commit_files
from thermocline.lake.live_files import delete_entries, live_files
from thermocline.lake.metadata import MAIN
from thermocline.lake.snapshot_producer import FileChange
from thermocline.maintain.file_rewrite import Rewrite, rewrite_files
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.service import MaintenanceService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.lake import Lake


@pytest.fixture
def deleted(lake: Lake) -> Lake:
    """A table of two partitions, with an equality delete in each, listed by one manifest."""
    import pyarrow as pa

    lake.catalog.create_namespace_if_not_exists("silver")
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))
    lake.catalog.create_table(TABLE, SCHEMA, partition_spec=spec)
    for first in (0, 10):
        rows = pa.table({
            "id": pa.array(range(first, first + 10), pa.int64()),
            "kind": ["a", "b"] * 5, "n": pa.array([first] * 10, pa.int64()),
        })  # fmt: skip
        lake.iceberg(TABLE).append(rows)
    table = lake.iceberg(TABLE)
    partitions = {live.partition for live in live_files(table, head(lake))}
    deletes = [write_equality_deletes(table, each, (1,), {(2,), (3,)}) for each in partitions]
    commit_files(lambda: lake.iceberg(TABLE), lambda _: FileChange(deletes), MAIN, {COMMIT: "1"})
    return lake


def head(lake: Lake) -> int:
    found = lake.state(TABLE).head()
    assert found is not None
    return found


def read_on_spark(spark: SparkSession) -> list[int]:
    return sorted(row["id"] for row in spark.sql(f"select id from lake.{TABLE}").collect())


def test_every_engine_reads_what_is_left_of_them(deleted: Lake, spark: SparkSession) -> None:
    table = deleted.iceberg(TABLE)
    some = [
        live for live in live_files(table, head(deleted))
        if live.file.partition[0] == "a"
    ]  # fmt: skip
    rewrite = Rewrite(TABLE, some[0].partition, frozenset(live.path for live in some))
    rewrite_files(deleted, rewrite)
    # The manifest was written again: it lists the delete of the other partition only.
    assert len(delete_entries(deleted.iceberg(TABLE), head(deleted))) == 1
    wanted = sorted({*range(20)} - {2, 3})
    assert (
        sorted(row["id"] for row in spark.sql(f"select id from lake.{TABLE}").collect()) == wanted
    )
    spark.sql(
        f"call lake.system.rewrite_data_files(table => '{TABLE}', "
        "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    )
    assert (
        sorted(row["id"] for row in spark.sql(f"select id from lake.{TABLE}").collect()) == wanted
    )


def test_duckdb_refuses_what_it_would_not_apply_exactly(deleted: Lake) -> None:
    """DuckDB 1.5 takes a null in a key for equal to everything."""
    for engine in ("auto", "duckdb"):
        with pytest.raises(UnsupportedByDuckDB, match=r"silver\.t has equality deletes"):
            execute_query(deleted, f"select id from {TABLE}", engine=engine)
    service = MaintenanceService(deleted, MaintenancePolicy(min_files=2, cool_down=0))
    report = service.apply(service.plan())
    assert {result.outcome for result in report.results} <= {"published", "done"}
    rows = execute_query(deleted, f"select id from {TABLE} order by 1").rows
    assert [row[0] for row in rows] == sorted({*range(20)} - {2, 3})

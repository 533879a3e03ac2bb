"""After each kind of maintenance Spark, DuckDB and PyIceberg read the same rows; Spark writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from thermocline.lake.orphans import find_orphans
from thermocline.lake.retention import RetentionPolicy
from thermocline.maintain import expiry
from thermocline.maintain.maintenance_plan import MaintenancePlan
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.manifest_rewrite import plan_manifest_rewrite
from thermocline.maintain.removal import plan_forced_removal
from thermocline.maintain.service import MaintenanceService
from thermocline.maintain.task import TaskKind

if TYPE_CHECKING:
    import pytest

    from thermocline.lake import Lake

TABLE = "silver.t"
POLICY = MaintenancePolicy(min_files=2, min_manifests=2, cool_down=0)
Rows = list[tuple[int, str]]


def read_everywhere(lake: Lake) -> Rows:
    """Return the rows, which must be the same in every engine."""
    state = lake.state(TABLE)
    head = state.head()
    assert head is not None
    duck = lake.duck.read(state.metadata_location, head).project("id, kind").fetchall()
    iceberg = lake.iceberg(TABLE).scan().to_arrow().select(["id", "kind"]).to_pylist()
    lake.spark.session.sql(f"REFRESH TABLE lake.{TABLE}")
    spark = lake.spark.query(f"SELECT id, kind FROM lake.{TABLE}").to_pylist()
    found = sorted(duck)
    assert sorted(tuple(row.values()) for row in iceberg) == found
    assert sorted(tuple(row.values()) for row in spark) == found
    return found


def test_every_engine_reads_a_maintained_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.catalog.create_namespace_if_not_exists("silver")
    spark = lake.spark.session
    spark.sql(
        f"CREATE TABLE lake.{TABLE} (id BIGINT, kind STRING) USING iceberg PARTITIONED BY (kind)"
        " TBLPROPERTIES ('write.delete.mode'='merge-on-read', 'format-version'='2',"
        " 'write.metadata.delete-after-commit.enabled'='true')"
    )
    for start in range(0, 60, 10):
        rows = f"SELECT id, CAST(id % 2 AS STRING) FROM range({start}, {start + 10})"
        spark.sql(f"INSERT INTO lake.{TABLE} {rows}")
    spark.sql(f"DELETE FROM lake.{TABLE} WHERE id % 7 = 0")
    before = read_everywhere(lake)
    assert len(before) == 51

    task = plan_manifest_rewrite(lake, lake.state(TABLE), POLICY)
    assert task is not None
    task.apply(lake)
    assert read_everywhere(lake) == before

    service = MaintenanceService(lake, POLICY)
    plan = service.plan([TABLE])
    compact = tuple(task for task in plan.tasks if task.kind is TaskKind.COMPACT)
    assert compact
    report = service.apply(MaintenancePlan(compact))
    assert {result.outcome for result in report.results} == {"published"}
    assert read_everywhere(lake) == before

    harshest = RetentionPolicy(count=1, age_ms=1, dead_ms=1)
    monkeypatch.setattr(type(lake), "retention_policy", harshest)
    time.sleep(0.002)
    expire = expiry.plan_table_expiry(lake, lake.state(TABLE))
    assert expire is not None and expire.snapshots >= 7
    expire.apply(lake)
    assert read_everywhere(lake) == before

    removal = plan_forced_removal(lake, lake.state(TABLE), 0)
    assert len(removal.due) >= 12
    assert removal.apply(lake).counts["files_removed"] == len(removal.due)
    assert find_orphans(lake.iceberg(TABLE)) == []
    assert read_everywhere(lake) == before

    spark.sql(f"DELETE FROM lake.{TABLE} WHERE id % 5 = 0")
    spark.sql(f"INSERT INTO lake.{TABLE} VALUES (100, '1')")
    expected = sorted([*(row for row in before if row[0] % 5), (100, "1")])
    assert read_everywhere(lake) == expected

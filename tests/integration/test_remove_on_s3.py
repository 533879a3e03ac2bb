"""Unreferenced files are removed from an object store too, and no other object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.integration.expiry_races import SCHEMA, TABLE, append
from tests.servers import settings
from tests.servers.s3 import S3

from thermocline.config import load_settings
from thermocline.lake import Lake
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.orphans import find_orphans
from thermocline.maintain.removal import plan_forced_removal


@pytest.fixture
def s3_lake(s3_server: S3, tmp_path: Path) -> Iterator[Lake]:
    """A lake whose files are in an object store."""
    (tmp_path / "thermocline.toml").write_text(SETTINGS)
    there = settings.s3_lake_settings(s3_server, tmp_path)
    lake = Lake(load_settings(tmp_path, environ={**clean_environment(), **there}))
    yield lake
    lake.disconnect()


def test_only_unreferenced_objects_are_removed(s3_lake: Lake) -> None:
    lake = s3_lake
    lake.catalog.create_namespace("silver")
    lake.catalog.create_table(TABLE, SCHEMA)
    for number in range(3):
        append(lake, number)
    [lost] = write_files(lake.iceberg(TABLE), pa.table({"id": [9]}))
    assert plan_forced_removal(lake, lake.state(TABLE), 3_600_000).due == {}  # too young
    task = plan_forced_removal(lake, lake.state(TABLE), 0)
    assert [lost.file_path.endswith(path) for path in task.due] == [True]
    assert task.apply(lake).counts["files_removed"] == 1
    assert [path for path, _ in find_orphans(lake.iceberg(TABLE))] == []
    assert sorted(lake.iceberg(TABLE).scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
    assert plan_forced_removal(lake, lake.state(TABLE), 0).due == {}

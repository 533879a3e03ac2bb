"""The direct worker as a process: rows of the requested snapshot, no access outside the lake."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.serve import asking

from thermocline.config import load_settings
from thermocline.lake import Lake
from thermocline.serve.wire.protocol import BlockingChannel, Frame

SCHEMA = pa.schema([("id", pa.int64()), ("big", pa.int64()), ("at_", pa.timestamp("us", "UTC"))])


@dataclass
class World:
    line: BlockingChannel
    lake: Lake
    folder: Path

    def ask(self, sql: str, **more: Any) -> Frame:
        return asking.asked(self.line, self.lake, sql, **more)

    def raw(self, sql: str, tables: dict[str, Any] | None = None, **more: Any) -> Frame:
        """A text as it is, past guard and translation."""
        request = {"do": "query", "sql": sql, "tables": tables or {}, "format": "json",
                   "rows": 1000, "bytes": 1 << 20, "seconds": 20, **more}  # fmt: skip
        return self.line.ask(request)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("direct")
    (folder / "thermocline.toml").write_text('[lake]\nname = "direct"\n')
    lake = Lake(load_settings(folder, environ={}))
    lake.catalog.create_namespace("silver")
    table = lake.catalog.create_table("silver.t", SCHEMA, properties={"format-version": "2"})
    for first in (0, 10):
        rows = [{"id": n, "big": 2**62, "at_": n * 1_000_001} for n in range(first, first + 10)]
        table.append(pa.Table.from_pylist(rows, schema=SCHEMA))
    with asking.worker("thermocline.serve.engines.direct", folder) as line:
        yield World(line, lake, folder)


def test_rows_and_what_they_are_of(world: World) -> None:
    found = world.ask("select count(*), sum(id), max(at_) from silver.t")
    assert asking.rows(found) == [[20, 190, "1970-01-01T00:00:19.000019+00:00"]]
    assert found.header["columns"][1] == ["sum(id)", "int64", "bigint"]
    assert found.header["snapshots"] == {"silver.t": str(world.lake.state("silver.t").head())}


def test_an_older_snapshot(world: World) -> None:
    tables = asking.tables(world.lake, {"silver.t": "silver.t"})
    oldest = world.lake.iceberg("silver.t").history()[0].snapshot_id
    tables["silver.t"]["snapshot"] = str(oldest)
    assert asking.rows(world.raw('select count(*) from "silver.t"', tables)) == [[10]]


def test_a_sum_without_room_fails_as_it_does_elsewhere(world: World) -> None:
    error = world.ask("select sum(big) from silver.t").error
    assert error is not None
    assert (error["code"], "BIGINT" in error["cause"]) == ("query", True)


@pytest.mark.parametrize(
    ("limit", "code"), [({"rows": 19}, "too-many-rows"), ({"bytes": 50}, "too-large")]
)
def test_no_more_than_may_be_given(world: World, limit: dict[str, int], code: str) -> None:
    error = world.ask("select * from silver.t", **limit).error
    assert error is not None
    assert error["code"] == code


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd', sep=':')",
        "select * from read_text('/etc/hostname')",
        "select * from '/etc/passwd'",
        "copy (select 1) to '/tmp/thermo-direct-out.csv'",
        "attach '/tmp/thermo-direct.db'",
        "set enable_external_access = true",
        "set TimeZone = 'Asia/Tokyo'",
        "install httpfs",
        "create secret s (type s3)",
        "select 1; select 2",
        "call enable_logging()",
    ],
)
def test_nothing_from_outside_even_past_the_guard(world: World, sql: str) -> None:
    error = world.raw(sql).error
    assert error is not None
    assert "root:" not in error["cause"]  # the caller's own words may come back, no content
    assert asking.rows(world.ask("select 1 as still")) == [[1]]
    assert not Path("/tmp/thermo-direct-out.csv").exists()


@pytest.mark.parametrize(
    "place", ["/etc/passwd", "../../outside/metadata.json", "s3://other/m.json"]
)
def test_tables_only_inside_the_warehouse(world: World, place: str) -> None:
    warehouse = world.lake.settings.warehouse.removeprefix("file://").rstrip("/")
    metadata = f"{warehouse}/{place}" if place.startswith("..") else place
    tables = {"t": {"table": "silver.t", "snapshot": "1", "metadata": metadata}}
    error = world.raw('select * from "t"', tables).error
    assert error is not None
    assert error["cause"] == "t is not inside the warehouse."


def test_a_file_that_comes_late_is_waited_for(world: World) -> None:
    tables = asking.tables(world.lake, {"silver.t": "silver.t"})
    metadata = Path(tables["silver.t"]["metadata"].removeprefix("file://"))
    hidden = metadata.with_suffix(".hidden")
    metadata.rename(hidden)
    threading.Timer(0.5, hidden.rename, [metadata]).start()
    assert asking.rows(world.raw('select count(*) from "silver.t"', tables)) == [[20]]


def test_a_file_that_never_comes(world: World) -> None:
    tables = asking.tables(world.lake, {"silver.t": "silver.t"})
    tables["silver.t"]["metadata"] = tables["silver.t"]["metadata"].replace("00002-", "00009-")
    error = world.raw('select count(*) from "silver.t"', tables).error
    assert error is not None
    assert (error["code"], str(world.folder) in json.dumps(error)) == ("missing", False)


def test_a_query_ends_at_its_time(world: World) -> None:
    began = time.monotonic()
    error = world.raw(
        "select count(*) from range(1000000) a, range(1000000) b where a.range + b.range = 7",
        seconds=0.5,
    ).error
    assert error is not None
    assert error["code"] == "too-long"
    assert time.monotonic() - began < 8


def test_questions_see_no_views_of_others(world: World) -> None:
    assert world.ask("select count(*) from silver.t").error is None
    error = world.raw('select count(*) from "silver.t"').error
    assert error is not None
    assert error["code"] == "query"

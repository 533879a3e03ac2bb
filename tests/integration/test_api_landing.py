"""An API's records in bronze: once, with what came with them, whatever dies in between."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.servers import web_api
from tests.servers.web_api import WebApi

import thermocline as tc
from thermocline.api import Lakehouse
from thermocline.errors import BadInput
from thermocline.ingest.feed import FeedIngester, StreamBatch, open_feed

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: api.things
version: 1.0.0
status: active
schema:
  - name: raw_things
    properties:
      - {name: id, physicalType: long, required: true}
      - {name: updated, physicalType: date}
      - {name: price, physicalType: "decimal(38,20)"}
customProperties:
  - {property: write, value: append}
  - {property: drift, value: rescue}
"""
SOURCE = """\
name: things
kind: api
target: bronze.raw_things
every: 0
badShare: 0.9
BATCH
base_url: BASE
resources:
  - name: items
    primary_key: id
    endpoint:
      path: items
      data_selector: data
      params: {since: "{incremental.start_value}"}
      paginator: {type: page_number, base_page: 1, total_path: null}
      incremental: {cursor_path: updated, initial_value: "2026-01-01"ORDER}
"""


@pytest.fixture
def api() -> Iterator[WebApi]:
    with web_api.serve() as server:
        server.records = [record(n) for n in range(1, 9)]
        yield server


def record(n: int, day: int | None = None) -> dict[str, Any]:
    return {"id": n, "updated": f"2026-01-{day or n:02}", "price": n + 0.5}


def write_project(folder: Path, api: WebApi, *, batch: str = "", order: str = "") -> Path:
    text = SOURCE.replace("BASE", api.url).replace("BATCH", batch).replace("ORDER", order)
    files = {
        "thermocline.toml": SETTINGS + "[ingest.api]\nallow_networks = ['127.0.0.1/32']\n",
        "contracts/bronze/raw_things.odcs.yaml": CONTRACT,
        "sources/things.yaml": text,
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def take_all(house: Lakehouse) -> list[StreamBatch]:
    """Every batch there is, as one start of a process would land them."""
    source = house.sources["things"]
    contract = house.contracts[source.target]
    ingester = FeedIngester(house.lake, source, contract, open_feed(house.lake, source, contract))
    taken = list(iter(ingester.ingest_batch, None))
    ingester.close()
    return taken


def landed(house: Lakehouse) -> list[int]:
    rows = house.table("bronze.raw_things").to_arrow().select(["id", "_position"]).to_pylist()
    return [row["id"] for row in sorted(rows, key=lambda row: row["_position"])]


def test_records_land_once_with_what_came_with_them(api: WebApi, tmp_path: Path) -> None:
    house = tc.open(write_project(tmp_path, api))
    exact = b'{"id": 1, "updated": "2026-01-01", "price": 0.12345678901234567891, "note": "kept"}'
    others = b", ".join(json.dumps(each).encode() for each in api.records[1:3])
    api.failures.append((200, {}, b'{"data": [%s, %s]}' % (exact, others)))
    assert [(t.rows, t.quarantined) for t in take_all(house)] == [(8, 0)]
    assert landed(house) == list(range(1, 9))
    first = next(
        row for row in house.table("bronze.raw_things").to_arrow().to_pylist() if row["id"] == 1
    )
    assert str(first["price"]) == "0.12345678901234567891"
    assert dict(first["_rescued"]) == {"note": "kept"}
    assert (first["_source"], first["_source_file"], first["_key"]) == ("things", "items", b"[1]")
    assert json.loads(first["_raw"])["note"] == "kept"
    assert first["_event_time"].isoformat() == "2026-01-01T00:00:00+00:00"

    # Nothing new: nothing is committed. Then one at the edge, one beyond, one late and unseen.
    head = house.lake.state("bronze.raw_things").head()
    assert take_all(house) == []
    assert house.lake.state("bronze.raw_things").head() == head
    api.records += [record(9, day=8), record(10, day=9)]
    assert [t.rows for t in take_all(house)] == [2]
    assert landed(house) == list(range(1, 11))

    # Bad records are set aside with their number, and do not come again.
    api.records += [{"id": "no", "updated": "2026-01-10"}, {"id": 12, "updated": None}, record(13)]
    assert [(t.rows, t.quarantined) for t in take_all(house)] == [(1, 2)]
    assert take_all(house) == []
    bad = {row.position: row.reasons for row in house.quarantine("bronze.raw_things")}
    assert bad == {
        11: ('id: "no" is not of type long',),
        12: ("no cursor value at updated",),
    }

    # A mended one comes back, once, as the record that it was.
    exported, left = house.export_quarantine("things")
    assert ([row["id"] for row in exported], left) == (["no", 12], 0)
    mended = tmp_path / "mended.jsonl"
    mended.write_text(json.dumps({**exported[0], "id": 77}))
    assert [house.replay("things", mended).replayed for _ in range(2)] == [1, 0]
    assert 77 in landed(house) and take_all(house) == []
    house.lake.duck.stop()


def test_a_batch_is_bounded_where_the_order_allows_it(api: WebApi, tmp_path: Path) -> None:
    house = tc.open(
        write_project(tmp_path, api, batch="batch: {rows: 3}", order=", row_order: asc")
    )
    assert [t.rows for t in take_all(house)] == [3, 3, 2]
    assert landed(house) == list(range(1, 9))
    house.lake.duck.stop()


def test_a_pull_without_order_that_is_larger_than_a_batch_is_refused(
    api: WebApi, tmp_path: Path
) -> None:
    house = tc.open(write_project(tmp_path, api, batch="batch: {rows: 3}"))
    with pytest.raises(BadInput, match="larger than a batch: 3 records"):
        take_all(house)
    assert landed(house) == []
    house.lake.duck.stop()


CHILD = """
import sys
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
gateway = launch_gateway()
running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
SparkSession(SparkContext(gateway=gateway, jsc=java))
import thermocline as tc
from tests.integration.test_api_landing import take_all
take_all(tc.open(sys.argv[1]))
"""


def die_at(house: Lakehouse, point: str) -> None:
    """Have another process, in this one's JVM, take what is there and kill itself at a point."""
    gateway: Any = house.lake.spark.session.sparkContext._gateway
    environment = clean_environment() | {
        "THERMOCLINE_CRASH_AT": point,
        "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
        "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(house.settings.project)],
        cwd=Path(__file__).parents[2], env=environment, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_whatever_dies_every_record_lands_once(api: WebApi, tmp_path: Path) -> None:
    house = tc.open(write_project(tmp_path, api))
    api.records.append({"id": "bad", "updated": "2026-01-08"})
    seen = []
    for point in ("ingest.committed-bronze", "publish.before", "ingest.published"):
        die_at(house, point)
        seen.append(len(landed(house)) if house.lake.exists("bronze.raw_things") else 0)
    assert seen == [0, 0, 8]
    assert take_all(house) == []
    api.records += [record(9, day=8)]
    die_at(house, "publish.after")
    assert take_all(house) == []
    assert landed(house) == list(range(1, 10))
    assert [row.reasons for row in house.quarantine()] == [('id: "bad" is not of type long',)]
    house.lake.duck.stop()

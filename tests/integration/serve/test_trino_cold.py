"""A live Trino behind `thermo serve`: large scans go there, and when it dies others answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import trino.dbapi as trino_client
from tests.integration.serve import asking, serving
from tests.integration.serve.serving import Serving, until
from tests.integration.serve.shop_lake import DAYS, PER_DAY, orders_of
from tests.integration.serve.test_tables import DIVIDED
from tests.servers import trino
from trino.exceptions import TrinoUserError

from thermocline.config import load_settings
from thermocline.lake import Lake

pytestmark = pytest.mark.skipif(trino.missing() is not None, reason=str(trino.missing()))
BEHIND = """
[serve]
direct_limit = "30KB"
max_seconds = 120
nodes = 1
verify_share = 0.0
[serve.trino]
url = "{url}"
catalog = "{catalog}"
[engine.spark]
master = "local[1]"
memory = "1g"
"""
DEADLINE = 30.0


@dataclass
class Cold:
    serving: Serving
    trino: trino.Trino
    _asked: int = 0

    def scan(self, **more: Any) -> httpx.Response:
        """Ask for all orders, in a text that was not asked before."""
        self._asked += 1
        sql = f"select count(*) as n, sum(amount) as total, {self._asked} as x from silver.orders"
        return httpx.post(f"{self.serving.url}/query", json={"sql": sql, **more}, timeout=130)

    def ways(self) -> list[str]:
        reply = httpx.get(
            f"{self.serving.url}/explain", params={"sql": "select count(*) from silver.orders"}
        )
        return [way["engine"] for way in reply.json()["ways"]]


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cold]:
    project = serving.shop(tmp_path_factory.mktemp("behind") / "p", "")
    lake = Lake(load_settings(project, environ={}))
    with trino.serve(tmp_path_factory.mktemp("trino"), lake.settings) as live:
        asking.until_it_scans(asking.trino_asker(live, lake), "silver.orders")
        with (project / "thermocline.toml").open("a") as file:
            file.write(BEHIND.format(url=live.url, catalog=live.catalog))
        with serving.started(project) as started:
            yield Cold(started, live)


def total() -> str:
    amounts = (row["amount"] for day in range(DAYS) for row in orders_of(day))
    return str(sum(amounts, Decimal(0)))


def real(cold: Cold, sql: str) -> Any:
    """The first row that Trino itself gives, or the name of its error."""
    address = urlsplit(cold.trino.url)
    with trino_client.connect(host=address.hostname, port=address.port, user="t") as connection:
        try:
            return connection.cursor().execute(sql).fetchall()[0]
        except TrinoUserError as error:
            return error.error_name


@pytest.mark.parametrize("said", [each for each in DIVIDED if "(1" not in each])
def test_division_is_what_trino_itself_makes_of_it(cold: Cold, said: str) -> None:
    # Of mod(1, 0) Trino says "/ by zero", as an error of its own; of try(…) we say nothing.
    found, wanted = real(cold, f"SELECT {said} AS a"), DIVIDED[said]
    if isinstance(wanted, str):
        assert found == wanted
    else:
        assert str(found[0]).lower().replace("inf", "infinity") == str(wanted[0]).lower()


def test_a_division_by_zero_there_is_one_here(cold: Cold) -> None:
    sql = "select order_id / (customer_id - customer_id) from silver.orders"
    body = {"sql": sql, "dialect": "trino", "timeout": 100}
    found = httpx.post(f"{cold.serving.url}/query", json=body, timeout=130)
    assert found.json()["error"]["code"] == "division-by-zero"


def test_a_large_scan_is_answered_by_trino_at_the_newest_snapshot(cold: Cold) -> None:
    answer = cold.scan().json()
    assert answer["rows"][0][:2] == [DAYS * PER_DAY, total()]
    provenance = answer["provenance"]
    assert (provenance["engine"], provenance["fallback"]) == ("trino", [])
    listed = httpx.get(f"{cold.serving.url}/tables").json()["tables"]
    newest = {each["table"]: each["snapshot"] for each in listed}
    assert provenance["tables"]["silver.orders"]["snapshot"] == newest["silver.orders"]
    assert provenance["scanned"]["files"] == DAYS
    assert cold.scan(format="csv").text.splitlines()[1].startswith(f"{DAYS * PER_DAY},{total()},")


def test_a_small_scan_is_not(cold: Cold) -> None:
    sql = "select count(*) from silver.customers where city = 'Oslo'"
    reply = httpx.post(f"{cold.serving.url}/query", json={"sql": sql}, timeout=30).json()
    assert reply["provenance"]["engine"] == "hot"


def test_when_trino_dies_others_answer_within_the_deadline(cold: Cold) -> None:
    os.kill(cold.trino.pid, signal.SIGKILL)
    began = time.monotonic()
    answer = cold.scan(timeout=DEADLINE).json()
    assert time.monotonic() - began < DEADLINE
    assert answer["rows"][0][:2] == [DAYS * PER_DAY, total()]
    assert answer["provenance"]["engine"] in ("spark", "direct")
    assert answer["provenance"]["fallback"][0]["from"] == "trino"
    assert cold.serving.counted(answer["provenance"]["engine"], "fell_back") >= 1
    assert cold.serving.counted("trino", "failed") >= 1
    # After some failures in a row it is left alone for a while.
    until(lambda: cold.scan(timeout=DEADLINE).is_success and "trino" not in cold.ways(), 120)

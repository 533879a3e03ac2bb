"""What a query costs that ends badly, and what is said when nobody can answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.integration.serve import serving
from tests.integration.serve.serving import Serving

SETTINGS = """
[serve]
nodes = 2
node_memory = "256MB"
max_seconds = 20
verify_share = 0.0
[engine.spark]
master = "spark://127.0.0.1:1"
"""
"""Spark is there by the settings, but never starts."""
QUICK = "select count(*) from silver.orders where ordered_at >= current_date and order_id <> {}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    project = serving.shop(tmp_path_factory.mktemp("fair") / "p", SETTINGS)
    with serving.started(project) as started:
        started.settled(3)
        yield started


def ask(server: Serving, sql: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/query", json={"sql": sql, **more}, timeout=60)


def restarts(server: Serving) -> int:
    return sum(node["restarts"] for node in httpx.get(f"{server.url}/nodes").json()["nodes"])


def test_a_query_without_end_takes_one_engine_its_time(server: Serving) -> None:
    before = server.counted("direct", "failed")
    began = time.monotonic()
    found = ask(server, "select sum(hash(i)) from range(100000000000) t(i)", timeout=3)
    assert found.status_code == 504
    assert 2.5 < time.monotonic() - began < 6
    assert server.counted("direct", "failed") == before, "no other was asked"


def test_a_query_that_needs_too_much_memory_is_told_so(server: Serving) -> None:
    time.sleep(1.5)  # what was asked before has given its memory back
    began = time.monotonic()
    found = ask(server, "select list(i) from range(2000000000) t(i)")
    assert found.status_code in (413, 503), found.text
    assert time.monotonic() - began < 15
    assert ask(server, QUICK.format(-1)).status_code == 200


@pytest.mark.parametrize("sql", ["select 1 as a", "select count(*) as a from silver.orders"])
def test_an_engine_that_is_away_is_not_the_callers_mistake(server: Serving, sql: str) -> None:
    found = ask(server, sql, dialect="spark", timeout=4)
    assert found.status_code == 503, found.text
    assert int(found.headers["Retry-After"]) >= 1
    assert found.json()["error"]["code"] == "unavailable"
    assert found.json()["error"]["transient"] is True


def test_quick_questions_are_answered_beside_endless_ones(server: Serving) -> None:
    """Of one caller here, so that the endless ones may have two places of each engine."""
    stop = time.monotonic() + 8

    def endless(number: int) -> None:
        while time.monotonic() < stop:
            ask(server, f"select sum(hash(i + {number})) from range(100000000000) t(i)", timeout=2)

    threads = [threading.Thread(target=endless, args=[n]) for n in range(3)]
    for each in threads:
        each.start()
    ends = []
    while time.monotonic() < stop - 1:
        ends.append(ask(server, QUICK.format(-len(ends) - 2)).status_code)
    for each in threads:
        each.join()
    assert set(ends) == {200}
    assert len(ends) > 10

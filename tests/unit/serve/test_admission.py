"""Per-caller limits, deadlines and recorded outcomes, whatever the router does."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.unit.serve.fixed_router import FixedRouter, opened, serving

from thermocline.config import ServeSettings
from thermocline.serve.http.metrics import Metrics

SQL = "select id, text from silver.orders"


def code(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_engines_that_failed_on_the_way_are_blamed(tmp_path: Path) -> None:
    with serving(FixedRouter(), opened(tmp_path)) as url:
        httpx.post(f"{url}/query", json={"sql": "select * from test.fallback"})
        httpx.post(f"{url}/query", json={"sql": "select * from test.both"})
        text = httpx.get(f"{url}/metrics").text
    counts = {
        ("direct", "fell_back"): 1, ("hot", "failed"): 2, ("spark", "failed"): 1,
        ("none", "failed"): 1, ("hot", "answered"): 0,
    }  # fmt: skip
    for (engine, outcome), count in counts.items():
        name = f'shadow_warehouse_queries_total{{engine="{engine}",outcome="{outcome}"}}'
        assert f"{name} {count}.0" in text


def test_answers_that_are_older_than_they_should_be_are_counted(tmp_path: Path) -> None:
    with serving(FixedRouter(), opened(tmp_path)) as url:
        for table in ("test.overdue", "silver.orders", "test.overdue"):
            httpx.post(f"{url}/query", json={"sql": f"select * from {table}"})
        assert "\nthermocline_overdue_total 2.0\n" in httpx.get(f"{url}/metrics").text


def test_a_caller_who_leaves_cancels_the_query(tmp_path: Path) -> None:
    router, metrics = FixedRouter(), Metrics()
    with serving(router, opened(tmp_path), metrics=metrics) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/query", json={"sql": "select * from test.slow"}, timeout=0.3)
        assert router.cancelled.wait(5)
        assert httpx.get(f"{url}/health").status_code == 200
        text = httpx.get(f"{url}/metrics").text
    assert 'shadow_warehouse_queries_total{engine="none",outcome="left"} 1.0' in text


def test_a_deadline_that_the_router_lets_pass_is_kept_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thermocline.serve.http.admission.GRACE_SECONDS", 0.0)
    with serving(FixedRouter(), opened(tmp_path)) as url:
        body = {"sql": "select * from test.slow", "timeout": 0.2}
        began = time.monotonic()
        reply = httpx.post(f"{url}/query", json=body)
        assert code(reply) == (504, "too-late")
        assert time.monotonic() - began < 5


def test_a_caller_has_only_so_many_running_and_a_second(tmp_path: Path) -> None:
    router = FixedRouter()
    with serving(router, opened(tmp_path), ServeSettings(concurrency=2)) as url:
        slow = {"sql": "select * from test.slow", "timeout": 1}
        threads = [
            threading.Thread(target=lambda: httpx.post(f"{url}/query", json=slow, timeout=20))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        while len(router.seen) < 2:
            time.sleep(0.01)
        reply = httpx.post(f"{url}/query", json={"sql": SQL})
        assert code(reply) == (429, "busy")
        assert int(reply.headers["retry-after"]) >= 1
        for thread in threads:
            thread.join()
        assert httpx.post(f"{url}/query", json={"sql": SQL}).status_code == 200
    with serving(FixedRouter(), opened(tmp_path), ServeSettings(rate=5)) as url:
        with httpx.Client(base_url=url) as client:
            statuses = [client.post("/query", json={"sql": SQL}).status_code for _ in range(20)]
            assert statuses[:5] == [200] * 5
            assert 429 in statuses
            time.sleep(0.5)
            assert client.post("/query", json={"sql": SQL}).status_code == 200

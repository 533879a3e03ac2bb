"""The HTTP API on a real server: answers, errors and limits as a client sees them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.unit.serve.fixed_router import NOW, PATH, ROWS, SNAPSHOT, FixedRouter, opened, serving

from thermocline.serve.http import request_parser, responses
from thermocline.serve.http.metrics import Metrics

SQL = "select id, text from silver.orders"


@pytest.fixture(scope="module")
def router() -> FixedRouter:
    return FixedRouter()


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="module")
def url(
    router: FixedRouter, metrics: Metrics, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with serving(router, opened(tmp_path_factory.mktemp("project")), metrics=metrics) as address:
        yield address


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
        yield client


def ask(http: httpx.Client, sql: str = SQL, **fields: Any) -> httpx.Response:
    return http.post("/query", json={"sql": sql, **fields})


def code(reply: httpx.Response) -> tuple[int, str]:
    assert reply.headers["content-type"] == "application/json"
    return reply.status_code, reply.json()["error"]["code"]


def test_rows_as_json(http: httpx.Client) -> None:
    reply = ask(http)
    assert reply.status_code == 200
    document = reply.json()
    assert document["rows"] == ROWS
    assert document["columns"] == [
        {"name": "id", "type": "int64"},
        {"name": "text", "type": "string"},
    ]
    assert document["provenance"]["engine"] == "hot"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "server" not in reply.headers


def test_rows_as_arrow_and_csv(http: httpx.Client) -> None:
    arrow = ask(http, format="arrow")
    assert arrow.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(arrow.content).read_all()
    assert [list(row.values()) for row in table.to_pylist()] == ROWS
    assert json.loads(arrow.headers["x-thermocline-provenance"])["node"] == "node-0"
    csv = ask(http, format="csv")
    assert csv.headers["content-type"].startswith("text/csv")
    assert csv.text.splitlines()[0] == '"id","text"'


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("text/csv", "text/csv"),
        ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.stream"),
        ("application/json;q=0.5, text/csv;q=0.9", "text/csv"),
        ("text/html, */*;q=0.1", "application/json"),
    ],
)
def test_accept_chooses_the_format(http: httpx.Client, accept: str, media: str) -> None:
    reply = http.post("/query", json={"sql": SQL}, headers={"Accept": accept})
    assert reply.headers["content-type"].startswith(media)
    # What the body says is said on purpose; what Accept says may come from a library.
    reply = http.post("/query", json={"sql": SQL, "format": "json"}, headers={"Accept": accept})
    assert reply.headers["content-type"] == "application/json"


def test_no_rows_are_an_empty_array(tmp_path: Path) -> None:
    with serving(FixedRouter(body=b""), opened(tmp_path)) as url:
        assert httpx.post(f"{url}/query", json={"sql": SQL}).json()["rows"] == []


def test_a_large_answer_arrives_whole(tmp_path: Path) -> None:
    body = b'[1,"%s"]\n' % (b"x" * 50) * 200_000
    with serving(FixedRouter(body=body), opened(tmp_path)) as url:
        rows = httpx.post(f"{url}/query", json={"sql": SQL}, timeout=30).json()["rows"]
        assert (len(rows), rows[-1]) == (200_000, [1, "x" * 50])


def test_every_field_reaches_the_router(http: httpx.Client, router: FixedRouter) -> None:
    fields = {
        "dialect": "trino", "table_id": "silver.orders", "start_time": "2026-11-14T19:00:00+01:00",
        "snapshot": str(SNAPSHOT), "min_snapshot": SNAPSHOT, "max_staleness": 2, "timeout": 0.5,
    }  # fmt: skip
    assert ask(http, **fields).status_code == 200
    asked, caller = router.seen[-1]
    assert (asked.snapshot, asked.min_snapshot) == (SNAPSHOT, SNAPSHOT)
    assert (asked.dialect, asked.table_id, asked.start_time) == ("trino", "silver.orders", NOW)
    assert (asked.max_staleness, asked.timeout, asked.format) == (2.0, 0.5, "json")
    assert caller.name == "anonymous"


@pytest.mark.parametrize(
    "fields",
    [
        {"snapshott": 1}, {"sql": ""}, {"sql": 7}, {"sql": None}, {"sql": "select '\ud800'"},
        {"table_id": "a'; DROP TABLE t--"}, {"table_id": "../b"}, {"table_id": "*.*"},
        {"table_id": "a.b\0"}, {"table_id": "a." + "b" * 10_000}, {"table_id": "sіlver.orders"},
        {"snapshot": "1.0"}, {"snapshot": True}, {"snapshot": -1}, {"snapshot": 2**63},
        {"snapshot": "٣"}, {"min_snapshot": []}, {"snapshot": 10**4000},
        {"start_time": "yesterday"}, {"start_time": 3}, {"max_staleness": -1},
        {"max_staleness": "2"}, {"timeout": 0}, {"timeout": True}, {"timeout": 10**400},
        {"format": "trino"}, {"format": ["json"]}, {"dialect": "mysql"},
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(
    http: httpx.Client, router: FixedRouter, fields: dict[str, Any]
) -> None:
    before = len(router.seen)
    content = json.dumps({"sql": SQL, **fields})
    reply = http.post("/query", content=content, headers={"Content-Type": "application/json"})
    assert code(reply) == (400, "bad-input")
    assert reply.json()["error"]["next_step"]
    assert len(router.seen) == before


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"sql": NaN}', b"[" * 100_000,
     b'{"timeout": 1e999, "sql": "select 1"}', b'{"snapshot": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_bad_json_is_400(http: httpx.Client, body: bytes) -> None:
    reply = http.post("/query", content=body, headers={"Content-Type": "application/json"})
    assert code(reply) == (400, "bad-input")


@pytest.mark.parametrize(
    ("table", "status", "name"),
    [
        ("silver.nothing", 404, "not-found"), ("test.busy", 429, "busy"),
        ("test.both", 502, "both-failed"), ("test.late", 504, "too-late"),
        ("test.large", 413, "too-much"), ("test.away", 503, "transient"),
        ("test.spark", 503, "engine"),
    ],
)  # fmt: skip
def test_each_failure_has_its_status(
    http: httpx.Client, table: str, status: int, name: str
) -> None:
    reply = ask(http, f"select * from {table}")
    assert code(reply) == (status, name)
    error = reply.json()["error"]
    assert set(error) == {"code", "cause", "next_step", "transient", "details"}
    assert error["cause"]
    assert ("retry-after" in reply.headers) == (status in (429, 503))
    if status == 429:
        assert reply.headers["retry-after"] == "7"


def test_refused_sql_is_400(http: httpx.Client) -> None:
    for sql in ("drop table silver.orders", "select 1; select 2", "select * from '/etc/passwd'"):
        assert code(ask(http, sql)) == (400, "refused")


def test_what_was_not_foreseen_says_nothing_and_is_logged(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="thermocline"):
        reply = ask(http, "select * from test.broken")
    assert (reply.status_code, reply.content) == (500, b'{"error": {"code": "internal"}}')
    (record,) = [r for r in caplog.records if r.name == "thermocline.serve"]
    assert PATH in record.fields["trace"]  # type: ignore[attr-defined]


def test_wrong_methods_and_addresses(http: httpx.Client) -> None:
    reply = http.get("/query")
    assert code(reply) == (405, "method")
    assert reply.headers["allow"] == "POST"
    assert code(http.delete("/tables")) == (405, "method")
    for path in ("/", "/query/", "/%2e%2e/etc/passwd", "/static/../../etc/passwd", "/docs"):
        assert code(http.get(path)) == (404, "not-found")


def test_only_json_is_read(http: httpx.Client) -> None:
    body = json.dumps({"sql": SQL})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        reply = http.post("/query", content=body, headers={"Content-Type": kind})
        assert code(reply) == (415, "not-json")
    kind = "application/json; charset=utf-8"
    assert http.post("/query", content=body, headers={"Content-Type": kind}).status_code == 200
    reply = http.post("/query", json={"sql": SQL}, headers={"Accept": "image/png"})
    assert code(reply) == (406, "not-acceptable")


def test_a_body_over_the_limit_is_not_read(http: httpx.Client, url: str) -> None:
    big = json.dumps({"sql": "x" * request_parser.MAX_BODY_BYTES})
    reply = http.post("/query", content=big, headers={"Content-Type": "application/json"})
    assert code(reply) == (413, "too-much")

    def pieces() -> Iterator[bytes]:
        yield b'{"sql": "'
        for _ in range(40):
            yield b"x" * 50_000

    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=url, trust_env=False) as fresh:
        try:
            reply = fresh.post("/query", content=pieces(), headers=headers)
            assert code(reply) == (413, "too-much")
        except httpx.WriteError:
            pass  # it hung up on us while we were still sending: not read either
    assert ask(http).status_code == 200


def test_explain_by_get_and_post(http: httpx.Client, router: FixedRouter) -> None:
    parameters = {"sql": SQL, "snapshot": str(SNAPSHOT), "max_staleness": "1.5"}
    reply = http.get("/explain", params=parameters)
    assert reply.json()["ways"][0]["engine"] == "hot"
    assert (router.seen[-1][0].snapshot, router.seen[-1][0].max_staleness) == (SNAPSHOT, 1.5)
    assert http.post("/explain", json={"sql": SQL}).json() == reply.json()
    for wrong in ({}, {"sql": SQL, "x": "1"}, {"sql": SQL, "timeout": "soon"}):
        assert code(http.get("/explain", params=wrong)) == (400, "bad-input")
    twice = http.get("/explain?sql=select+1&sql=select+2")
    assert code(twice) == (400, "bad-input")
    assert code(http.get("/explain", params={"sql": "drop table x"})) == (400, "refused")


def test_tables_nodes_health_and_ready(http: httpx.Client, router: FixedRouter) -> None:
    (table,) = http.get("/tables").json()["tables"]
    assert (table["table"], table["snapshot"]) == ("silver.orders", str(SNAPSHOT))
    assert (table["rows"], table["bytes"], table["files"]) == (3, 64_001_000, 2)
    assert table["committed_at"] == "2026-11-14T18:00:00+00:00"
    assert table["columns"][0] == {"name": "id", "type": "long"}
    assert table["hot"]["wanted"] == "whole"
    assert table["hot"]["copies"][0] == {
        "node": "node-0", "snapshot": str(SNAPSHOT), "since": None, "rows": 3, "bytes": 900
    }  # fmt: skip
    assert http.get("/nodes").json()["nodes"][0]["name"] == "node-0"
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").status_code == 200
    router.up = False
    try:
        assert code(http.get("/ready")) == (503, "transient")
        assert http.get("/health").status_code == 200
    finally:
        router.up = True


def test_the_metrics_count_what_was_asked(http: httpx.Client) -> None:
    def count(outcome: str) -> float:
        name = f'shadow_warehouse_queries_total{{engine="hot",outcome="{outcome}"}} '
        text = http.get("/metrics").text
        return next(float(line[len(name) :]) for line in text.splitlines() if line.startswith(name))

    before = count("answered")
    for _ in range(3):
        ask(http)
    assert count("answered") == before + 3
    assert 'thermocline_node_memory_bytes{node="node-0"} 1234.0' in http.get("/metrics").text


def test_a_long_provenance_still_fits_a_header() -> None:
    provenance = {"engine": "spark", "because": ["ü" * 10_000], "node": None}
    header = responses.encode_provenance_header(provenance)
    assert len(header) <= responses.MAX_PROVENANCE_BYTES
    assert json.loads(header) == {"engine": "spark", "node": None, "shortened": True}
    assert json.loads(responses.encode_provenance_header({"engine": "x" * 9000})) == {
        "shortened": True
    }
    assert b"\n" not in responses.encode_provenance_header({"engine": "a\r\nSet-Cookie: x"})

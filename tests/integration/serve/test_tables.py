"""What the server says of tables, and of values at the ends of their types."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.integration.serve import fuzz, serving, shop_lake
from tests.integration.serve.serving import Serving
from tests.integration.serve.shop_lake import DAYS, PER_DAY

NEVER = pa.schema([
    ("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("u", pa.string()),
    ("s", pa.struct([("a", pa.list_(pa.int32()))])), ("m", pa.map_(pa.string(), pa.date32())),
    ("f", pa.binary(3)), ("d", pa.decimal128(10, 2)),
])  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    project = tmp_path_factory.mktemp("tables") / "p"
    lake = shop_lake.build(project)
    lake.catalog.create_table("gold.never", NEVER)
    lake.close()
    with (project / "thermocline.toml").open("a") as file:
        file.write(serving.COLD)
    with serving.started(project) as started:
        started.settled(3)
        yield started


def ask(server: Serving, sql: str, dialect: str = "duckdb", path: str = "/query") -> Any:
    body = {"sql": sql, "dialect": dialect, "timeout": 200}
    return httpx.post(server.url + path, json=body, timeout=240)


def trino(server: Serving, sql: str) -> dict[str, Any]:
    with httpx.Client(base_url=server.url, timeout=240) as client:
        first = client.post("/v1/statement", content=sql, headers={"X-Trino-User": "t"})
        return list(fuzz.pages(client, first.json(), {}))[-1]


@pytest.mark.parametrize("dialect", ["duckdb", "trino", "spark"])
def test_a_table_that_was_never_committed_to_is_empty(server: Serving, dialect: str) -> None:
    every = ask(server, "SELECT * FROM gold.never", dialect)
    assert every.status_code == 200, every.text
    assert every.json()["rows"] == []
    assert [each["name"] for each in every.json()["columns"]] == NEVER.names
    assert every.json()["provenance"]["tables"]["gold.never"]["snapshot"] is None
    joined = ask(
        server, "SELECT count(*), count(n.id) FROM silver.customers c LEFT JOIN gold.never n "
        "ON n.id = c.customer_id", dialect,
    )  # fmt: skip
    assert joined.json()["rows"] == [[10, 0]]


def test_it_is_listed_without_a_snapshot(server: Serving) -> None:
    listed = {each["table"]: each for each in httpx.get(f"{server.url}/tables").json()["tables"]}
    assert listed["gold.never"]["snapshot"] is None
    assert listed["gold.never"]["rows"] == 0
    assert httpx.get(f"{server.url}/nodes").status_code == 200
    assert httpx.get(f"{server.url}/metrics").status_code == 200


def test_times_of_copies_are_iso(server: Serving) -> None:
    listed = httpx.get(f"{server.url}/tables").json()["tables"]
    since = [copy["since"] for each in listed for copy in each["hot"]["copies"] if copy["since"]]
    assert since
    for each in since:
        assert datetime.fromisoformat(each).utcoffset() is not None
        assert not each.endswith("+00:00Z")


COUNTED = [
    ("ordered_at < timestamptz 'infinity'", DAYS * PER_DAY),
    ("timestamptz '-infinity' < ordered_at", DAYS * PER_DAY),
    ("ordered_at > timestamptz 'infinity'", 0),
    ("ordered_at between timestamptz '-infinity' and timestamptz 'infinity'", DAYS * PER_DAY),
    ("ordered_at <> timestamptz 'infinity'", DAYS * PER_DAY),
    ("ordered_at in (timestamptz 'infinity')", 0),
    ("ordered_at::timestamp < timestamp 'infinity'", DAYS * PER_DAY),
    ("ordered_at::date < date 'infinity'", DAYS * PER_DAY),
    ("coalesce(ordered_at, timestamptz 'infinity') < timestamptz 'infinity'", DAYS * PER_DAY),
]


@pytest.mark.parametrize(("where", "count"), COUNTED)
def test_an_infinite_time_is_compared_with(server: Serving, where: str, count: int) -> None:
    found = ask(server, f"select count(*) from silver.orders where {where}")
    assert found.status_code == 200, found.text
    assert found.json()["rows"] == [[count]]


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
def test_an_infinite_time_in_an_answer_is_an_error_and_no_other_time(
    server: Serving, kind: str
) -> None:
    for end in ("infinity", "-infinity"):
        found = ask(server, f"select {kind} '{end}' as a")
        assert found.status_code == 400
        assert "infinite" in found.json()["error"]["cause"]
        as_text = ask(server, f"select cast({kind} '{end}' as varchar) as a")
        assert as_text.json()["rows"] == [[end]]


@pytest.mark.parametrize("body", [
    '{"sql": "select 1", "sql": "select 2"}', '{"sql": "select 1", "\\u0073ql": "select 2"}',
    '{"sql": "select 1", "timeout": 5, "timeout": 5}', '{"sql": {"a": 1, "a": 2}}',
])  # fmt: skip
@pytest.mark.parametrize("path", ["/query", "/explain"])
def test_a_field_that_stands_twice_is_refused(server: Serving, path: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    found = httpx.post(server.url + path, content=body, headers=headers)
    assert found.status_code == 400
    assert "is given twice" in found.json()["error"]["cause"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM silver.orders ORDER BY CAST(note AS nonsense)",
        "SELECT order_id FROM silver.orders TABLESAMPLE (5 ROWS) REPEATABLE (1)",
        "SELECT a -> 1 FROM silver.orders",
        "SELECT CAST(1 AS DECIMAL(99, 2))",
        "SELECT INTERVAL 'x' DAY",
    ],
)
def test_what_spark_cannot_read_is_named(server: Serving, sql: str) -> None:
    found = ask(server, sql, "spark")
    if found.status_code != 200:
        assert len(found.json()["error"]["cause"]) > 10, found.text


DIVIDED = {
    "1/0": "DIVISION_BY_ZERO", "1 % 0": "DIVISION_BY_ZERO", "mod(1, 0)": "DIVISION_BY_ZERO",
    "1.5/0": "DIVISION_BY_ZERO", "1/0.0": "DIVISION_BY_ZERO", "1.5 % 0.0": "DIVISION_BY_ZERO",
    "1e0/0": ["Infinity"], "-1/0e0": ["-Infinity"], "0e0/0": ["NaN"], "7/2": [3], "7.0/2": ["3.5"],
    "CAST(NULL AS bigint)/0": [None], "nullif(1, 1)/nullif(0, 0)": [None],
    "try(1/0)": "NOT_SUPPORTED", "CASE WHEN true THEN 1 ELSE 1/0 END": [1],
}  # fmt: skip
"""What Trino itself says; its NULL divided by zero is null."""


@pytest.mark.parametrize("said", DIVIDED)
def test_division_is_trinos_for_its_clients(server: Serving, said: str) -> None:
    for sql in (f"SELECT {said} AS a", f"SELECT {said} AS a FROM silver.customers LIMIT 1"):
        page = trino(server, sql)
        found = page["error"]["errorName"] if "error" in page else page["data"][0]
        assert found == DIVIDED[said], sql


@pytest.mark.parametrize(("where", "engine"), [
    ("ordered_at >= current_date - INTERVAL '1' DAY", "hot"), ("true", "spark"),
])  # fmt: skip
def test_a_row_that_divides_by_zero_fails_on_every_engine(
    server: Serving, where: str, engine: str
) -> None:
    table = f"silver.orders WHERE {where}"
    page = trino(server, f"SELECT sum(order_id / (customer_id - customer_id)) FROM {table}")
    assert page["error"]["errorName"] == "DIVISION_BY_ZERO"
    page = trino(
        server, f"SELECT count(*) FROM {table} AND customer_id <> 0 AND 10 / customer_id > 0"
    )
    assert "error" not in page

"""Trino's client protocol, request by request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import httpx
import pytest
from starlette.testclient import TestClient
from tests.unit.serve.trino_lake import SmallRouter, application, open_to_all, with_tokens

from thermocline.serve.failures import BothFailed, Busy

ANN = {"X-Trino-User": "ann"}


class Client:
    """A client that follows nextUri to the end, as all of Trino's do."""

    def __init__(self, http: TestClient, **headers: str) -> None:
        self.http = http
        self.headers = {**ANN, **headers}

    def post(self, sql: str | bytes, **headers: str) -> httpx.Response:
        return self.http.post("/v1/statement", content=sql, headers={**self.headers, **headers})

    def pages(self, sql: str, **headers: str) -> list[dict[str, Any]]:
        pages = [self.post(sql, **headers).json()]
        while "nextUri" in pages[-1]:
            answer = self.http.get(pages[-1]["nextUri"], headers=self.headers)
            assert answer.status_code == 200, answer.text
            pages.append(answer.json())
        return pages

    def rows(self, sql: str, **headers: str) -> list[list[Any]]:
        pages = self.pages(sql, **headers)
        assert "error" not in pages[-1], pages[-1]["error"]
        assert pages[-1]["stats"]["state"] == "FINISHED"
        return [row for page in pages for row in page.get("data", [])]

    def fault(self, sql: str, **headers: str) -> dict[str, Any]:
        last = self.pages(sql, **headers)[-1]
        assert last["stats"]["state"] == "FAILED"
        assert "nextUri" not in last
        return last["error"]


@pytest.fixture(scope="module")
def router() -> SmallRouter:
    return SmallRouter()


@pytest.fixture(scope="module")
def client(router: SmallRouter) -> Iterator[Client]:
    with TestClient(application(router, poll_seconds=0.05)) as http:
        yield Client(http)


# Queries ------------------------------------------------------------------------------------------


def test_a_query_is_answered_with_its_columns_and_rows(client: Client) -> None:
    [page] = client.pages("SELECT id, customer, total, at, paid, tags FROM lake.silver.orders")
    assert page["data"] == [
        [1, "ann", "10.50", "2026-11-14 10:00:00.123456 UTC", True, ["a", "b"]],
        [2, "bo'b", "7.25", "2026-11-15 00:00:00.000000 UTC", False, []],
        [3, None, None, None, None, None],
    ]
    assert [(each["name"], each["type"]) for each in page["columns"]] == [
        ("id", "bigint"), ("customer", "varchar"), ("total", "decimal(10,2)"),
        ("at", "timestamp(6) with time zone"), ("paid", "boolean"), ("tags", "array(varchar)"),
    ]  # fmt: skip
    assert [each["typeSignature"] for each in page["columns"][2:4]] == [
        {"rawType": "decimal", "arguments": [{"kind": "LONG", "value": 10},
                                             {"kind": "LONG", "value": 2}]},
        {"rawType": "timestamp with time zone", "arguments": [{"kind": "LONG", "value": 6}]},
    ]  # fmt: skip
    assert page["stats"]["state"] == "FINISHED"
    assert page["stats"]["processedRows"] == 3
    assert page["id"] in page["infoUri"]


def test_names_are_completed_by_the_session_without_regard_to_case(client: Client) -> None:
    in_silver = {"X-Trino-Catalog": "lake", "X-Trino-Schema": "Silver"}
    assert client.rows("SELECT count(*) FROM ORDERS", **in_silver) == [[3]]
    assert client.rows("SELECT count(*) FROM gold.daily", **in_silver) == [[1]]
    assert client.rows("select silver.orders.id from silver.orders where id = 1") == [[1]]
    assert client.fault("SELECT * FROM orders")["errorName"] == "MISSING_SCHEMA_NAME"


def test_a_cte_is_never_taken_for_a_table_of_the_same_name(client: Client) -> None:
    in_silver = {"X-Trino-Schema": "silver"}
    for name in ("orders", "Orders", '"ORDERS"'):
        sql = f"WITH {name} AS (SELECT 42 AS x) SELECT * FROM orders"
        assert client.rows(sql, **in_silver) == [[42]]
    nested = "WITH o AS (SELECT 7 AS id) SELECT (SELECT max(id) FROM O), max(id) FROM silver.orders"
    assert client.rows(nested, **in_silver) == [[7, 3]]


def test_columns_without_a_name_are_called_as_trino_calls_them(client: Client) -> None:
    [page] = client.pages("SELECT count(*), id AS x, 1 + 1 FROM silver.orders GROUP BY id LIMIT 1")
    assert [each["name"] for each in page["columns"]] == ["_col0", "x", "_col2"]
    assert client.rows("VALUES (1, 'a'), (2, 'b')") == [[1, "a"], [2, "b"]]


def test_what_only_the_server_knows_is_told(client: Client) -> None:
    sql = "SELECT version(), current_user, current_catalog, current_schema, current_timezone()"
    assert client.rows(sql, **{"X-Trino-Schema": "gold"}) == [
        ["476-thermocline", "ann", "lake", "gold", "UTC"]
    ]
    assert client.rows(sql, **{"X-Trino-User": "eve", "X-Trino-Schema": "gold"})[0][1] == "eve"


def test_large_answers_come_in_pages_that_hold_every_row_once(router: SmallRouter) -> None:
    with TestClient(application(router, page_bytes=100_000)) as http:
        client = Client(http)
        pages = client.pages("SELECT n, text FROM silver.wide ORDER BY n")
        assert [row[0] for page in pages for row in page["data"]] == list(range(30_000))
        assert len(pages) > 30
        assert all(len(json.dumps(page["data"])) < 130_000 for page in pages)
        assert {page["stats"]["state"] for page in pages[:-1]} == {"RUNNING"}
        one_row = client.rows("SELECT repeat('y', 300000), n FROM silver.wide WHERE n < 2")
        assert [len(row[0]) for row in one_row] == [300_000, 300_000]


def test_a_page_may_be_fetched_again_but_not_one_before_or_behind(router: SmallRouter) -> None:
    with TestClient(application(router, page_bytes=100_000)) as http:
        client = Client(http)
        first = client.post("SELECT n, text FROM silver.wide").json()
        assert first["nextUri"].endswith("/1")
        second = http.get(first["nextUri"], headers=ANN)
        assert http.get(first["nextUri"], headers=ANN).json()["data"] == second.json()["data"]
        base = first["nextUri"].removesuffix("1")
        third = http.get(second.json()["nextUri"], headers=ANN)
        assert third.json()["data"] != second.json()["data"]
        assert http.get(base + "1", headers=ANN).status_code == 410
        for jump in ("4", "99", "-1", "x", "0x3", "²", "9" * 30):
            assert http.get(base + jump, headers=ANN).status_code == 404
        assert http.get(base + "3", headers=ANN).json()["data"]  # none of this did any harm


def test_a_long_query_is_polled_and_a_delete_cancels_it(router: SmallRouter) -> None:
    with TestClient(application(router, first_wait_seconds=0.02, poll_seconds=0.05)) as http:
        client = Client(http)
        page = client.post("SELECT * FROM silver.slow").json()
        assert page["stats"]["state"] == "QUEUED"
        assert "data" not in page and "columns" not in page
        for token in (1, 2, 3):
            assert page["nextUri"].endswith(f"/{token}")
            page = http.get(page["nextUri"], headers=ANN).json()
            assert page["stats"]["state"] == "RUNNING"
        cancelled = router.cancelled
        assert router.running == 1
        assert http.delete(page["nextUri"], headers=ANN).status_code == 204
        last = http.get(page["nextUri"], headers=ANN).json()
        assert (last["error"]["errorName"], last["error"]["errorCode"]) == ("USER_CANCELED", 3)
        assert "nextUri" not in last
        assert (router.running, router.cancelled) == (0, cancelled + 1)


def test_errors_have_trinos_shape_and_no_insides(client: Client) -> None:
    wrong = {
        "SELECT * FROM silver.nothing": ("TABLE_NOT_FOUND", 46, "USER_ERROR"),
        "SELECT * FROM elsewhere.silver.orders": ("CATALOG_NOT_FOUND", 44, "USER_ERROR"),
        "SELECT * FROM system.runtime.queries": ("TABLE_NOT_FOUND", 46, "USER_ERROR"),
        "SELECT FROM WHERE": ("SYNTAX_ERROR", 1, "USER_ERROR"),
        "SELECT 'open": ("SYNTAX_ERROR", 1, "USER_ERROR"),
        "": ("SYNTAX_ERROR", 1, "USER_ERROR"),
        "SELECT nope FROM silver.orders": ("GENERIC_USER_ERROR", 0, "USER_ERROR"),
        "DROP TABLE silver.orders": ("NOT_SUPPORTED", 13, "USER_ERROR"),
        "SELECT * FROM read_csv('/etc/passwd')": ("NOT_SUPPORTED", 13, "USER_ERROR"),
    }
    for sql, (name, code, kind) in wrong.items():
        error = client.fault(sql)
        assert (error["errorName"], error["errorCode"], error["errorType"]) == (name, code, kind)
        assert error["failureInfo"]["stack"] == []
        assert "\n" not in error["message"] and "Traceback" not in error["message"]


def test_an_engine_that_is_away_is_no_fault_of_ours(router: SmallRouter) -> None:
    class FailingRouter(SmallRouter):
        async def answer(self, request: Any, caller: Any) -> Any:
            raise BothFailed("node-0: it died; direct: it died", "Ask again.")

    with TestClient(application(FailingRouter())) as http:
        error = Client(http).fault("SELECT 1")
    assert (error["errorName"], error["errorCode"]) == ("NO_NODES_AVAILABLE", 65541)
    assert error["message"].startswith("node-0: it died")


def test_a_failure_that_nobody_foresaw_tells_nothing(router: SmallRouter) -> None:
    class Broken(SmallRouter):
        async def answer(self, request: Any, caller: Any) -> Any:
            raise RuntimeError("password=hunter2 in /srv/secret")

    with TestClient(application(Broken())) as http:
        error = Client(http).fault("SELECT 1")
    assert error["errorName"] == "GENERIC_INTERNAL_ERROR"
    assert "hunter2" not in json.dumps(error) and "/srv" not in json.dumps(error)


# The session --------------------------------------------------------------------------------------


def test_use_and_set_session_are_for_the_client_to_remember(client: Client) -> None:
    used = client.post("USE lake.gold")
    assert used.headers["X-Trino-Set-Catalog"] == "lake"
    assert used.headers["X-Trino-Set-Schema"] == "gold"
    assert used.json()["updateType"] == "USE"
    assert client.fault("USE lake.nope")["errorName"] == "SCHEMA_NOT_FOUND"
    assert client.fault("USE other.gold")["errorName"] == "CATALOG_NOT_FOUND"
    done = client.post("SET SESSION query_max_run_time = '1.5m'")
    assert done.headers["X-Trino-Set-Session"] == "query_max_run_time=1.5m"
    done = client.post("RESET SESSION query_max_run_time")
    assert done.headers["X-Trino-Clear-Session"] == "query_max_run_time"
    assert client.post("SET TIME ZONE 'UTC'").headers["X-Trino-Set-Session"] == "time_zone_id=UTC"
    assert client.fault("SET TIME ZONE 'Asia/Tokyo'")["errorName"] == "NOT_SUPPORTED"


def test_what_a_session_sets_reaches_the_router(client: Client, router: SmallRouter) -> None:
    held = "query_max_run_time=90s,query_max_execution_time=2m,lake.max_staleness=5s"
    client.rows("SELECT 1", **{"X-Trino-Session": f"{held},lake.min_snapshot=123"})
    ask = router.asked[-1]
    assert (ask.timeout, ask.max_staleness, ask.min_snapshot) == (90.0, 5.0, 123)
    assert (ask.dialect, ask.format) == ("trino", "trino")


@pytest.mark.parametrize(
    "held",
    [
        "unknown=1", "query_max_run_time=soon", "lake.min_snapshot=1%20OR%201", "a",
        "query_max_run_time=5m%0d%0aX-Evil:1", "task_concurrency=-1", "lake.min_snapshot=%C2%B2",
        "time_zone_id=Asia%2FTokyo",
    ],
)  # fmt: skip
def test_other_session_properties_are_refused(client: Client, held: str) -> None:
    assert client.fault("SELECT 1", **{"X-Trino-Session": held})["errorType"] == "USER_ERROR"


TOKYO = {"X-Trino-Time-Zone": "Asia/Tokyo"}


@pytest.mark.parametrize("sql", [
    "SELECT current_date",
    "SELECT id FROM silver.orders WHERE at > TIMESTAMP '2026-03-01 00:00:00'",
    "SELECT id FROM silver.orders WHERE at BETWEEN DATE '2026-03-01' AND DATE '2026-03-02'",
    "SELECT CAST(DATE '2026-03-01' AS TIMESTAMP WITH TIME ZONE)",
    "SELECT coalesce(at, TIMESTAMP '2026-03-01 00:00:00') FROM silver.orders",
    "SELECT at FROM silver.orders UNION SELECT TIMESTAMP '2026-03-01 00:00:00'",
    "SELECT hour(from_unixtime(0))",
])  # fmt: skip
def test_a_zone_that_changes_the_answer_is_refused(client: Client, sql: str) -> None:
    fault = client.fault(sql, **TOKYO)
    assert fault["errorName"] == "NOT_SUPPORTED"
    assert "Asia/Tokyo" in fault["message"]


@pytest.mark.parametrize("sql", [
    "SELECT id FROM silver.orders",
    "SELECT CAST(at AS DATE), date_trunc('day', at), hour(at) FROM silver.orders",
    "SELECT id FROM silver.orders WHERE at > TIMESTAMP '2026-03-01 00:00:00 UTC'",
    "SELECT id, TIMESTAMP '2026-03-01 00:00:00', at FROM silver.orders",
])  # fmt: skip
def test_a_zone_that_changes_nothing_is_taken(client: Client, sql: str) -> None:
    assert client.pages(sql, **TOKYO)[-1].get("error") is None


def test_transactions_are_taken_and_change_nothing(client: Client) -> None:
    begun = client.post("START TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY")
    assert len(begun.headers["X-Trino-Started-Transaction-Id"]) == 36
    for word in ("COMMIT", "ROLLBACK WORK"):
        assert client.post(word).headers["X-Trino-Clear-Transaction-Id"] == "true"


def test_show_create_table_names_every_column(client: Client) -> None:
    for name in ("gold.daily", "lake.gold.daily"):
        [[text]] = client.rows(f"SHOW CREATE TABLE {name}")
        assert text.startswith("CREATE TABLE lake.gold.daily (\n")
        for column, kind, *_ in client.rows("DESCRIBE gold.daily"):
            assert f"   {column} {kind}" in text
    assert client.fault("SHOW CREATE TABLE gold.nothing")["errorName"] == "TABLE_NOT_FOUND"


# Prepared statements ------------------------------------------------------------------------------


def _kept(name: str, sql: str) -> dict[str, str]:
    return {"X-Trino-Prepared-Statement": f"{name}={quote_plus(sql)}"}


def test_a_prepared_statement_is_kept_by_the_client_and_executed(client: Client) -> None:
    sql = "SELECT id FROM silver.orders WHERE customer = ? OR total > ? ORDER BY id"
    added = client.post(f"PREPARE mine FROM {sql}").headers["X-Trino-Added-Prepare"]
    name, _, text = added.partition("=")
    assert (name, unquote_plus(text)) == ("mine", sql)
    kept = _kept(name, sql)
    assert client.rows("EXECUTE mine USING 'bo''b', DECIMAL '10.49'", **kept) == [[1], [2]]
    assert client.rows("DESCRIBE INPUT mine", **kept) == [[0, "unknown"], [1, "unknown"]]
    assert client.rows("DESCRIBE OUTPUT mine", **kept) == [["id", "", "", "", "bigint", 0, False]]
    gone = client.post("DEALLOCATE PREPARE mine", **kept)
    assert gone.headers["X-Trino-Deallocated-Prepare"] == "mine"
    assert client.fault("EXECUTE mine USING 1")["errorName"] == "NOT_FOUND"


def test_parameters_go_where_they_stand_in_the_text(client: Client) -> None:
    sql = ("WITH a AS (SELECT ? AS x) SELECT ?, x, ? FROM a WHERE x = ? "
           "GROUP BY x HAVING count(*) = ? LIMIT ?")  # fmt: skip
    execute = f"EXECUTE IMMEDIATE '{sql}' USING 1, 2, 3, 1, 1, 5"
    assert client.rows(execute) == [[2, 1, 3]]


def test_every_kind_of_constant_can_be_a_parameter(client: Client) -> None:
    using = ("NULL, true, -5, DOUBLE '1.5', 'a''b', X'00ff', DATE '2026-11-14', "
             "TIMESTAMP '2026-11-14 10:00:00.123456', DECIMAL '-1.20', ARRAY[1,2]")  # fmt: skip
    sql = "SELECT " + ", ".join("?" * 10)
    assert client.rows(f"EXECUTE IMMEDIATE '{sql}' USING {using}") == [
        [None, True, -5, 1.5, "a'b", "AP8=", "2026-11-14", "2026-11-14 10:00:00.123456", "-1.20",
         [1, 2]]
    ]  # fmt: skip


def test_a_parameter_that_looks_like_sql_is_a_text(client: Client) -> None:
    evil = "x'' OR 1 = 1; DROP TABLE silver.orders --"
    sql = "EXECUTE IMMEDIATE 'SELECT count(*) FROM silver.orders WHERE customer = ?' USING "
    assert client.rows(f"{sql}'{evil}'") == [[0]]
    assert client.rows(f"EXECUTE IMMEDIATE 'SELECT ?' USING '{evil}'") == [
        [evil.replace("''", "'")]
    ]


@pytest.mark.parametrize(
    "using",
    ["(SELECT 1)", "id", "1 FROM silver.orders", "1 UNION SELECT 2", "1; SELECT 2", "1 AS x",
     "version()", "read_text('/etc/passwd')", "1 + 1", "*", "ARRAY[(SELECT 1)]", "?", "",
     "CAST((SELECT 1) AS bigint)", "1 LIMIT 1", "'a' || 'b'", "1, 2"],
)  # fmt: skip
def test_what_is_no_constant_is_no_parameter(client: Client, using: str) -> None:
    error = client.fault(f"EXECUTE IMMEDIATE 'SELECT ?' USING {using}")
    assert error["errorType"] == "USER_ERROR"


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE x", "INSERT INTO silver.orders VALUES (1)", "PREPARE b FROM SELECT 1",
     "EXECUTE a", "SET SESSION task_concurrency = 2", "SELECT 1; SELECT 2", "COMMIT",
     "SELECT * FROM ? x", "COPY silver.orders TO 'x'"],
)  # fmt: skip
def test_only_queries_can_be_prepared_or_executed(client: Client, sql: str) -> None:
    assert client.fault(f"PREPARE a FROM {sql}")["errorType"] == "USER_ERROR"
    text = sql.replace("'", "''")
    assert client.fault(f"EXECUTE IMMEDIATE '{text}'")["errorType"] == "USER_ERROR"
    assert client.fault("EXECUTE a", **_kept("a", sql))["errorType"] == "USER_ERROR"


# Lists --------------------------------------------------------------------------------------------


def test_show_lists_what_there_is(client: Client) -> None:
    silver = {"X-Trino-Schema": "silver"}
    assert client.rows("SHOW CATALOGS") == [["lake"], ["system"]]
    assert client.rows("SHOW SCHEMAS FROM lake") == [["gold"], ["information_schema"], ["silver"]]
    assert client.rows("SHOW SCHEMAS LIKE 's%'") == [["silver"]]
    assert client.rows("show tables", **silver) == [["orders"], ["slow"], ["wide"]]
    assert client.rows("SHOW TABLES FROM lake.silver LIKE '_l%'") == [["slow"]]
    assert client.rows("SHOW TABLES IN gold LIKE 'd$_ily' ESCAPE '$'") == []
    daily = [["day", "date", "", ""], ["revenue", "double", "", ""]]
    for sql in ("DESCRIBE gold.daily", "DESC lake.gold.daily", 'SHOW COLUMNS FROM "gold"."daily"'):
        assert client.rows(sql) == daily
    assert client.rows("SHOW FUNCTIONS LIKE 'array\\_agg' ESCAPE '\\'")[0][0] == "array_agg"
    shown = client.rows(
        "SHOW SESSION LIKE 'query_max_run%'", **{"X-Trino-Session": "query_max_run_time=5m"}
    )
    assert shown[0][:2] == ["query_max_run_time", "5m"]


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SHOW TABLES FROM nope", "SCHEMA_NOT_FOUND"),
        ("SHOW TABLES", "MISSING_SCHEMA_NAME"),
        ("SHOW SCHEMAS FROM nope", "CATALOG_NOT_FOUND"),
        ("DESCRIBE silver.nope", "TABLE_NOT_FOUND"),
        ("DESCRIBE nope.nope", "SCHEMA_NOT_FOUND"),
        ("SHOW GRANTS", "NOT_SUPPORTED"),
        ("SHOW TABLES FROM silver; SELECT 1", "SYNTAX_ERROR"),
        ("SHOW TABLES FROM 'silver'", "SYNTAX_ERROR"),
        ("SHOW", "NOT_SUPPORTED"),
    ],
)
def test_what_cannot_be_listed_is_named(client: Client, sql: str, name: str) -> None:
    assert client.fault(sql)["errorName"] == name


def test_information_schema_is_a_table_like_any_other(client: Client) -> None:
    assert client.rows(
        "SELECT table_schema, count(*) AS n FROM information_schema.tables "
        "WHERE table_schema <> 'information_schema' GROUP BY 1 ORDER BY n DESC"
    ) == [["silver", 3], ["gold", 1]]
    assert client.rows(
        "SELECT column_name, data_type, ordinal_position, comment "
        "FROM lake.information_schema.columns WHERE table_schema = 'gold' ORDER BY 3"
    ) == [["day", "date", 1, None], ["revenue", "double", 2, None]]
    star = client.pages("SELECT * FROM information_schema.columns WHERE table_name = 'daily'")[0]
    assert [each["name"] for each in star["columns"]] == [
        "table_catalog", "table_schema", "table_name", "column_name", "ordinal_position",
        "column_default", "is_nullable", "data_type",
    ]  # fmt: skip
    assert client.rows("SELECT * FROM information_schema.views") == []
    assert client.rows(
        "SELECT t.table_name, count(c.column_name) FROM information_schema.tables t "
        "LEFT JOIN information_schema.columns c ON t.table_name = c.table_name "
        "AND t.table_schema = c.table_schema WHERE t.table_schema = 'silver' "
        "GROUP BY 1 ORDER BY 1"
    ) == [["orders", 6], ["slow", 1], ["wide", 2]]
    assert client.rows("SELECT schema_name FROM system.information_schema.schemata ORDER BY 1")


def test_the_lists_that_drivers_ask_for_are_there(client: Client) -> None:
    assert client.rows("SELECT TABLE_CAT FROM system.jdbc.catalogs ORDER BY 1") == [
        ["lake"], ["system"]
    ]  # fmt: skip
    assert client.rows(
        "SELECT TABLE_SCHEM, TABLE_NAME, TABLE_TYPE FROM system.jdbc.tables "
        "WHERE TABLE_CAT = 'lake' AND TABLE_SCHEM LIKE 'go%' ESCAPE '\\' "
        "AND TABLE_TYPE IN ('TABLE')"
    ) == [["gold", "daily", "TABLE"]]
    assert client.rows(
        "SELECT COLUMN_NAME, DATA_TYPE, TYPE_NAME, COLUMN_SIZE, DECIMAL_DIGITS "
        "FROM system.jdbc.columns WHERE TABLE_SCHEM = 'silver' AND TABLE_NAME = 'orders' "
        "ORDER BY ORDINAL_POSITION"
    ) == [
        ["id", -5, "bigint", 19, None], ["customer", 12, "varchar", 2147483647, None],
        ["total", 3, "decimal(10,2)", 10, 2],
        ["at", 2014, "timestamp(6) with time zone", 58, 6], ["paid", 16, "boolean", None, None],
        ["tags", 2003, "array(varchar)", None, None],
    ]  # fmt: skip
    empty = "attributes primary_keys procedures procedure_columns pseudo_columns super_tables udts"
    for table in empty.split():
        assert client.rows(f"SELECT * FROM system.jdbc.{table}") == []
    assert ["varchar", 12] in client.rows("SELECT type_name, data_type FROM system.jdbc.types")
    assert client.rows("SELECT coordinator FROM system.runtime.nodes") == [[True]]
    assert client.rows("SELECT count(*) FROM system.metadata.materialized_views") == [[0]]


def test_leaving_out_rows_early_changes_no_answer(client: Client) -> None:
    """What a list is cut down to must be what the whole list would have given."""
    conditions = [
        "table_schema = 'silver'", "table_schema = 'SILVER'", "table_name LIKE '%o%'",
        "table_name IN ('daily', 'slow')", "NOT table_name = 'slow'", "table_name = table_schema",
        "table_schema = 'silver' OR table_name = 'daily'", "'gold' = table_schema",
        "table_name LIKE 's\\_%' ESCAPE '\\'", "table_name NOT LIKE 's%'",
    ]  # fmt: skip
    listed = "(SELECT * FROM information_schema.tables OFFSET 0) x"
    for condition in conditions:
        early = f"SELECT table_name FROM information_schema.tables WHERE {condition} ORDER BY 1"
        late = f"SELECT table_name FROM {listed} WHERE {condition} ORDER BY 1"
        assert client.rows(early) == client.rows(late), condition


def test_explain_says_where_a_query_would_go(client: Client) -> None:
    silver = {"X-Trino-Schema": "silver"}
    [[plan]] = client.rows("EXPLAIN SELECT * FROM orders", **silver)
    assert '"engine": "hot"' in plan and "silver.orders" in plan
    [[plan]] = client.rows("EXPLAIN (FORMAT JSON) SELECT * FROM orders", **silver)
    assert json.loads(plan)["tables"] == ["silver.orders"]
    assert client.rows("EXPLAIN (TYPE VALIDATE) SELECT 1") == [[True]]
    for sql in ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN DROP TABLE x", "EXPLAIN (TYPE IO) SELECT 1",
                "EXPLAIN SHOW TABLES"):  # fmt: skip
        assert client.fault(sql)["errorType"] == "USER_ERROR"


def test_info_is_what_drivers_read_the_version_from(client: Client) -> None:
    info = client.http.get("/v1/info").json()
    assert info["nodeVersion"] == {"version": "476-thermocline"}
    assert (info["coordinator"], info["starting"]) == (True, False)


# Attacks ------------------------------------------------------------------------------------------


def test_a_query_of_somebody_else_cannot_be_read_or_cancelled(router: SmallRouter) -> None:
    ann, eve = {"Authorization": "Bearer ann"}, {"Authorization": "Bearer eve"}
    with TestClient(application(router, with_tokens, page_bytes=100_000)) as http:
        page = http.post("/v1/statement", content="SELECT * FROM silver.wide", headers=ann).json()
        uri = page["nextUri"]
        for method in ("GET", "DELETE"):
            assert http.request(method, uri, headers=eve).status_code == 404
            assert http.request(method, uri).status_code == 401
        head, slug, token = uri.rsplit("/", 2)
        for forged in ("x", slug[:-1], slug[:-1] + ("a" if slug[-1] != "a" else "b"), "%00", "é"):
            assert http.get(f"{head}/{forged}/{token}", headers=ann).status_code == 404
        other = uri.replace(page["id"], "20260101_000000_00000_aaaaa")
        assert http.get(other, headers=ann).status_code == 404
        assert http.get(uri, headers=ann).json()["data"]


def test_without_tokens_a_query_still_belongs_to_the_user_that_sent_it(client: Client) -> None:
    with TestClient(application(SmallRouter(), page_bytes=100_000)) as http:
        uri = Client(http).post("SELECT * FROM silver.wide").json()["nextUri"]
        assert http.get(uri, headers={"X-Trino-User": "eve"}).status_code == 404
        assert http.get(uri).status_code == 200  # the header is not needed behind the first request


def test_the_user_is_the_one_who_is_authenticated(router: SmallRouter) -> None:
    with TestClient(application(router, with_tokens)) as http:

        def post(**headers: str) -> httpx.Response:
            return http.post("/v1/statement", content="SELECT current_user", headers=headers)

        assert post(Authorization="Bearer eve", **{"X-Trino-User": "ann"}).status_code == 403
        assert post(**ANN).status_code == 401
        for headers in ({}, {"X-Trino-User": "eve"}):
            answer = post(Authorization="Bearer eve", **headers).json()
            assert answer["data"] == [["eve"]]
        assert router.callers[-1].name == "eve"


def test_a_page_of_another_site_cannot_post_a_statement(client: Client) -> None:
    """A form can post text, but it cannot send X-Trino-User without being asked first."""
    answer = client.http.post("/v1/statement", content="SELECT 1")
    assert answer.status_code == 400
    for user in ("", "a" * 300, "a\x7fb"):
        assert client.post("SELECT 1", **{"X-Trino-User": user}).status_code == 400


async def _sent(app: Any, user: str, sql: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request without a client library, of which ten thousand would take long."""
    messages: list[Any] = []
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/statement",
        "raw_path": b"/v1/statement", "query_string": b"", "scheme": "http", "root_path": "",
        "server": ("testserver", 80), "headers": [(b"authorization", f"Bearer {user}".encode())],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sql.encode(), "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return messages[0]["status"], dict(messages[0]["headers"]), messages[1]["body"]


def test_ten_thousand_abandoned_queries_are_bounded_and_cancelled() -> None:
    router = SmallRouter()
    limits = {
        "first_wait_seconds": 0.0,
        "max_queries": 50,
        "max_queries_per_owner": 20,
        "idle_seconds": 1.0,
        "evictable_seconds": 1.0,
    }
    app = application(router, with_tokens, **limits)

    async def attack() -> None:
        turned_away = 0
        for count in range(10_000):
            status, headers, _ = await _sent(app, "ann", "SELECT * FROM silver.slow")
            assert status in (200, 429)
            assert router.running <= 20
            turned_away += status == 429
            if count % 1_000 == 999:  # others are served meanwhile
                assert headers[b"retry-after"] == b"1"
                status, _, body = await _sent(app, "bob", "SHOW CATALOGS")
                assert (status, json.loads(body)["data"]) == (200, [["lake"], ["system"]])
        assert turned_away > 9_000
        deadline = time.monotonic() + 5
        while router.running and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert router.running == 0
        assert router.cancelled == 10_000 - turned_away

    asyncio.run(attack())


def test_results_that_nobody_fetches_do_not_fill_the_memory(router: SmallRouter) -> None:
    with TestClient(application(router, page_bytes=50_000, max_bytes=8_000_000)) as http:
        client = Client(http)
        uris = [client.post("SELECT * FROM silver.wide").json()["nextUri"] for _ in range(6)]
        first = http.get(uris[0], headers=ANN).json()
        assert first["error"]["errorType"] == "INSUFFICIENT_RESOURCES"
        assert http.get(uris[-1], headers=ANN).json()["data"]


def test_large_texts_and_headers_are_refused_quickly(client: Client) -> None:
    began = time.process_time()
    long = "SELECT " + "1+" * 500_000 + "1"
    assert client.fault(long)["errorName"] == "QUERY_TEXT_TOO_LARGE"
    assert client.fault("SELECT '" + "x" * 10_000_000 + "'")["errorName"] == "QUERY_TEXT_TOO_LARGE"
    assert client.post(b"x" * 20_000_000).status_code == 413
    assert client.fault("SELECT " + "(" * 2_000 + "1" + ")" * 2_000)["errorType"] == "USER_ERROR"
    assert client.fault("SELECT 1" + ", 1" * 30_000)["errorType"] == "USER_ERROR"
    huge = {"X-Trino-Prepared-Statement": "a=" + "x" * 1_000_000}
    assert client.fault("SELECT 1", **huge)["errorName"] == "GENERIC_INSUFFICIENT_RESOURCES"
    pattern = "%a" * 90_000
    assert client.fault(f"SHOW FUNCTIONS LIKE '{pattern}'")["errorType"] == "USER_ERROR"
    listed = f"SELECT table_name FROM information_schema.tables WHERE table_name LIKE '{pattern}'"
    assert client.fault(listed)["errorType"] == "USER_ERROR"
    assert time.process_time() - began < 10


@pytest.mark.parametrize("word", ["ARRAY[", "row(", "date(", "varchar(", "timestamp(", "struct("])
def test_a_short_line_cannot_keep_the_parser_for_ever(client: Client, word: str) -> None:
    """Each of these levels doubles the parser's work: twenty would take it minutes."""
    close = "]" if word.endswith("[") else ")"
    began = time.process_time()
    for sql in (f"SELECT {word * 40}1{close * 40}",
                "SELECT " + ", ".join([f"{word * 9}1{close * 9}"] * 100)):  # fmt: skip
        assert client.fault(sql)["errorName"] == "QUERY_TEXT_TOO_LARGE"
        text = sql.replace("'", "''")
        assert client.fault(f"EXECUTE IMMEDIATE '{text}'")["errorName"] == "QUERY_TEXT_TOO_LARGE"
    assert time.process_time() - began < 2
    assert client.post(f"SELECT {word * 5}1{close * 5}").status_code == 200


def test_a_name_of_one_dialect_is_not_the_syntax_of_another(client: Client) -> None:
    """$$ begins a text in DuckDB and a name here."""
    sql = "SELECT table_name $$, 'a' AS b$$ FROM information_schema.tables WHERE table_name = '{}'"
    assert client.rows(sql.format("daily")) == [["daily", "a"]]
    assert client.rows("SELECT \"$$\" FROM (SELECT 'x' $$ FROM information_schema.views) t") == []


def test_a_pattern_made_to_take_for_ever_does_not(client: Client) -> None:
    began = time.monotonic()
    assert client.rows("SHOW FUNCTIONS LIKE '" + "%_" * 400 + "x'") == []
    assert client.rows("SHOW FUNCTIONS LIKE '" + "%a" * 400 + "'") == []
    assert time.monotonic() - began < 5


def test_no_header_can_be_smuggled_into_an_answer(client: Client) -> None:
    evil = 'PREPARE "a\r\nX-Evil: 1" FROM SELECT 1'
    added = client.post(evil).headers
    assert added["X-Trino-Added-Prepare"].startswith("a%0D%0Ax-evil%3A+1=")
    assert "X-Evil" not in added
    for sql in ("SET SESSION query_max_memory = '1\r\nX-Evil: 1'", 'USE "gold\r\nX-Evil: 1"',
                "SET TIME ZONE 'UTC\r\nX-Evil: 1'"):  # fmt: skip
        answer = client.post(sql)
        assert answer.json()["error"]["errorType"] == "USER_ERROR"
        assert "X-Evil" not in answer.headers


def test_bytes_that_are_no_text_are_refused(client: Client) -> None:
    assert client.post(b"SELECT '\xff'").status_code == 400
    assert client.fault("SELECT 1\0")["errorName"] == "SYNTAX_ERROR"


def test_a_query_of_hundreds_of_lists_is_refused(client: Client) -> None:
    joins = " ".join(f"CROSS JOIN information_schema.columns c{n}" for n in range(200))
    error = client.fault(f"SELECT 1 FROM information_schema.tables {joins}")
    assert error["errorName"] == "NOT_SUPPORTED"


def test_lists_are_guarded_like_everything_else(client: Client) -> None:
    for reads in ("read_text('/etc/passwd')", "'/etc/passwd'", "duckdb_settings()", "pg_tables"):
        error = client.fault(f"SELECT * FROM information_schema.tables, {reads}")
        assert error["errorType"] == "USER_ERROR"
    sql = "SELECT getenv('HOME') FROM information_schema.tables"
    assert client.fault(sql)["errorName"] == "NOT_SUPPORTED"


def test_who_is_busy_waits_for_a_turn() -> None:
    class Crowded(SmallRouter):
        refused = 0

        async def answer(self, request: Any, caller: Any) -> Any:
            self.refused += 1
            if self.refused < 4:
                raise Busy("4 of your queries are running.", "Wait for one to end.", retry_after=1)
            return await super().answer(request, caller)

    router = Crowded()
    with TestClient(application(router)) as http:
        assert Client(http).rows("SELECT count(*) FROM silver.orders") == [[3]]
    assert router.refused == 4


def test_a_list_is_never_mixed_with_the_tables_it_lists(client: Client) -> None:
    sql = "SELECT * FROM silver.orders, information_schema.tables"
    assert client.fault(sql)["errorName"] == "NOT_SUPPORTED"


def test_identity_is_asked_for_every_request(router: SmallRouter) -> None:
    seen = []

    def identity(request: Any) -> Any:
        seen.append((request.method, request.url.path.split("/")[2]))
        return open_to_all(request)

    with TestClient(application(router, identity, page_bytes=100_000)) as http:
        uri = Client(http).post("SELECT * FROM silver.wide").json()["nextUri"]
        http.get(uri, headers=ANN)
        http.delete(uri, headers=ANN)
        http.get("/v1/info")
    assert seen == [("POST", "statement"), ("GET", "statement"), ("DELETE", "statement"),
                    ("GET", "info")]  # fmt: skip

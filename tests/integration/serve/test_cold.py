"""The cold engines: Spark's worker as a process, and Trino over its protocol."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.integration.serve import asking, awkward, same_answer
from tests.servers import trino
from trino import dbapi

from thermocline.errors import ConfigError, ThermoclineError
from thermocline.lake import Lake
from thermocline.lake.schema import columns_at
from thermocline.serve.engines.trino_client import (
    QueryFailed,
    TrinoEngine,
    TrinoFailed,
    Unsupported,
)
from thermocline.serve.values import EncodedRows, Format
from thermocline.serve.wire.protocol import BlockingChannel
from thermocline.sql.session_zone import depends_on_session_zone


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return awkward.build(tmp_path_factory.mktemp("cold"))


# Spark -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark(lake: Lake) -> Iterator[BlockingChannel]:
    with asking.worker("thermocline.serve.engines.spark", lake.settings.project) as line:
        yield line


def test_spark_gives_rows_at_a_snapshot(lake: Lake, spark: BlockingChannel) -> None:
    found = asking.asked(spark, lake, "select count(*), sum(amount) from silver.facts", "spark")
    assert asking.rows(found) == [[240, "12000.22"]]
    head = str(lake.state("silver.facts").head())
    assert found.header["snapshots"] == {"silver.facts": head}


def test_spark_gives_columns_of_one_name(lake: Lake, spark: BlockingChannel) -> None:
    sql = "select a.k, b.k from silver.dims a join silver.dims b on a.k = b.k where a.k = 0"
    found = asking.asked(spark, lake, sql, "spark")
    assert [column[0] for column in found.header["columns"]] == ["k", "k"]
    assert asking.rows(found) == [[0, 0]]


@pytest.mark.parametrize(
    ("sql", "more", "code"),
    [
        ("select id from silver.facts", {"rows": 10}, "too-many-rows"),
        ("select id from silver.facts", {"bytes": 10}, "too-large"),
        ("select cast(name as int) from silver.facts", {}, "query"),
    ],
)
def test_spark_says_why_not(
    lake: Lake, spark: BlockingChannel, sql: str, more: dict[str, int], code: str
) -> None:
    error = asking.asked(spark, lake, sql, "spark", **more).error
    assert error is not None
    assert error["code"] == code
    assert "Zürich" not in json.dumps(error, ensure_ascii=False)
    assert "\n" not in error["cause"]


def test_spark_stops_at_the_time_limit(lake: Lake, spark: BlockingChannel) -> None:
    began = time.monotonic()
    sql = (
        "select count(*) from silver.facts a, silver.facts b, silver.facts c, silver.facts d "
        "where a.id + b.id + c.id + d.id = 7"
    )
    error = asking.asked(spark, lake, sql, "spark", seconds=3).error
    assert error is not None
    assert error["code"] == "too-long"
    assert time.monotonic() - began < 20
    assert asking.rows(asking.asked(spark, lake, "select 1 as one", "spark")) == [[1]]


# Trino's protocol, from a server that says what no healthy one does ------------------------------


@dataclass
class Scripted:
    """Answers one after the other, and what was asked."""

    url: str = ""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    slow: float = 0.0

    def query(self, format: Format = "json", **limits: Any) -> EncodedRows:
        given = {"seconds": 10.0, "rows": 100, "bytes": 10_000, **limits}

        async def run() -> EncodedRows:
            engine = TrinoEngine(self.url, "me", "lake")
            try:
                return await engine.query("select 1", format=format, **given)
            finally:
                await engine.close()

        return asyncio.run(run())


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            script.asked.append((self.command, self.path))
            script.headers = dict(self.headers)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.command == "DELETE":
                code, body = 204, b""
            else:
                time.sleep(script.slow)
                code, said = script.answers.pop(0)
                body = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield script
        server.shutdown()


def kind(raw: str, *arguments: Any) -> dict[str, Any]:
    return {"rawType": raw, "arguments": [{"kind": "X", "value": each} for each in arguments]}


NEXT = "http://elsewhere.invalid/v1/statement/executing/q/1"
COLUMNS = [
    {"name": "n", "typeSignature": kind("bigint")},
    {"name": "at", "typeSignature": kind("timestamp with time zone", 6)},
    {"name": "local", "typeSignature": kind("timestamp", 3)},
    {"name": "x", "typeSignature": kind("double")},
    {"name": "t", "typeSignature": kind("varchar", 10)},
    {"name": "d", "typeSignature": kind("decimal", 12, 2)},
    {"name": "a", "typeSignature": kind("array", kind("integer"))},
]
ROW = [1, "2026-03-01 01:00:00.000001 Europe/Berlin", "2026-03-01 00:00:00.000", "NaN", "=1,é",
       "1.10", [1, None]]  # fmt: skip
EXPECTED: list[tuple[Format, str]] = [
    (
        "json",
        '[1,"2026-03-01T00:00:00.000001+00:00","2026-03-01T00:00:00","nan","=1,é","1.10",'
        "[1,null]]\n",
    ),
    (
        "trino",
        '[1,"2026-03-01 00:00:00.000001 UTC","2026-03-01 00:00:00.000000","NaN","=1,é","1.10",'
        "[1,null]]\n",
    ),
    (
        "csv",
        "n,at,local,x,t,d,a\r\n1,2026-03-01T00:00:00.000001+00:00,2026-03-01T00:00:00,nan,"
        '"\'=1,é",1.10,"[1,null]"\r\n',
    ),
]


@pytest.mark.parametrize(("format", "body"), EXPECTED)
def test_trinos_rows_in_our_formats(scripted: Scripted, format: Format, body: str) -> None:
    scripted.answers = [
        (200, {"id": "q", "nextUri": NEXT}),
        (503, {}),
        (200, {"columns": COLUMNS, "data": [ROW]}),
    ]
    found = scripted.query(format)
    assert found.body.decode() == body
    assert found.count == 1
    words = [column.trino for column in found.columns]
    assert words[1:6] == ["timestamp(6) with time zone", "timestamp(6)", "double", "varchar",
                          "decimal(12,2)"]  # fmt: skip
    # Only the path of where to go on is followed: never another host.
    assert scripted.asked[1][1] == "/v1/statement/executing/q/1"
    assert scripted.headers["X-Trino-Client-Capabilities"] == "PARAMETRIC_DATETIME"


@pytest.mark.parametrize(
    ("error", "raised", "cause"),
    [
        ({"errorType": "USER_ERROR", "errorName": "COLUMN_NOT_FOUND",
          "message": "line 1:8: Column 'x' cannot be resolved\nmore"},
         QueryFailed, "line 1:8: Column 'x' cannot be resolved"),
        ({"errorType": "USER_ERROR", "errorName": "INVALID_CAST_ARGUMENT",
          "message": "Cannot cast 'secret' to INT"},
         QueryFailed, "A value cannot be converted to the requested type."),
        ({"errorType": "INTERNAL_ERROR", "errorName": "GENERIC_INTERNAL_ERROR",
          "message": "/var/lib/x"}, TrinoFailed, "Trino failed (GENERIC_INTERNAL_ERROR)."),
    ],
)  # fmt: skip
def test_trinos_errors_in_one_line_without_values(
    scripted: Scripted, error: dict[str, str], raised: type[ThermoclineError], cause: str
) -> None:
    scripted.answers = [(200, {"id": "q", "error": error})]
    with pytest.raises(raised) as failed:
        scripted.query()
    assert failed.value.cause == cause


@pytest.mark.parametrize(
    ("limits", "slow"), [({"rows": 0}, 0.0), ({"bytes": 5}, 0.0), ({"seconds": 2.0}, 0.7)]
)
def test_a_query_that_nobody_waits_for_is_cancelled_there(
    scripted: Scripted, limits: dict[str, Any], slow: float
) -> None:
    scripted.slow = slow
    scripted.answers = [(200, {"columns": COLUMNS, "data": [ROW], "nextUri": NEXT})] * 5
    with pytest.raises((ThermoclineError, TimeoutError)):
        scripted.query(**limits)
    assert scripted.asked[-1] == ("DELETE", "/v1/statement/executing/q/1")


def test_a_trino_that_is_not_there() -> None:
    with pytest.raises(TrinoFailed):
        Scripted("http://127.0.0.1:9").query()


def test_what_trino_is_not_asked() -> None:
    with pytest.raises(Unsupported):
        Scripted("http://127.0.0.1:9").query("arrow")
    with pytest.raises(ConfigError):
        TrinoEngine("http://trino:8080", "me", "lake", password="p")


# A real Trino ------------------------------------------------------------------------------------

TRINOS = Path(__file__).with_name("questions_trino.sql")
CHOSEN = Path(__file__).with_name("questions.sql")
live = pytest.mark.skipif(trino.missing() is not None, reason=str(trino.missing()))


@pytest.fixture(scope="module")
def server(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[trino.Trino]:
    with trino.serve(tmp_path_factory.mktemp("trino"), lake.settings) as started:
        asking.until_it_scans(asking.trino_asker(started, lake, "trino"), "silver.facts")
        yield started


@live
@pytest.mark.parametrize(("dialect", "file"), [("duckdb", CHOSEN), ("trino", TRINOS)])
def test_live_trino_gives_the_same_answers(
    lake: Lake, server: trino.Trino, dialect: str, file: Path
) -> None:
    questions = [line for line in file.read_text().splitlines() if line.strip()]
    other: Callable[[str], Any] = asking.trino_asker(server, lake, dialect)
    with asking.duckdb(lake, lake.settings.project, dialect) as duck:
        tally = same_answer.compare(questions, {"direct": duck, "trino": other})
    assert tally.different == []
    assert tally.same > 0.8 * len(questions), (tally.refused, tally.failed)
    if dialect == "trino":
        assert tally.same == len(questions), (tally.refused, tally.failed, tally.unanswered)


@live
def test_live_trino_depends_on_the_zone_of_the_session_only_where_that_is_said(
    lake: Lake, server: trino.Trino
) -> None:
    columns = {
        table: columns_at(state, head)
        for table in lake.tables()
        if (head := (state := lake.state(table)).head()) is not None
    }

    def rows(sql: str, zone: str) -> Any:
        connection = dbapi.connect(
            host="127.0.0.1", port=int(server.url.rpartition(":")[2]), user="ann",
            catalog=server.catalog, timezone=zone,
        )  # fmt: skip
        return sorted(map(str, connection.cursor().execute(sql).fetchall()))

    dependent = 0
    for sql in (line for line in TRINOS.read_text().splitlines() if line.strip()):
        if depends_on_session_zone(sql, columns):
            dependent += 1
        else:
            assert rows(sql, "UTC") == rows(sql, "Asia/Tokyo"), sql
    assert 0 < dependent < 15

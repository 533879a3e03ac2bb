"""Trino's own JDBC driver and command line, as they are published, against this server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.serve.test_trino_clients import Server
from tests.unit.serve.trino_lake import SmallRouter

from thermocline.engine import jars, java

JDBC = "io.trino:trino-jdbc:476"
CLI = "io.trino:trino-cli:476:executable"
PROGRAM = Path(__file__).with_name("TrinoJdbc.java")

SAID = {
    "version": "476-thermocline",
    "catalogs": "lake; system",
    "schemas": "gold; information_schema; silver",
    "tables": "orders TABLE; slow TABLE; wide TABLE",
    "columns": "id -5 bigint 19 1; customer 12 varchar 2147483647 2; "
    "total 3 decimal(10,2) 10 3; at 2014 timestamp(6) with time zone 58 4; "
    "paid 16 boolean null 5; tags 2003 array(varchar) null 6",
    "table types": "SYSTEM TABLE; TABLE; VIEW",
    "keys": "",
    "procedures": "",
    "functions": "",
    "types": "true",
    "rows": "1 ann 10.50 true; 2 bo'b 7.25 false; 3 null null null",
    "moment": "2026-11-14T10:00:00.123456Z",
    "unnamed": "3",
    "sum": str(sum(range(30_000))),
    "error": "46",
    "described": "id decimal(10,2)",
    "parameters": "3",
    "prepared": "2 7.25",
    "parameter": "2030-01-01 00:00:00.123000",
    "daily": "2026-11-14 17.75",
    "use": "false",
    "orders": "3",
    "session": "9s",
    "transaction": "1",
    "cancel": "cancelled",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(SmallRouter(), page=200_000) as server:
        yield server


def _java(*arguments: object) -> subprocess.CompletedProcess[str]:
    small = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    command = [java.find().executable, *small, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize("prepare", ["true", "false"])
def test_the_jdbc_driver_lists_queries_prepares_and_cancels(server: Server, prepare: str) -> None:
    """With PREPARE and EXECUTE, and with EXECUTE IMMEDIATE, which are the driver's two ways."""
    cancelled = server.router.cancelled
    [jar] = jars.resolve([JDBC])
    done = _java("-cp", jar, PROGRAM, server.port, prepare)
    assert done.returncode == 0, done.stderr
    assert dict(line.split(": ", 1) for line in done.stdout.splitlines()) == SAID
    assert server.router.cancelled == cancelled + 1


def test_the_command_line_runs_a_script(server: Server) -> None:
    [jar] = jars.resolve([CLI])
    script = (
        "SHOW TABLES LIKE 'o%'; SELECT id, customer, total, at FROM orders WHERE id < 3 "
        "ORDER BY id; USE gold; SELECT * FROM daily; DESCRIBE daily; "
        "SELECT count(*) FROM lake.silver.wide; SELECT * FROM nope"
    )
    where = ("--server", f"http://127.0.0.1:{server.port}", "--user", "ann")
    session = ("--catalog", "lake", "--schema", "silver", "--output-format", "CSV_UNQUOTED")
    done = _java("-jar", jar, *where, *session, "--execute", script)
    assert done.stdout.splitlines() == [
        "orders",
        "1,ann,10.50,2026-11-14 10:00:00.123456 UTC",
        "2,bo'b,7.25,2026-11-15 00:00:00.000000 UTC",
        "2026-11-14,17.75",
        "day,date,,",
        "revenue,double,,",
        "30000",
    ]
    assert "There is no table gold.nope" in done.stderr
    assert done.returncode == 1

"""What people point at a Trino, pointed at `thermo serve`: its real processes on a real lake.

Trino's Python client and SQLAlchemy dialect, its JDBC driver and command line as they are
published, and a dbt project. Questions go hot, direct and to Spark, and are stopped there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import trino
from sqlalchemy import MetaData, Table, create_engine, func, inspect, select
from tests.integration.serve import serving, shop_lake
from tests.integration.serve.serving import Serving, until
from tests.integration.serve.shop_lake import DAYS, PER_DAY, date_of, orders_of
from trino.exceptions import TrinoQueryError

from thermocline.engine import jars, java

JDBC = "io.trino:trino-jdbc:476"
CLI = "io.trino:trino-cli:476:executable"
PROGRAM = Path(__file__).with_name("TrinoJdbc.java")
RECENT = "ordered_at >= current_date - INTERVAL '1' DAY"
OLD = (
    "ordered_at >= current_date - INTERVAL '20' DAY AND "
    "ordered_at < current_date - INTERVAL '19' DAY"
)
BY_ENGINE = [("hot", RECENT, 2 * PER_DAY), ("direct", OLD, PER_DAY), ("spark", "true", 1200)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    project = serving.shop(tmp_path_factory.mktemp("served") / "p", serving.COLD)
    with serving.started(project) as started:
        started.settled(3)
        until(lambda: warm(started), 300)
        yield started


def warm(server: Serving) -> bool:
    """Have Spark started. The first who asks it may get the answer from elsewhere meanwhile."""
    number = time.monotonic_ns()
    connected(server).cursor().execute(f"SELECT {number}, count(*) FROM orders").fetchall()
    return server.counted("spark") > 0


def connected(server: Serving) -> Any:
    return trino.dbapi.connect(
        host="127.0.0.1", port=server.port, user="ann", catalog="lake", schema="silver"
    )


def revenue_of(days: int) -> Decimal:
    return sum((row["amount"] for day in range(days) for row in orders_of(day)), Decimal(0))


# Python -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "where", "count"), BY_ENGINE)
def test_questions_go_to_each_engine(server: Serving, engine: str, where: str, count: int) -> None:
    before = server.counted(engine)
    cursor = connected(server).cursor()
    cursor.execute(f"SELECT count(*), max(note) IS NULL FROM orders WHERE {where}")
    assert cursor.fetchall() == [[count, False]]
    assert server.counted(engine) == before + 1


@pytest.mark.parametrize(("engine", "where", "_"), BY_ENGINE)
def test_cancel_stops_the_work_itself(server: Serving, engine: str, where: str, _: int) -> None:
    """Not only does the client go on: none of the server's processes computes any more."""
    names = "abcdefg"
    tables = ", ".join(f"orders {name}" for name in names)
    each = " AND ".join(where.replace("ordered_at", f"{name}.ordered_at") for name in names)
    total = " + ".join(f"{name}.order_id" for name in names)
    sql = f"SELECT count(*) FROM {tables} WHERE {each} AND ({total}) % 1000003 = 1000002"
    [[plan]] = connected(server).cursor().execute(f"EXPLAIN {sql}").fetchall()
    assert json.loads(plan.splitlines()[0].removeprefix("ways: "))[0]["engine"] == engine
    left = server.counted("none", "left")
    cursor = connected(server).cursor()

    def run() -> None:
        with pytest.raises(TrinoQueryError):
            cursor.execute(sql)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: cursor.query_id is not None and server.busy(), 60)
    cursor.cancel()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert server.counted("none", "left") == left + 1
    server.idle()


def test_sqlalchemy_lists_and_asks(server: Serving) -> None:
    engine = create_engine(f"trino://ann@127.0.0.1:{server.port}/lake/silver")
    inspector = inspect(engine)
    assert inspector.get_schema_names() == ["gold", "information_schema", "silver"]
    assert sorted(inspector.get_table_names("silver")) == ["customers", "orders"]
    columns = inspector.get_columns("orders", schema="silver")
    assert [(each["name"], str(each["type"])) for each in columns] == [
        ("order_id", "BIGINT"), ("ordered_at", "TIMESTAMP"), ("customer_id", "BIGINT"),
        ("amount", "DECIMAL(12, 2)"), ("note", "VARCHAR"),
    ]  # fmt: skip
    orders, customers = (
        Table(name, MetaData(), schema="silver", autoload_with=engine)
        for name in ("orders", "customers")
    )
    query = (
        select(customers.c.city, func.sum(orders.c.amount))
        .join(customers, orders.c.customer_id == customers.c.customer_id)
        .where(orders.c.ordered_at >= shop_lake.today(), customers.c.city == "Zürich")
        .group_by(customers.c.city)
    )
    expected = sum(row["amount"] for row in orders_of(0) if row["customer_id"] in (2, 7))
    before = server.counted("hot")
    with engine.connect() as connection:
        assert [tuple(row) for row in connection.execute(query)] == [("Zürich", expected)]
    assert server.counted("hot") == before + 1


# Java ---------------------------------------------------------------------------------------------


def run_java(*arguments: object) -> subprocess.CompletedProcess[str]:
    small = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dstdout.encoding=UTF-8")
    command = [java.find_java().executable, *small, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def jdbc_says() -> dict[str, str]:
    first, second = orders_of(0)[1:3]
    recent = [row["order_id"] for day in range(7) for row in orders_of(day)]
    return {
        "version": "476-thermocline",
        "catalogs": "lake; system",
        "schemas": "gold; information_schema; silver",
        "tables": "customers TABLE; orders TABLE",
        "columns": "order_id -5 bigint 19 1; ordered_at 2014 timestamp(6) with time zone 58 2; "
        "customer_id -5 bigint 19 3; amount 3 decimal(12,2) 12 4; note 12 varchar 2147483647 5",
        "table types": "SYSTEM TABLE; TABLE; VIEW",
        "keys": "",
        "procedures": "",
        "functions": "",
        "types": "true",
        "rows": f"0 0.00 null; 1 0.01 {first['note']}; 2 0.02 {second['note']}".replace("\n", "⏎"),
        "moment": first["ordered_at"].isoformat().replace("+00:00", "Z"),
        "unnamed": str(DAYS * PER_DAY),
        "sum": str(sum(recent) * len(recent)),
        "error": "46",
        "described": "customer_id decimal(12,2)",
        "parameters": "3",
        "prepared": "7 0.07",
        "parameter": "2030-01-01 00:00:00.123000",
        "revenue": f"{date_of(0)} {revenue_of(1):.2f}",
        "use": "false",
        "orders": str(DAYS * PER_DAY - 1),
        "session": "9s",
        "transaction": "1",
        "cancel": "cancelled",
    }


@pytest.mark.parametrize("prepare", ["true", "false"])
def test_the_jdbc_driver_lists_queries_prepares_and_cancels(server: Serving, prepare: str) -> None:
    """With PREPARE and EXECUTE, and with EXECUTE IMMEDIATE, which are the driver's two ways."""
    left = server.counted("none", "left")
    [jar] = jars.resolve([JDBC])
    done = run_java("-cp", jar, PROGRAM, server.port, prepare)
    assert done.returncode == 0, done.stderr
    assert dict(line.split(": ", 1) for line in done.stdout.splitlines()) == jdbc_says()
    assert server.counted("none", "left") == left + 1
    server.idle()


def test_the_command_line_runs_a_script(server: Serving) -> None:
    [jar] = jars.resolve([CLI])
    script = (
        "SHOW SCHEMAS; SHOW TABLES LIKE 'o%'; DESCRIBE customers; "
        f"SELECT count(*), sum(amount) FROM orders WHERE {RECENT}; "
        "USE gold; SELECT count(*) FROM revenue; "
        "SELECT count(*), sum(amount) FROM silver.orders; SELECT * FROM nope"
    )
    where = ("--server", server.url, "--user", "ann", "--catalog", "lake", "--schema", "silver")
    hot, cold = server.counted("hot"), server.counted("spark")
    done = run_java("-jar", jar, *where, "--output-format", "CSV_UNQUOTED", "--execute", script)
    assert done.stdout.splitlines() == [
        "gold", "information_schema", "silver", "orders",
        "customer_id,bigint,,", "city,varchar,,",
        f"{2 * PER_DAY},{revenue_of(2)}", f"{DAYS}", f"{DAYS * PER_DAY},{revenue_of(DAYS)}",
    ]  # fmt: skip
    assert "There is no table gold.nope" in done.stderr
    assert done.returncode == 1
    assert (server.counted("hot") - hot, server.counted("spark") - cold) == (1, 1)


# dbt ----------------------------------------------------------------------------------------------

DBT_FILES = {
    "dbt_project.yml": "name: shop\nversion: 1.0.0\nprofile: shop\n"
    "models: {shop: {+materialized: ephemeral}}\n",
    "models/recent.sql": "select order_id, amount from {{ source('silver', 'orders') }} "
    "where ordered_at >= current_date\n",
    "models/shop.yml": """
sources:
  - name: silver
    database: lake
    tables:
      - name: orders
        columns:
          - {name: order_id, data_tests: [unique, not_null]}
          - {name: note, data_tests: [not_null]}
models:
  - name: recent
    columns:
      - {name: order_id, data_tests: [not_null, unique]}
""",
    "profiles.yml": "shop: {{target: dev, outputs: {{dev: {{type: trino, method: none, user: ann, "
    "host: 127.0.0.1, port: {port}, database: lake, schema: silver, http_scheme: http}}}}}}\n",
}


DBT = """
import sys
from dbt.cli.main import dbtRunner
runner = dbtRunner()  # which reads the project once for all commands
for words in (["debug"], ["run"], ["test"], ["docs", "generate", "--no-compile"]):
    print("$", *words, flush=True)
    done = runner.invoke([*words, "--no-use-colors", *sys.argv[1:]])
    print("succeeded" if done.success else "failed", flush=True)
"""


def test_a_dbt_project_is_debugged_run_tested_and_documented(
    server: Serving, tmp_path: Path
) -> None:
    pytest.importorskip("dbt.adapters.trino")
    for name, text in DBT_FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        filled = text.format(port=server.port) if name == "profiles.yml" else text
        (tmp_path / name).write_text(filled)
    done = subprocess.run(
        [sys.executable, "-c", DBT, "--project-dir", tmp_path, "--profiles-dir", tmp_path],
        env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"},
        capture_output=True, text=True, timeout=400, cwd=tmp_path,
    )  # fmt: skip
    debugged, ran, tested, documented = done.stdout.split("$ ")[1:]
    assert "All checks passed!" in debugged, debugged
    assert ran.endswith("succeeded\n"), ran
    assert "PASS=4 WARN=0 ERROR=1" in tested, tested
    assert "FAIL 172 source_not_null_silver_orders_note" in tested
    assert documented.endswith("succeeded\n"), documented
    catalog = json.loads((tmp_path / "target" / "catalog.json").read_text())
    columns = catalog["sources"]["source.shop.silver.orders"]["columns"]
    assert {name: each["type"] for name, each in columns.items()} == {
        "order_id": "bigint", "ordered_at": "timestamp(6) with time zone",
        "customer_id": "bigint", "amount": "decimal(12,2)", "note": "varchar",
    }  # fmt: skip

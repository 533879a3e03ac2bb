"""Trino's own Python client and SQLAlchemy dialect, over real connections."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy
import trino
import uvicorn
from sqlalchemy import MetaData, Table, create_engine, func, inspect, select
from tests.unit.serve.trino_lake import SmallRouter, application, with_tokens
from trino.auth import JWTAuthentication
from trino.dbapi import Connection
from trino.exceptions import HttpError, TrinoQueryError, TrinoUserError
from trino.transaction import IsolationLevel


class Server:
    """The protocol on a port of its own."""

    def __init__(self, router: SmallRouter, **options: Any) -> None:
        self.router = router
        config = uvicorn.Config(
            application(router, **options), host="127.0.0.1", port=0, log_level="error"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)

    def connect(self, **options: Any) -> Connection:
        options = {"user": "ann", "catalog": "lake", "schema": "silver", **options}
        return trino.dbapi.connect(
            host="127.0.0.1", port=self.port, request_timeout=10, max_attempts=1, **options
        )

    @property
    def url(self) -> str:
        return f"trino://ann@127.0.0.1:{self.port}/lake/silver"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(SmallRouter(), page_bytes=200_000) as server:
        yield server


def _rows(connection: Connection, sql: str, values: list[Any] | None = None) -> list[Any]:
    return [list(row) for row in connection.cursor().execute(sql, values).fetchall()]


def test_rows_arrive_as_pythons_own_values(server: Server) -> None:
    rows = _rows(server.connect(), "SELECT id, customer, total, at, paid, tags FROM orders")
    at = datetime(2026, 11, 14, 10, 0, 0, 123456, tzinfo=UTC)
    assert rows[0] == [1, "ann", Decimal("10.50"), at, True, ["a", "b"]]
    assert rows[2] == [3, None, None, None, None, None]
    assert _rows(server.connect(), "SELECT day, revenue FROM gold.daily") == [
        [date(2026, 11, 14), 17.75]
    ]


def test_columns_are_described(server: Server) -> None:
    cursor = server.connect().cursor()
    cursor.execute("SELECT total, customer AS who, count(*) FROM orders GROUP BY 1, 2")
    described = [(each.name, each.type_code, each.precision, each.scale)
                 for each in cursor.description]  # fmt: skip
    assert described == [
        ("total", "decimal(10,2)", 10, 2), ("who", "varchar", None, None),
        ("_col2", "bigint", None, None),
    ]  # fmt: skip
    outputs = server.connect().cursor().describe("SELECT id, total AS t FROM orders WHERE id = ?")
    assert [(each.name, each.type) for each in outputs] == [
        ("id", "bigint"), ("t", "decimal(10,2)")
    ]  # fmt: skip


def test_many_pages_are_followed_to_the_last_row(server: Server) -> None:
    cursor = server.connect().cursor()
    cursor.execute("SELECT n FROM wide WHERE length(text) = 100")
    assert sum(row[0] for row in cursor) == sum(range(30_000))
    assert cursor.stats["state"] == "FINISHED"


@pytest.mark.parametrize("legacy", [False, True])
def test_parameters_of_every_type_come_back_the_same(server: Server, legacy: bool) -> None:
    values = [
        None, True, -7, 2**40, 1.25, "it's; DROP TABLE x --", b"\x00\xff", date(2026, 11, 14),
        datetime(2026, 11, 14, 10, 0, 0, 123456), Decimal("-1.20"), [1, 2], uuid.uuid4(),
    ]  # fmt: skip
    connection = server.connect(legacy_prepared_statements=legacy)
    [row] = _rows(connection, "SELECT " + ", ".join("?" * len(values)), values)
    assert row[:-1] == values[:-1]
    assert str(row[-1]) == str(values[-1])
    assert _rows(connection, "SELECT id FROM orders WHERE customer = ?", ["bo'b"]) == [[2]]
    assert connection._client_session.prepared_statements == {}


def test_the_session_follows_use_and_set_session(server: Server) -> None:
    connection = server.connect(schema=None)
    with pytest.raises(TrinoUserError) as caught:
        _rows(connection, "SELECT * FROM orders")
    assert caught.value.error_name == "MISSING_SCHEMA_NAME"
    _rows(connection, "USE lake.silver")
    assert _rows(connection, "SELECT count(*) FROM orders") == [[3]]
    _rows(connection, "SET SESSION query_max_run_time = '7s'")
    _rows(connection, "SELECT 1")
    assert server.router.asked[-1].timeout == 7.0
    _rows(connection, "RESET SESSION query_max_run_time")
    _rows(connection, "SELECT 1")
    assert server.router.asked[-1].timeout is None


def test_a_transaction_can_be_opened_and_committed(server: Server) -> None:
    with server.connect(isolation_level=IsolationLevel.READ_COMMITTED) as connection:
        assert _rows(connection, "SELECT count(*) FROM orders") == [[3]]
        assert connection.transaction is not None


def test_errors_are_the_clients_own(server: Server) -> None:
    for sql, name in (("SELECT * FROM nope", "TABLE_NOT_FOUND"), ("SELEC 1", "SYNTAX_ERROR"),
                      ("DROP TABLE orders", "NOT_SUPPORTED")):  # fmt: skip
        with pytest.raises(TrinoUserError) as caught:
            _rows(server.connect(), sql)
        assert caught.value.error_name == name
        assert caught.value.query_id


def test_cancel_stops_the_query_at_the_router(server: Server) -> None:
    cursor = server.connect().cursor()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            cursor.execute("SELECT * FROM slow")
        except TrinoQueryError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    _wait(lambda: server.router.running == 1 and cursor.query_id is not None)
    cursor.cancel()
    thread.join(timeout=5)
    _wait(lambda: server.router.running == 0)
    assert not thread.is_alive()


def _wait(until: Any) -> None:
    deadline = time.monotonic() + 5
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_tokens_name_the_user(server: Server) -> None:
    with Server(server.router, identity=with_tokens) as guarded:
        eve = guarded.connect(user="eve", auth=JWTAuthentication("eve"), allow_insecure_auth=True)
        assert _rows(eve, "SELECT current_user") == [["eve"]]
        as_ann = guarded.connect(auth=JWTAuthentication("eve"), allow_insecure_auth=True)
        with pytest.raises(HttpError, match="403"):
            _rows(as_ann, "SELECT 1")
        with pytest.raises(HttpError, match="401"):
            _rows(guarded.connect(), "SELECT 1")


def test_sqlalchemy_lists_schemas_tables_and_columns(server: Server) -> None:
    engine = create_engine(server.url)
    inspector = inspect(engine)
    assert inspector.get_schema_names() == ["gold", "information_schema", "silver"]
    assert sorted(inspector.get_table_names("silver")) == ["orders", "slow", "wide"]
    assert inspector.get_view_names("silver") == []
    assert inspector.has_table("orders", schema="silver")
    assert not inspector.has_table("orders", schema="gold")
    columns = inspector.get_columns("orders", schema="silver")
    assert [(each["name"], str(each["type"])) for each in columns] == [
        ("id", "BIGINT"), ("customer", "VARCHAR"), ("total", "DECIMAL(10, 2)"),
        ("at", "TIMESTAMP"), ("paid", "BOOLEAN"), ("tags", "ARRAY"),
    ]  # fmt: skip
    assert (columns[3]["type"].precision, columns[3]["type"].timezone) == (6, True)
    assert inspector.get_table_comment("orders", schema="silver") == {"text": None}
    assert inspector.get_indexes("orders", schema="silver") == []
    with engine.connect() as connection:
        dialect = connection.dialect
        assert dialect.get_catalog_names(connection) == ["lake", "system"]
        assert dialect.server_version_info == ("476-thermocline",)


def test_sqlalchemy_expressions_are_answered(server: Server) -> None:
    engine = create_engine(server.url)
    orders = Table("orders", MetaData(), schema="silver", autoload_with=engine)
    total = func.sum(orders.c.total).label("total")
    query = select(orders.c.paid, total).where(orders.c.id < 3).group_by(orders.c.paid)
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(total.desc())).fetchall()
        assert [tuple(row) for row in rows] == [
            (True, Decimal("10.50")), (False, Decimal("7.25"))
        ]  # fmt: skip
        text = sqlalchemy.text("SELECT id FROM orders WHERE customer = :name")
        assert connection.execute(text, {"name": "bo'b"}).scalar() == 2

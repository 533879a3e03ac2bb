"""The Python client against a real server: the same results and errors as a local lake."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import polars as pl
import pytest
from tests.unit.serve.fixed_router import ROWS, SNAPSHOT, FixedRouter, opened, serving

import thermocline
from thermocline.client import Client, ServerUnreachable
from thermocline.errors import BadInput, EngineUnavailable, NotFound, Transient
from thermocline.serve.failures import BothFailed, Busy, TooLate, TooMuch, Unauthenticated
from thermocline.serve.identity.authenticator import Authenticator
from thermocline.serve.identity.token_store import TokenStore
from thermocline.sql.guard import QueryRefused

SQL = "select id, text from silver.orders"


@pytest.fixture(scope="module")
def router() -> FixedRouter:
    return FixedRouter()


@pytest.fixture(scope="module")
def url(router: FixedRouter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(router, opened(tmp_path_factory.mktemp("project"))) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with thermocline.connect(url) as connected:
        yield connected


def test_an_answer_in_every_form(client: Client) -> None:
    result = client.query(SQL)
    assert result.columns == ["id", "text"]
    assert [list(row) for row in result.rows] == ROWS
    assert result.provenance["engine"] == "hot"
    assert result.to_arrow().column("id").to_pylist() == [1, 2, 3]
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["id"]) == [1, 2, 3]
    assert result.to_polars().equals(pl.DataFrame({"id": [1, 2, 3], "text": [r[1] for r in ROWS]}))


def test_what_is_asked_arrives(client: Client, router: FixedRouter) -> None:
    start = datetime(2026, 11, 14, 18, 0, 0, 123456, UTC)
    client.query(
        SQL, dialect="trino", table_id="silver.orders", start_time=start, snapshot=SNAPSHOT,
        min_snapshot=str(SNAPSHOT), max_staleness=1.5, timeout=3,
    )  # fmt: skip
    ask = router.seen[-1][0]
    assert (ask.dialect, ask.table_id, ask.start_time) == ("trino", "silver.orders", start)
    assert (ask.snapshot, ask.min_snapshot) == (SNAPSHOT, SNAPSHOT)
    assert (ask.max_staleness, ask.timeout, ask.format) == (1.5, 3.0, "arrow")


def test_explain_and_tables(client: Client) -> None:
    assert client.explain(SQL, snapshot=SNAPSHOT)["ways"][0]["engine"] == "hot"
    assert client.tables()[0]["snapshot"] == str(SNAPSHOT)
    assert client.healthy()


@pytest.mark.parametrize(
    ("sql", "kind", "cause"),
    [
        ("drop table x", QueryRefused, "Only SELECT"),
        ("select * from silver.nothing", NotFound, "There is no table silver.nothing."),
        ("select * from test.busy", Busy, "All are busy."),
        ("select * from test.both", BothFailed, "Both died."),
        ("select * from test.late", TooLate, "Too late."),
        ("select * from test.large", TooMuch, "More than 100,000 rows."),
        ("select * from test.spark", EngineUnavailable, "No Java."),
        ("select * from test.broken", Transient, "The server answered 500 (internal)."),
        ("", BadInput, "`sql` must be text and not empty."),
    ],
)
def test_errors_are_of_their_own_class(
    client: Client, sql: str, kind: type[Exception], cause: str
) -> None:
    with pytest.raises(kind) as caught:
        client.query(sql)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(cause)


def test_details_are_kept(client: Client) -> None:
    with pytest.raises(Busy) as caught:
        client.query("select * from test.busy")
    assert (caught.value.details, caught.value.next_step) == ({"retry_after": 7}, "Ask again.")


def test_a_token_is_sent_and_never_shown(tmp_path: Path) -> None:
    token = TokenStore(tmp_path).create("ann")
    with serving(FixedRouter(), Authenticator(TokenStore(tmp_path))) as url:
        with thermocline.connect(url, token) as client:
            assert len(client.query(SQL).rows) == 3
            assert token not in repr(client)
        with thermocline.connect(url, token[:-1]) as client:
            with pytest.raises(Unauthenticated) as caught:
                client.query(SQL)
            assert token[:-1] not in str(caught.value.as_dict())
        with pytest.raises(BadInput):
            thermocline.connect(url, "a\r\nX-Evil: 1")


def test_one_connection_is_kept_a_thread_and_made_again(url: str) -> None:
    with thermocline.connect(url) as client:
        client.tables()
        first = client._local.connection.sock
        client.tables()
        assert client._local.connection.sock is first
        first.shutdown(socket.SHUT_RDWR)  # as a server does that closes idle connections
        assert client.tables()
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(len(client.query(SQL).rows)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [3] * 8


def test_nobody_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
    client = thermocline.connect(f"http://127.0.0.1:{port}")
    assert not client.healthy()
    with pytest.raises(ServerUnreachable) as caught:
        client.tables()
    assert caught.value.transient
    assert "thermo serve" in caught.value.next_step


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://x", "http://", "http://a:b@host", "http://host/path",
     "http://host?token=x", "http://[::1", "http://host:99999", "file:///etc/passwd"],
)  # fmt: skip
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(BadInput):
        thermocline.connect(url)


def test_something_else_that_answers(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as other:
        try:
            assert other.stdout is not None
            port = other.stdout.readline().split(" port ")[1].split()[0]
            client = thermocline.connect(f"http://127.0.0.1:{port}")
            assert not client.healthy()
            with pytest.raises(ServerUnreachable, match="does not belong to a Thermocline server"):
                client.query(SQL)
        finally:
            other.terminate()

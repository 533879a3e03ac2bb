"""`thermo serve` as a user starts it: the whole of it over HTTP, and its end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.serve.serving import Serving, children, gone, started, thermo
from tests.unit.cli.test_commands import TABLE, lake_with_two_versions

import thermocline
from thermocline.errors import NotFound
from thermocline.serve.failures import Unauthenticated
from thermocline.sql.guard import QueryRefused

CANARY = "c4nary-of-the-lake"


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    return lake_with_two_versions(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def server(versions: tuple[Path, list[int]]) -> Iterator[Serving]:
    canary = {"THERMOCLINE_LAKE__CATALOG__TOKEN": CANARY}
    with started(versions[0], "--nodes", "1", **canary) as running:
        yield running


def hot(client: Any, sql: str) -> Any:
    """An answer, once the copy is there."""
    until = time.monotonic() + 60
    while (ways := client.explain(sql)["ways"])[0]["engine"] != "hot":
        assert time.monotonic() < until, f"never hot: {ways}"
        time.sleep(0.2)
    return client.query(sql)


def test_it_says_where_it_is_and_what_is_hot(server: Serving) -> None:
    assert server.told["ready"]
    assert server.told["open"]
    assert (server.told["tables"], server.told["hot"]) == ([TABLE], [TABLE])
    note = json.loads((server.project / ".thermocline" / "serve.json").read_text())
    assert (note["url"], note["pid"]) == (server.url, server.process.pid)


def test_answers_hot_and_as_of_an_older_snapshot(
    server: Serving, versions: tuple[Path, list[int]]
) -> None:
    sql = f"select id, net from {TABLE} order by id"
    first, last = versions[1]
    with thermocline.connect(server.url) as client:
        result = hot(client, sql)
        assert [str(row[0]) for row in result.rows] == ["[red]new", "a", "b"]
        assert result.provenance["tables"][TABLE]["snapshot"] == str(last)
        old = client.query(sql, snapshot=first)
        assert [row[0] for row in old.rows] == ["a", "b", "gone"]
        assert old.provenance["tables"][TABLE]["snapshot"] == str(first)
        assert client.explain(sql)["ways"][0]["engine"] == "hot"
        assert client.tables()[0]["hot"]["copies"][0]["snapshot"] == str(last)
        with pytest.raises(NotFound):
            client.query("select * from silver.nothing")
        with pytest.raises(QueryRefused):
            client.query("select * from read_text('/etc/passwd')")


def test_the_formats_agree(server: Serving) -> None:
    sql = f"select id, net from {TABLE} order by id"
    replies = {
        kind: httpx.post(f"{server.url}/query", json={"sql": sql, "format": kind}, timeout=30)
        for kind in ("json", "csv")
    }
    assert replies["json"].json()["rows"] == [["[red]new", "7.00"], ["a", "2.20"], ["b", None]]
    assert replies["csv"].text.splitlines()[0].replace('"', "") == "id,net"
    assert len(replies["csv"].text.splitlines()) == 4


def test_thermo_query_uses_it(server: Serving) -> None:
    with thermocline.connect(server.url) as client:
        hot(client, f"select count(*) from {TABLE}")
    sql = f"select count(*) as n from {TABLE}"
    answered = json.loads(thermo("query", sql, "--json", cwd=server.project).stdout)
    assert answered["rows"] == [[3]]
    assert answered["provenance"]["engine"] in ("hot", "cache")
    here = json.loads(thermo("query", sql, "--json", "--no-server", cwd=server.project).stdout)
    assert (here["rows"], here["provenance"]["engine"]) == ([[3]], "duckdb")


def test_metrics_and_secrets(server: Serving) -> None:
    text = httpx.get(f"{server.url}/metrics").text
    assert f'iceberg_metadata_version{{table="{TABLE}"}}' in text
    assert 'thermocline_node_memory_bytes{node="node-0"}' in text
    lag = next(
        line for line in text.splitlines() if line.startswith("thermocline_refresh_lag_seconds{")
    )
    assert float(lag.rsplit(" ", 1)[1]) < 60
    pages = [httpx.get(server.url + path).text for path in ("/tables", "/nodes", "/openapi.json")]
    log = (server.project / ".thermocline" / "serve.log").read_text()
    assert CANARY not in "".join([text, *pages, log])
    for child in children(server.process.pid):
        assert CANARY not in Path(f"/proc/{child}/cmdline").read_text()


def test_the_same_door_speaks_trino(server: Serving) -> None:
    headers = {"X-Trino-User": "ann", "X-Trino-Catalog": "lake", "X-Trino-Schema": "silver"}
    page = httpx.post(
        f"{server.url}/v1/statement", content="select count(*) from orders", headers=headers
    ).json()
    rows: list[Any] = []
    until = time.monotonic() + 30
    while time.monotonic() < until:
        rows += page.get("data", [])
        if "nextUri" not in page:
            break
        page = httpx.get(page["nextUri"], headers=headers, timeout=30).json()
    assert rows == [[3]], page.get("error")


@pytest.mark.parametrize("ending", ["ctrl-c", "term"])
def test_it_ends_with_all_its_children(tmp_path: Path, ending: str) -> None:
    project, _ = lake_with_two_versions(tmp_path)
    with started(project, "--nodes", "1") as running:
        process = running.process
        family = children(process.pid)
        assert len(family) >= 3
        if ending == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody hears it
        else:
            process.terminate()
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "Traceback" not in err
        assert not (project / ".thermocline" / "serve.json").exists()
        assert [pid for pid in family if not gone(pid)] == []
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/health")


def test_a_port_that_is_taken_is_said(server: Serving) -> None:
    port = server.url.rpartition(":")[2]
    done = thermo("serve", "--port", port, cwd=server.project)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Cannot listen on 127.0.0.1:{port}: Address already in use.")
    assert (server.project / ".thermocline" / "serve.json").exists()


def test_with_tokens_required(tmp_path: Path) -> None:
    project, _ = lake_with_two_versions(tmp_path)
    token = json.loads(thermo("token", "create", "ann", "--json", cwd=project).stdout)["token"]
    required = {"THERMOCLINE_SERVE__TOKENS_REQUIRED": "true"}
    with started(project, "--nodes", "1", **required) as running:
        url = running.url
        assert not running.told["open"]
        with thermocline.connect(url) as client, pytest.raises(Unauthenticated):
            client.query("select 1")
        with thermocline.connect(url, token) as client:
            assert client.query("select 1 as one").rows == [(1,)]
            assert thermo("token", "revoke", "ann", cwd=project).returncode == 0
            with pytest.raises(Unauthenticated):
                client.query("select 1")
        assert running.process.poll() is None

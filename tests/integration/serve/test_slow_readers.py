"""Readers of large answers who take their time: the router's memory has a bound all the same."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.integration.serve import serving
from tests.integration.serve.serving import Serving

READERS, BUDGET = 24, 72 << 20
SETTINGS = """
[serve]
nodes = 1
sending_memory = "72MiB"
cache_memory = "8MB"
verify_share = 0.0
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    project = serving.shop(tmp_path_factory.mktemp("slow") / "p", SETTINGS)
    with serving.started(project) as started:
        started.settled(3)
        yield started


def resident(server: Serving) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def reader(server: Serving, number: int) -> socket.socket:
    """A connection that asked for 18 MB, none of which is read yet."""
    sql = f"select repeat('{number % 10}', 200) as a, {number} as b from range(90000)"
    body = json.dumps({"sql": sql, "timeout": 25}).encode()
    made = socket.create_connection(("127.0.0.1", server.port))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.sendall(
        b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return made


def test_many_slow_readers_have_a_budget(server: Serving) -> None:
    before, most = resident(server), 0
    readers = [reader(server, number) for number in range(READERS)]
    heads = []
    for each in readers:
        each.settimeout(60)
        heads.append(each.recv(600))
        most = max(most, resident(server))
    for _ in range(20):
        time.sleep(0.05)
        most = max(most, resident(server))
    statuses = [head[9:12] for head in heads]
    assert set(statuses) == {b"200", b"503"}, statuses
    assert statuses.count(b"200") * (18 << 20) <= BUDGET + (18 << 20)
    refused = heads[statuses.index(b"503")].lower()
    assert b"retry-after: 1" in refused
    assert b"unavailable" in refused
    # Beside what is being sent: answers that are just arriving, which are few at a time.
    assert most - before < BUDGET + 4 * (18 << 20)
    assert httpx.post(f"{server.url}/query", json={"sql": "select 1 as a"}).status_code == 200
    for each in readers:
        each.close()
    serving.until(lambda: _answers(server), 30)


def _answers(server: Serving) -> bool:
    """Whether a large answer is sent again, now that nobody holds any."""
    sql = "select repeat('z', 200) as a from range(90000)"
    return httpx.post(f"{server.url}/query", json={"sql": sql}, timeout=30).status_code == 200

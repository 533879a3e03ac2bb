"""Slow, oversized and too many connections: closed without affecting others."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.unit.serve.fixed_router import ROWS, FixedRouter, opened, serving

from thermocline.serve.http import timeouts

SQL = "select id, text from silver.orders"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(FixedRouter(), opened(tmp_path_factory.mktemp("project"))) as address:
        yield address


def connection(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def heard(link: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    found = io.BytesIO()
    try:
        while piece := link.recv(65536):
            found.write(piece)
    except ConnectionResetError:
        pass
    return found.getvalue()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 300_000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    ],
)
def test_endless_headers_are_cut(url: str, head: bytes) -> None:
    with connection(url) as link:
        try:
            link.sendall(head)
        except OSError:
            pass
        answered = heard(link)
    assert answered.startswith(b"HTTP/1.1 431 ") or answered == b""
    assert httpx.get(f"{url}/health").status_code == 200


def test_what_is_not_http_is_told_so(url: str) -> None:
    with connection(url) as link:
        link.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert heard(link).startswith(b"HTTP/1.1 400 ")


def test_slow_clients_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "REQUEST_SECONDS", 0.4)
    monkeypatch.setattr(timeouts, "STALL_SECONDS", 0.6)
    request = b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    router = FixedRouter(body=b"[1]\n" * 10_000_000)
    with serving(router, opened(tmp_path)) as url:
        with connection(url) as silent, connection(url) as halting, connection(url) as half:
            halting.sendall(b"GET /hea")
            half.sendall(request + b'Content-Length: 100\r\n\r\n{"sql"')
            assert heard(silent) == b""
            assert heard(halting) == b""
            assert heard(half) == b""
        body = json.dumps({"sql": SQL}).encode()
        with connection(url) as reader:
            reader.sendall(request + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            time.sleep(2)  # one who does not read
            got = len(heard(reader))
        assert 0 < got < 30_000_000, "the server still held the answer for one who does not read"
        assert httpx.get(f"{url}/health").status_code == 200


def test_idle_connections_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts.BoundedHttpProtocol, "max_connections", 20)
    with serving(FixedRouter(), opened(tmp_path)) as url:
        idle = [connection(url) for _ in range(200)]
        try:
            reply = httpx.post(f"{url}/query", json={"sql": SQL})
            assert reply.json()["rows"] == ROWS
        finally:
            for link in idle:
                link.close()


def test_pipelined_requests_are_answered_in_order(url: str) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with connection(url) as link:
        link.sendall(one + b"\r\n" + one + b"\r\n" + one + b"Connection: close\r\n\r\n")
        assert heard(link).count(b'{"status": "ok"}') == 3

"""Frames over sockets: they arrive unchanged, or the loss is detected."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integration.serve.nodes.running import TOKEN, Running, code, ok

from thermocline.errors import ConfigError
from thermocline.serve.wire import protocol
from thermocline.serve.wire.protocol import Channel, ConnectionLost, MalformedFrame

WORKER = ("-m", "tests.unit.serve.sleeper", "--threads", "4")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.settimeout(5)
    far.settimeout(5)
    yield near, far
    near.close()
    far.close()


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("wire"), *WORKER) as running:
        yield running


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()),
       st.binary(max_size=10_000))  # fmt: skip
def test_a_frame_arrives_as_it_was_sent(header: dict[str, object], body: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        protocol.send(near, header, body)
        protocol.send(near, {"second": True})
        assert protocol.receive(far) == protocol.Frame(header, body)
        assert protocol.receive(far) == protocol.Frame({"second": True})
        near.close()
        assert protocol.receive(far) is None


def test_a_body_larger_than_any_buffer_arrives_whole(pair: tuple[socket.socket, ...]) -> None:
    near, far = pair
    body = os.urandom(9 << 20)
    sender = threading.Thread(target=protocol.send, args=(near, {"a": 1}, body))
    sender.start()
    found = protocol.receive(far)
    sender.join()
    assert found is not None and found.body == body


@pytest.mark.parametrize("cut", [1, 3, 4, 9, 20, -1])
def test_a_connection_that_ends_within_a_frame_is_lost(
    pair: tuple[socket.socket, ...], cut: int
) -> None:
    near, far = pair
    header = json.dumps({"do": "something"}).encode()
    whole = struct.pack(">I", len(header)) + header + struct.pack(">Q", 5) + b"12345"
    near.sendall(whole[:cut])
    near.close()
    with pytest.raises(ConnectionLost):
        protocol.receive(far)


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">I", (16 << 20) + 1),
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 2) + b"{}" + struct.pack(">Q", (1 << 30) + 1),
        struct.pack(">I", 2) + b"[]" + struct.pack(">Q", 0),
        struct.pack(">I", 2) + b"\xff\xfe" + struct.pack(">Q", 0),
        struct.pack(">I", 200_000) + b"[" * 200_000 + struct.pack(">Q", 0),
    ],
)
def test_what_is_no_frame_is_refused(pair: tuple[socket.socket, ...], said: bytes) -> None:
    near, far = pair
    sender = threading.Thread(target=near.sendall, args=(said,))
    sender.start()
    with pytest.raises(MalformedFrame):
        protocol.receive(far)
    sender.join()


@pytest.mark.parametrize(
    "address", ["", "unix:", "unix:relative", "tcp:host", "tcp::80", "tcp:h:99999", "tcp:h:٣",
                "http://x", "unix:/a\0b", f"unix:/{'a' * 200}"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        protocol.parse_address(address)


def test_a_socket_in_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="Others can enter"):
        protocol.listen(f"unix:{folder}/w.sock")
    assert not (folder / "w.sock").exists()


def test_tcp_and_ipv6_work_like_a_unix_socket() -> None:
    listener = protocol.listen("tcp:[::1]:0")
    port = listener.getsockname()[1]

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            assert protocol.authenticate(sock, TOKEN)
            frame = protocol.receive(sock)
            assert frame is not None
            protocol.send(sock, {"id": frame.header["id"], "ok": True}, frame.body)

    thread = threading.Thread(target=serve)
    thread.start()
    line = protocol.BlockingChannel.open(f"tcp:[::1]:{port}", TOKEN, 5)
    assert line.ask({"do": "x"}, b"abc").body == b"abc"
    line.close()
    thread.join()
    listener.close()


def test_many_requests_are_in_flight_and_each_gets_its_own_reply(sleeper: Running) -> None:
    async def go() -> list[str]:
        channel = await Channel.open(sleeper.address, TOKEN)
        asked = [channel.ask({"do": "query", "sql": f"bytes {size}"}) for size in range(1, 5)]
        found = [len((await each).body) for each in asked]
        slow = asyncio.create_task(channel.ask({"do": "slow", "seconds": 0.3}, b"x" * (3 << 20)))
        quick = await channel.ask({"do": "ping"})
        assert not slow.done(), "the quick reply came first"
        assert ok(quick)["rss"] > 1 << 20
        found.append(ok(await slow)["length"])
        await channel.close()
        return found

    assert asyncio.run(go()) == [1, 2, 3, 4, 3 << 20]


def test_a_query_that_is_given_up_is_cancelled_over_there(sleeper: Running) -> None:
    async def go() -> None:
        channel = await Channel.open(sleeper.address, TOKEN)
        before = ok(await channel.ask({"do": "slow", "seconds": 0}))["cancelled"]
        with pytest.raises(TimeoutError):
            await channel.ask({"do": "query", "sql": "sleep 60"}, timeout=0.1)
        task = asyncio.create_task(channel.ask({"do": "query", "sql": "sleep 60"}))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            await asyncio.sleep(0.02)
            if ok(await channel.ask({"do": "slow", "seconds": 0}))["cancelled"] == before + 2:
                break
        else:
            pytest.fail("they still run")
        assert channel.alive
        await channel.close()

    asyncio.run(go())


def test_a_lost_connection_fails_all_in_flight(tmp_path: Path) -> None:
    async def go(running: Running) -> None:
        channel = await Channel.open(running.address, TOKEN)
        waiting = [
            asyncio.create_task(channel.ask({"do": "query", "sql": "sleep 60"})) for _ in range(5)
        ]
        await asyncio.sleep(0.1)
        running.process.kill()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [ConnectionLost] * 5
        assert not channel.alive
        with pytest.raises(ConnectionLost):
            await channel.ask({"do": "ping"})
        channel.notify({"do": "ping"})  # to nobody: no error
        await channel.close()

    with Running(tmp_path / "w", *WORKER) as running:
        asyncio.run(go(running))


def test_nobody_there_and_a_wrong_token_are_both_lost(sleeper: Running, tmp_path: Path) -> None:
    async def go(address: str, token: str) -> None:
        with pytest.raises(ConnectionLost):
            await Channel.open(address, token)

    nobody = f"unix:{tmp_path}/nobody.sock"
    for address, token in ((nobody, TOKEN), (sleeper.address, "x"), (sleeper.address, "")):
        asyncio.run(go(address, token))
        with pytest.raises(ConnectionLost):
            protocol.connect(address, token, 5)


def test_a_line_gives_errors_as_they_were_said(sleeper: Running) -> None:
    line = sleeper.line()
    reply = line.ask({"do": "query", "sql": "missing x"})
    assert code(reply) == "not-found"
    assert reply.error == {
        "code": "not-found", "cause": "There is no\\nsuch thing: é",
        "next_step": "Look elsewhere.", "details": {"name": "x"},
    }  # fmt: skip
    line.close()


def test_the_wire_imports_nothing_heavy() -> None:
    script = (
        "import sys, thermocline.serve.wire.protocol\n"
        "print([n for n in ('pyarrow', 'duckdb', 'pyiceberg', 'numpy') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr

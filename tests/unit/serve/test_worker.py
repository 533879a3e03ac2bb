"""The worker loop: limits of time, queue and connections; no request blocks another."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.serve.nodes.running import TOKEN, Running, code, ok

from thermocline.serve.wire import protocol
from thermocline.serve.wire.protocol import Channel, ConnectionLost

WORKER = ("-m", "tests.unit.serve.sleeper")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path / "w", *WORKER) as running:
        yield running


def query(sql: str, **more: Any) -> dict[str, Any]:
    return {"do": "query", "sql": sql, **more}


def test_replies_come_in_the_order_the_queries_end(sleeper: Running) -> None:
    async def go() -> list[str]:
        channel = await Channel.open(sleeper.address, TOKEN)
        order: list[str] = []

        async def ask(sql: str) -> None:
            order.append(ok(await channel.ask(query(sql)))["said"])

        await asyncio.gather(ask("sleep 0.5"), ask("sleep 0.1"))
        await channel.close()
        return order

    assert asyncio.run(go()) == ["sleep 0.1", "sleep 0.5"]


def test_a_query_that_runs_too_long_is_interrupted(sleeper: Running) -> None:
    line = sleeper.line()
    began = time.monotonic()
    assert code(line.ask(query("sleep 60", seconds=0.3))) == "too-long"
    assert time.monotonic() - began < 3
    # The answer does not wait until the thread has noticed.
    while ok(line.ask({"do": "ping"}))["running"]:
        assert time.monotonic() - began < 6
        time.sleep(0.01)
    assert ok(line.ask(query("sleep 0")))["said"] == "sleep 0"


def test_more_than_can_wait_are_busy_and_those_that_never_ran_too(sleeper: Running) -> None:
    async def go() -> list[str]:
        channel = await Channel.open(sleeper.address, TOKEN)
        # 2 run, 4 wait, the rest is refused; none of those that wait is reached in time.
        asked = [asyncio.create_task(channel.ask(query("sleep 1.2", seconds=3))) for _ in range(2)]
        await asyncio.sleep(0.1)
        late = [channel.ask(query("sleep 0", seconds=0.4)) for _ in range(8)]
        found = [code(each) for each in await asyncio.gather(*late)]
        assert [ok(await each)["said"] for each in asked] == ["sleep 1.2"] * 2
        await channel.close()
        return found

    assert asyncio.run(go()) == ["busy"] * 8


def test_a_stubborn_query_is_answered_in_time_and_then_ends_the_process(sleeper: Running) -> None:
    line = sleeper.line()
    began = time.monotonic()
    assert code(line.ask(query("stubborn 60", seconds=0.2))) == "too-long"
    assert time.monotonic() - began < 1.5
    assert ok(line.ask(query("sleep 0")))["said"] == "sleep 0", "the other thread goes on"
    assert sleeper.process.wait(10) == 70
    with pytest.raises(ConnectionLost):
        line.ask({"do": "ping"})


def test_a_stubborn_query_that_ends_after_all_is_answered_once(sleeper: Running) -> None:
    line = sleeper.line()
    assert code(line.ask(query("stubborn 0.8", seconds=0.1))) == "too-long"
    time.sleep(1)
    assert [ok(line.ask({"do": "ping"}))["running"] for _ in range(2)] == [0, 0]


def test_nobody_cancels_the_query_of_another(sleeper: Running) -> None:
    async def go() -> None:
        mine, other = [await Channel.open(sleeper.address, TOKEN) for _ in range(2)]
        task = asyncio.create_task(mine.ask(query("sleep 0.6")))  # its id is 1 on this connection
        await asyncio.sleep(0.1)
        other.notify({"do": "cancel", "query": 1})
        other.notify({"do": "cancel", "query": {"not": "an id"}})
        assert ok(await task)["said"] == "sleep 0.6"
        task = asyncio.create_task(mine.ask(query("sleep 60")))
        await asyncio.sleep(0.1)
        mine.notify({"do": "cancel", "query": 2})
        assert code(await task) == "cancelled"
        await mine.close()
        await other.close()

    asyncio.run(go())


def test_queries_whose_asker_is_gone_are_cancelled(sleeper: Running) -> None:
    lost = protocol.connect(sleeper.address, TOKEN, 5)
    for number in range(2):
        protocol.send(lost, query("sleep 60", id=number))
    line = sleeper.line()
    while ok(line.ask({"do": "ping"}))["running"] < 2:
        time.sleep(0.01)
    lost.close()
    assert ok(line.ask(query("sleep 0", seconds=5)))["said"] == "sleep 0"


def test_a_peer_that_does_not_read_blocks_nobody(sleeper: Running) -> None:
    deaf = protocol.connect(sleeper.address, TOKEN, 5)
    for number in range(6):
        protocol.send(deaf, query(f"bytes {20 << 20}", id=number))
    line = sleeper.line(10)
    time.sleep(0.5)
    began = time.monotonic()
    for _ in range(50):
        assert ok(line.ask(query("sleep 0")))["said"] == "sleep 0"
    assert time.monotonic() - began < 5
    # What waited for it is all there once it reads.
    found = [protocol.receive(deaf) for _ in range(6)]
    assert sorted(each.header["id"] for each in found if each) == [0, 1, 2, 3, 4, 5]
    assert {len(each.body) for each in found if each} == {20 << 20}


def test_one_that_lets_too_much_wait_is_cut_off(sleeper: Running) -> None:
    deaf = protocol.connect(sleeper.address, TOKEN, 20)
    line = sleeper.line(20)
    with pytest.raises(ConnectionLost):
        for number in range(50):
            protocol.send(deaf, query(f"bytes {60 << 20}", id=number))
            time.sleep(0.1)
    assert number >= 4, "256 MB may wait"
    assert ok(line.ask(query("sleep 0")))["said"] == "sleep 0"


def test_a_body_over_the_bound_is_not_sent(sleeper: Running) -> None:
    line = sleeper.line()
    assert len(line.ask(query("bytes 1000", bytes=1000)).body) == 1000
    reply = line.ask(query("bytes 1001", bytes=1000))
    assert code(reply) == "too-large" and reply.body == b""


def test_errors_are_one_line_and_a_bug_says_nothing_of_itself(sleeper: Running) -> None:
    line = sleeper.line()
    assert code(line.ask(query("missing x"))) == "not-found"
    bug = line.ask(query("bug"))
    assert code(bug) == "internal"
    assert "secret" not in str(bug.header) and "Traceback" not in str(bug.header)
    assert code(line.ask({"do": "nonsense"})) == "unknown"
    assert code(line.ask({"do": ["a"]})) == "unknown"
    assert code(line.ask({"do": "query"})) == "internal"
    assert code(line.ask({"do": "slow", "seconds": "x"})) == "internal"
    assert ok(line.ask(query("sleep 0")))["said"] == "sleep 0"


def test_a_broken_engine_is_answered_and_ends_the_process(sleeper: Running) -> None:
    assert code(sleeper.line().ask(query("broken"))) == "internal"
    assert sleeper.process.wait(5) == 70


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        random.Random(5).randbytes(64),
        struct.pack(">I", 5000) + b'{"do":"hello"' + b" " * 4987,  # no stranger says so much
        struct.pack(">I", 14) + b'{"do":"hello"}' + struct.pack(">Q", 1 << 29),
        struct.pack(">I", 13) + b'{"do":"ping"}' + struct.pack(">Q", 0),
        struct.pack(">I", 25) + b'{"do":"hello","token": 3}' + struct.pack(">Q", 0),
        struct.pack(">I", 31) + b'{"do":"hello","token":"\\ud800"}' + struct.pack(">Q", 0),
    ],
)
def test_strangers_are_cut_off_without_a_word(sleeper: Running, said: bytes) -> None:
    _, place = protocol.parse_address(sleeper.address)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(8)
        sock.connect(place)
        sock.sendall(said)
        try:
            assert sock.recv(100) == b""
        except ConnectionResetError:
            pass
    assert ok(sleeper.line().ask({"do": "ping"}))["running"] == 0


def test_garbage_after_the_greeting_ends_that_connection_only(sleeper: Running) -> None:
    line = sleeper.line()
    for said in (b"\xff" * 64, struct.pack(">I", 2) + b"{}" + struct.pack(">Q", 1 << 40)):
        sock = protocol.connect(sleeper.address, TOKEN, 5)
        sock.sendall(said)
        with contextlib.suppress(ConnectionLost):
            assert protocol.receive(sock) is None
        sock.close()
    assert ok(line.ask({"do": "ping"}))["running"] == 0


def test_idle_strangers_do_not_keep_others_out(sleeper: Running) -> None:
    _, place = protocol.parse_address(sleeper.address)
    idle = []
    for _ in range(80):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(place)
        idle.append(sock)
    began = time.monotonic()
    while True:  # the places are taken, for as long as a greeting may take
        try:
            line = sleeper.line(5)
            break
        except ConnectionLost:
            assert time.monotonic() - began < 12
            time.sleep(0.2)
    assert ok(line.ask({"do": "ping"}))["running"] == 0
    for sock in idle:
        sock.close()


def test_it_ends_when_whoever_started_it_is_gone(sleeper: Running) -> None:
    sock = protocol.connect(sleeper.address, TOKEN, 5)
    protocol.send(sock, query("stubborn 60", id=1))
    assert sleeper.process.stdin
    sleeper.process.stdin.close()
    assert sleeper.process.wait(5) == 0
    assert not Path(sleeper.address.removeprefix("unix:")).exists()

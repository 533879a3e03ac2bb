"""The cost of a request between two processes of serving: our frames, HTTP, Arrow Flight.

    python -m benchmarks.wire [--requests 4000]

A client and a server process communicate over a Unix socket. The request is a JSON header of a
kilobyte, as the router sends a query; the reply is a header and a body of 4 KB or 1 MB. HTTP is
uvicorn with httptools and uvloop, and httpx as the client; Flight is pyarrow's `do_exchange`, whose
Python client blocks, so each request in flight has its own thread and stream, which stay open.
Measured with one request in flight, and with sixteen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20}
IN_FLIGHT = (1, 16)
TOKEN = "benchmark"
QUERY = {"do": "query", "sql": "select " + ", ".join(f"column_{n}" for n in range(80)), "limit": 9}

SendRequest = Callable[[int], Awaitable[int]]
"""Sends one request for so many bytes; returns how many arrived."""


def serve_frames(path: str) -> None:
    """Answer frames with a thread per connection, as hot nodes do."""
    from thermocline.serve.wire import protocol

    def answer(sock: Any) -> None:
        if not protocol.authenticate(sock, TOKEN):
            return
        while (frame := protocol.receive(sock)) is not None:
            reply = {"ok": True, "id": frame.header["id"], "columns": frame.header["sql"]}
            protocol.send(sock, reply, bytes(frame.header["size"]))

    listener = protocol.listen(f"unix:{path}")
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=answer, args=(sock,), daemon=True).start()


def serve_http(path: str) -> None:
    """Answer POST requests."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        text, more = b"", True
        while more:
            message = await receive()
            text += message.get("body", b"")
            more = message.get("more_body", False)
        request = json.loads(text)
        reply = json.dumps({"ok": True, "columns": request["sql"]}).encode()
        headers = [(b"x-header", str(len(reply)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply + bytes(request["size"])})

    uvicorn.run(app, uds=path, log_level="error", access_log=False, lifespan="off")


def serve_flight(path: str) -> None:
    """Answer on streams that stay open: a message in, a message out."""
    from pyarrow import flight

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            for chunk in reader:
                request = json.loads(chunk.app_metadata.to_pybytes())
                reply = json.dumps({"ok": True, "columns": request["sql"]}).encode()
                writer.write_metadata(len(reply).to_bytes(4) + reply + bytes(request["size"]))

    Server(f"grpc+unix:{path}").serve()


async def ask_frames(path: str) -> SendRequest:
    """Use one connection for all requests in flight, as the router does."""
    from thermocline.serve.wire import protocol

    channel = await protocol.Channel.open(f"unix:{path}", TOKEN)

    async def ask(size: int) -> int:
        return len((await channel.ask({**QUERY, "size": size})).body)

    return ask


async def ask_http(path: str) -> SendRequest:
    """Use a pool of connections that stay open."""
    import httpx

    client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path))

    async def ask(size: int) -> int:
        reply = await client.post("http://node/query", content=json.dumps({**QUERY, "size": size}))
        header = int(reply.headers["x-header"])
        json.loads(reply.content[:header])
        return len(reply.content) - header

    return ask


async def ask_flight(path: str) -> SendRequest:
    """Use a thread and a stream per request in flight."""
    from pyarrow import flight

    client = flight.FlightClient(f"grpc+unix:{path}")
    own = threading.local()
    threads = ThreadPoolExecutor(max(IN_FLIGHT))

    def blocking(size: int) -> int:
        if not hasattr(own, "stream"):
            own.stream = client.do_exchange(flight.FlightDescriptor.for_command(b"query"))
        writer, reader = own.stream
        writer.write_metadata(json.dumps({**QUERY, "size": size}).encode())
        found = reader.read_chunk().app_metadata.to_pybytes()
        header = int.from_bytes(found[:4])
        json.loads(found[4 : 4 + header])
        return len(found) - header - 4

    async def ask(size: int) -> int:
        return await asyncio.get_running_loop().run_in_executor(threads, blocking, size)

    return ask


PEERS = {
    "frames": (serve_frames, ask_frames),
    "HTTP": (serve_http, ask_http),
    "Arrow Flight": (serve_flight, ask_flight),
}


async def measure(path: str, peer: str, server: int, requests: int) -> None:
    """Measure all sizes and print a line for each."""
    ask = await PEERS[peer][1](path)
    for name, size in SIZES.items():
        for most in IN_FLIGHT:
            count = max(most, requests if size < 1 << 16 else requests // 10)
            await _ask_all(ask, size, most, most)
            before, wall = _cpu(server), time.perf_counter()
            times = await _ask_all(ask, size, most, count)
            wall = time.perf_counter() - wall
            client, answering = (b - a for a, b in zip(before, _cpu(server), strict=True))
            times.sort()
            print(
                f"{peer:14}{name:>6}{most:>4} in flight{count / wall:>10,.0f} a second"
                f"   p50 {times[count // 2] * 1e6:>8,.0f} µs"
                f"   p99 {times[count * 99 // 100] * 1e6:>8,.0f} µs"
                f"   CPU µs: client {client / count * 1e6:>7,.0f}"
                f"   server {answering / count * 1e6:>7,.0f}",
                flush=True,
            )  # fmt: skip


async def _ask_all(ask: SendRequest, size: int, most: int, count: int) -> list[float]:
    left, times = iter(range(count)), []

    async def work() -> None:
        for _ in left:
            start = time.perf_counter()
            assert await ask(size) == size
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(work() for _ in range(most)))
    return times


def _cpu(server: int) -> tuple[float, float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return own.ru_utime + own.ru_stime, ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--serve", nargs=2, metavar=("PEER", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        PEERS[options.serve[0]][0](options.serve[1])
        return
    for peer in PEERS:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/socket"
            command = [sys.executable, "-m", "benchmarks.wire", "--serve", peer, path]
            server = subprocess.Popen(command)
            try:
                deadline = time.monotonic() + 30
                while not Path(path).exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
                time.sleep(0.2)
                asyncio.run(measure(path, peer, server.pid, options.requests))
            finally:
                server.kill()
                server.wait()


if __name__ == "__main__":
    main()

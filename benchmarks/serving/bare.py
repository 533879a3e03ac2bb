"""An idle server, measured beside the real one.

Its latency is not due to the measured server's router: it is what the machine costs any caller,
including all other processes on the same cores, such as the measured server's nodes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.serving.load import Client

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def bare_server() -> Iterator[str]:
    """Yield its URL."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    server = context.Process(target=_serve, args=(sending,), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{receiving.recv()}"
    finally:
        server.kill()
        server.join()


def _serve(sending: Connection) -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            if await reader.readline() == b"\r\n":
                writer.write(REPLY)

    async def forever() -> None:
        server = await asyncio.start_server(answered, "127.0.0.1", 0)
        sending.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


async def bare_loop(url: str, seconds: float, rate: float = 20.0) -> list[float]:
    """Return the milliseconds of each answer since its query was due."""
    client, found, begin = Client(url), [], time.perf_counter()
    for number in range(int(seconds * rate)):
        due = begin + number / rate
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        await client.get("/")
        found.append((time.perf_counter() - due) * 1000)
    client.close()
    return found

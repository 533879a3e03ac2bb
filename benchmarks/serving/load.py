"""Load: clients that send dashboard queries over HTTP and record answers and latencies."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from urllib.parse import urlsplit


@dataclass
class Heard:
    """One answer or error."""

    question: int
    began: float
    seconds: float
    status: int
    engine: str = ""
    snapshot: str = ""
    digest: bytes = b""
    fell_back: bool = False
    overdue: bool = False
    why: str = ""
    """The error instead of an answer."""


@dataclass
class Mix:
    """Picks the next query: few are frequent, many rare, some cold."""

    hot: list[str]
    cold: list[str]
    cold_share: float = 0.01
    seed: int = 5
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._weights = list(accumulate(1 / (n + 1) for n in range(len(self.hot))))

    @property
    def questions(self) -> list[str]:
        return [*self.hot, *self.cold]

    def next(self) -> int:
        if self.cold and self.chance.random() < self.cold_share:
            return len(self.hot) + self.chance.randrange(len(self.cold))
        (number,) = self.chance.choices(range(len(self.hot)), cum_weights=self._weights)
        return number


class Client:
    """One persistent connection. Minimal, so that it costs little CPU."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body."""
        return await self._send(f"GET {path} HTTP/1.1\r\n", b"")

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body."""
        head = f"POST {path} HTTP/1.1\r\nContent-Type: application/json\r\n"
        return await self._send(f"{head}Content-Length: {len(body)}\r\n", body)

    async def _send(self, head_: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is not None and self._streams[0].at_eof():
            self.close()  # the server closed it after its idle timeout
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(f"{head_}Host: {self._host}:{self._port}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        length = next(
            int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")
        )
        return int(lines[0].split(b" ")[1]), await reader.readexactly(length)

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def ask(client: Client, number: int, sql: str) -> Heard:
    """Send one query."""
    began = time.perf_counter()
    try:
        status, body = await client.post("/query", json.dumps({"sql": sql}).encode())
    except (OSError, asyncio.IncompleteReadError, StopIteration) as error:
        client.close()
        return Heard(number, began, time.perf_counter() - began, 0, why=repr(error))
    seconds = time.perf_counter() - began
    if status != 200:
        return Heard(number, began, seconds, status, why=body.decode(errors="replace"))
    answer = json.loads(body)
    provenance = answer["provenance"]
    (table,) = provenance["tables"].values()
    return Heard(
        number, began, seconds, status, provenance["engine"], table["snapshot"],
        digest(answer["rows"]), bool(provenance["fallback"]), provenance["overdue"],
    )  # fmt: skip


def digest(rows: list[list[object]]) -> bytes:
    """Return a digest of an answer in sixteen bytes."""
    return blake2b(json.dumps(rows).encode(), digest_size=16).digest()


async def closed_loop(url: str, mix: Mix, seconds: float, clients: int) -> list[Heard]:
    """Run a closed loop: clients that send the next query after each answer."""
    heard: list[Heard] = []
    until = time.perf_counter() + seconds

    async def person() -> None:
        client = Client(url)
        while time.perf_counter() < until:
            number = mix.next()
            heard.append(await ask(client, number, mix.questions[number]))
        client.close()

    await asyncio.gather(*(person() for _ in range(clients)))
    return heard


async def open_loop(url: str, mix: Mix, seconds: float, rate: float) -> list[Heard]:
    """Run an open loop: a fixed rate of queries, whether earlier ones were answered or not."""
    heard: list[Heard] = []
    idle: list[Client] = []
    running: set[asyncio.Task[None]] = set()
    begin = time.perf_counter()

    async def one(due: float) -> None:
        client = idle.pop() if idle else Client(url)
        number = mix.next()
        given = await ask(client, number, mix.questions[number])
        given.seconds = time.perf_counter() - due  # waiting for a free connection counts
        heard.append(given)
        idle.append(client)

    sent = 0
    while (now := time.perf_counter() - begin) < seconds:
        while sent < now * rate:
            task = asyncio.create_task(one(begin + sent / rate))
            running.add(task)
            task.add_done_callback(running.discard)
            sent += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*running)
    for client in idle:
        client.close()
    return heard

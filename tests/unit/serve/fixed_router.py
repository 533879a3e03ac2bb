"""A router over fixed rows behind the real guard, and a real uvicorn to reach it through.

Some table names make it misbehave, so that every way a question can end is met on the wire.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from tests.unit.serve.data_files import file, sums

from thermocline.config import ServeSettings
from thermocline.errors import EngineUnavailable, NotFound, Transient
from thermocline.serve.failures import BothFailed, Busy, TooLate, TooMuch
from thermocline.serve.http.app import create_app
from thermocline.serve.http.metrics import Metrics
from thermocline.serve.http.server import build_config, listen, server_url
from thermocline.serve.identity.authenticator import Authenticator
from thermocline.serve.identity.token_store import TokenStore
from thermocline.serve.values import (
    Answer,
    Caller,
    EncodedRows,
    HotCopy,
    LakeState,
    QueryRequest,
    ResultColumn,
    TableHead,
)
from thermocline.sql.guard import guard

SNAPSHOT = 4312345678901234567
NOW = datetime(2026, 11, 14, 18, 0, tzinfo=UTC)
ROWS: list[list[Any]] = [[1, "a\nb"], [2, None], [3, 'say "ü"']]
COLUMNS = (ResultColumn("id", "int64", "bigint"), ResultColumn("text", "string", "varchar"))
PATH = "/secret/place"


def head(table: str = "silver.orders", **changed: Any) -> TableHead:
    given: dict[str, Any] = {
        "table": table, "uuid": "u", "snapshot": SNAPSHOT,
        "metadata": f"file:///lake/{table}/metadata/00012-abc.metadata.json",
        "committed_at": NOW, "columns": {"id": "long", "text": "string"}, "time": None,
        "snapshots": (SNAPSHOT,), "files": sums(file(1000, 2), file(64_000_000, 1)),
        "hot": float("inf"),
    }  # fmt: skip
    return TableHead(**{**given, **changed})


def lake_state(*heads: TableHead, epoch: int = 1, hot_copies: int | None = SNAPSHOT) -> LakeState:
    copies = {"silver.orders": HotCopy(hot_copies, None, 3, 900)} if hot_copies else {}
    known = {each.table: each for each in heads or (head(),)}
    return LakeState(epoch, NOW + timedelta(seconds=1), known, {"node-0": copies})


@dataclass
class FixedRouter:
    """Answers every question over silver.orders with the same rows."""

    body: bytes | None = None
    seen: list[tuple[QueryRequest, Caller]] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    up: bool = True

    async def answer(self, request: QueryRequest, caller: Caller) -> Answer:
        self.seen.append((request, caller))
        question = guard(request.sql, request.dialect)
        for table in question.tables:
            await self._misbehave(table)
        provenance: dict[str, Any] = {
            "engine": "hot",
            "node": "node-0",
            "tables": {},
            "because": ["it is fixed"],
        }
        if "test.fallback" in question.tables:
            fallback = [{"from": "node-1", "cause": "it died"}]
            provenance = {"engine": "direct", "fallback": fallback}
        if "test.overdue" in question.tables:
            provenance = {"engine": "cache", "overdue": True}
        return Answer(
            EncodedRows(COLUMNS, 3, self.encoded(request.format)), request.format, provenance
        )

    async def _misbehave(self, table: str) -> None:
        name = table.partition(".")[2]
        if name == "slow":
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        raised: dict[str, Exception] = {
            "busy": Busy("All are busy.", "Ask again.", retry_after=7),
            "both": BothFailed("Both died.", "Ask.", tried=["node-0: died", "spark: died"]),
            "late": TooLate("Too late.", "Ask for less."),
            "large": TooMuch("More than 100,000 rows.", "Ask for less."),
            "away": Transient("The catalog is away.", "Ask again."),
            "spark": EngineUnavailable("No Java.", "Install it."),
            "broken": RuntimeError(f"{PATH} s3cret-canary"),
        }
        if name in raised:
            raise raised[name]
        if table not in ("silver.orders", "test.fallback", "test.overdue"):
            raise NotFound(f"There is no table {table}.", "`thermo tables` lists them.")

    def encoded(self, format: str) -> bytes:
        if self.body is not None:
            return self.body
        if format == "json":
            return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
        import pyarrow as pa
        from pyarrow import csv

        table = pa.table({"id": [r[0] for r in ROWS], "text": [r[1] for r in ROWS]})
        sink = pa.BufferOutputStream()
        if format == "csv":
            csv.write_csv(table, sink)
        else:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        return sink.getvalue().to_pybytes()

    async def answer_tree(self, tree: Any, request: QueryRequest, caller: Caller) -> Answer:
        return await self.answer(request, caller)

    async def explain(self, request: QueryRequest, caller: Caller) -> dict[str, Any]:
        for table in guard(request.sql, request.dialect).tables:
            await self._misbehave(table)
        self.seen.append((request, caller))
        return {"ways": [{"engine": "hot", "node": "node-0", "because": ["it is fixed"]}]}

    def lake_state(self, caller: Caller | None = None) -> LakeState:
        return lake_state()

    def nodes(self, caller: Caller | None = None) -> list[dict[str, Any]]:
        return [{"name": "node-0", "up": True, "restarts": 0, "memory_bytes": 1234, "tables": {}}]

    def node_memory(self) -> dict[str, int]:
        return {"node-0": 1234}

    def is_ready(self) -> bool:
        return self.up

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def opened(tmp_path: Path) -> Authenticator:
    """The identity of a server on loopback that asks for no token."""
    return Authenticator(TokenStore(tmp_path), open=True)


@contextmanager
def serving(
    router: FixedRouter,
    identity: Authenticator,
    settings: ServeSettings | None = None,
    metrics: Metrics | None = None,
) -> Iterator[str]:
    """A real server in a thread, as `thermo serve` configures it; gives its address."""
    app = create_app(router, identity, metrics or Metrics(), settings or ServeSettings())
    server = uvicorn.Server(build_config(app))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                threading.Event().wait(0.01)
            yield server_url(listening)
        finally:
            server.should_exit = True
            thread.join(timeout=15)
    assert not thread.is_alive()

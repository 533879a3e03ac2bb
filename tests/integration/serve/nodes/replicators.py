"""Replicators and real node processes for tests, started as `thermo serve` starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.integration.serve.nodes.keeping import NOW, in_order

from thermocline.lake import Lake
from thermocline.serve.replicator.catalog_poller import CatalogPoller
from thermocline.serve.replicator.hot_policy import Policy
from thermocline.serve.replicator.replicator import Replicator
from thermocline.serve.values import HotCopy
from thermocline.serve.wire.protocol import BlockingChannel

TOKEN = "token-of-a-test"
SINCE = (NOW - timedelta(days=7)).replace(hour=0, minute=0, second=0, microsecond=0)


class Process:
    """A worker of ours, as `thermo serve` starts it."""

    def __init__(self, module: str, address: str, *arguments: str) -> None:
        names = ("PATH", "PYTHONPATH", "LANG", "HOME")
        self.address = address
        self.name = Path(address).stem
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--address", address, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in names if name in os.environ},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        settings = "" if module.endswith(".node") else "{}\n"
        self._process.stdin.write(f"{TOKEN}\n{settings}".encode())
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"ready\n"
        self.line = BlockingChannel.open(address, TOKEN, timeout=30)

    def ask(self, **said: Any) -> dict[str, Any]:
        frame = self.line.ask(said)
        assert frame.error is None, frame.error
        return frame.header

    def rows(self, sql: str, **tables: int) -> list[tuple[Any, ...]]:
        """What a node answers, for these snapshots of tables of gold."""
        return [tuple(json.loads(line)) for line in self._query(sql, "json", tables).splitlines()]

    def arrow(self, sql: str, **tables: int) -> pa.Table:
        """The same, in Arrow's types."""
        return pa.ipc.open_stream(self._query(sql, "arrow", tables)).read_all()

    def _query(self, sql: str, format: str, tables: Mapping[str, int]) -> bytes:
        asked = {f"gold.{t}": {"table": f"gold.{t}", "snapshot": str(s)} for t, s in tables.items()}
        frame = self.line.ask(
            {"do": "query", "sql": sql, "tables": asked, "format": format, "rows": 10**6,
             "bytes": 10**9, "seconds": 20.0}
        )  # fmt: skip
        assert frame.error is None, frame.error
        return bytes(frame.body)

    def ends(self) -> int:
        """Close its standard input, as the end of the router does; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(timeout=10)
        self.kill()
        return code

    def kill(self) -> None:
        self.line.close()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def node_process(folder: Path, name: str) -> Process:
    (folder / f"{name}.sock").unlink(missing_ok=True)
    address = f"unix:{folder / name}.sock"
    return Process("thermocline.serve.node", address, "--memory", str(256 << 20))


class Replicators:
    """Makes replicators that look when they are told to, at a clock that stands still."""

    def __init__(self) -> None:
        self.now = NOW
        self._made: list[Replicator] = []

    def __call__(self, lake: Lake, *nodes: Process, **policy: Any) -> Replicator:
        given = Policy(**policy)
        replicator = Replicator(CatalogPoller(lake.settings, given, {}), given, lambda: self.now)
        self._made.append(replicator)
        replicator.poll()
        name_nodes(replicator, *nodes)
        return replicator

    def stop(self) -> None:
        for replicator in self._made:
            name_nodes(replicator)


def name_nodes(replicator: Replicator, *nodes: Process) -> None:
    """Tell a replicator which nodes there are."""
    named = [{"name": n.name, "address": n.address, "token": TOKEN} for n in nodes]
    replicator.verbs()["nodes"]({"nodes": named}, b"")


def caught_up(
    replicator: Replicator, node: str, *tables: str, seconds: float = 20.0
) -> dict[str, HotCopy]:
    """Look, and wait until a node has these tables as the catalog does."""
    replicator.poll()
    until = time.monotonic() + seconds
    while True:
        seen = replicator.lake_state()
        held = dict(seen.hot_copies.get(node, {}))
        if all(t in held and held[t].snapshot == seen.table_heads[t].snapshot for t in tables):
            return held
        assert time.monotonic() < until, (tables, held)
        time.sleep(0.01)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def held_rows(node: Process, table: str, snapshot: int) -> list[tuple[Any, ...]]:
    """All rows of a copy as Python values."""
    found = node.rows(f'SELECT * FROM "gold.{table}"', **{table: snapshot})
    return in_order(
        {n: datetime.fromisoformat(v) if n == 1 and v else v for n, v in enumerate(each)}
        for each in found
    )

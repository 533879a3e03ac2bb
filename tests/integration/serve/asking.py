"""Workers as real processes, asked as the router asks them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers import trino

from thermocline.errors import BadInput
from thermocline.lake.schema import shape_of
from thermocline.serve.engines.trino_client import TrinoEngine, TrinoFailed
from thermocline.serve.values import EncodedRows
from thermocline.serve.wire.protocol import BlockingChannel, Frame
from thermocline.sql.guard import guard
from thermocline.sql.translate import translate

if TYPE_CHECKING:
    from thermocline.lake import Lake

Asker = Callable[[str], Frame]


@contextlib.contextmanager
def worker(module: str, project: Path, timeout: float = 180) -> Iterator[BlockingChannel]:
    """A worker's process on a project, for the time of the block."""
    token = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory(prefix="thermo-") as folder:
        address = f"unix:{folder}/worker.sock"
        with subprocess.Popen(
            [sys.executable, "-m", module, "--project", project, "--address", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdin and process.stdout
            process.stdin.write(f"{token}\n{{}}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n", process.wait(10)
            line = BlockingChannel.open(address, token, timeout)
            try:
                yield line
            finally:
                line.close()
                process.stdin.close()
                process.wait(30)


def tables(lake: Lake, names: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What the views of a request stand for: each table at its newest snapshot."""
    found = {}
    for table, view in names.items():
        state = lake.state(table)
        found[view] = {
            "table": table,
            "snapshot": str(state.head()),
            "metadata": state.metadata_location,
        }
    return found


def asked(
    line: BlockingChannel,
    lake: Lake,
    sql: str,
    engine: Any = "duckdb",
    dialect: str = "duckdb",
    **more: Any,
) -> Frame:
    """Ask a worker: guarded, translated, at the newest snapshots."""
    question = guard(sql, dialect)
    views = {
        table: table if engine == "duckdb" else f"asked_{n}"
        for n, table in enumerate(question.tables)
    }
    said = translate(question, engine, views, columns(lake, views))
    return line.ask(request(said, tables(lake, views), **more))


def request(sql: str, tables: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A query as workers are told it."""
    return {"do": "query", "sql": sql, "tables": tables, "format": "json", "rows": 100_000,
            "bytes": 64 << 20, "seconds": 60, **more}  # fmt: skip


def columns(lake: Lake, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The columns of tables, as the replicator tells them."""
    return {
        table: {each.name: str(each.type) for each in shape_of(lake.state(table)).columns}
        for table in names
    }


@contextlib.contextmanager
def duckdb(lake: Lake, project: Path, dialect: str = "duckdb") -> Iterator[Asker]:
    """Somebody who asks the direct worker."""
    with worker("thermocline.serve.engines.direct", project) as line:
        yield lambda sql: asked(line, lake, sql, "duckdb", dialect)


@contextlib.contextmanager
def other(lake: Lake, project: Path, engine: str, dialect: str = "duckdb") -> Iterator[Asker]:
    """Somebody who asks Spark's worker, or a Trino server."""
    if engine == "spark":
        with worker("thermocline.serve.engines.spark", project) as line:
            yield lambda sql: asked(line, lake, sql, "spark", dialect)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        trino.serve(Path(folder), lake.settings) as server,
    ):
        asker = trino_asker(server, lake, dialect)
        until_it_scans(asker, "silver.facts")
        yield asker


def trino_asker(server: trino.Trino, lake: Lake, dialect: str = "duckdb") -> Asker:
    """Somebody who asks a Trino server through our client."""

    def ask(sql: str) -> Frame:
        question = guard(sql, dialect)
        names = {
            table: f"lake.{table} FOR VERSION AS OF {lake.state(table).head()}"
            for table in question.tables
        }
        said = translate(question, "trino", names, columns(lake, names))
        try:
            rows = asyncio.run(_queried(server, said))
        except BadInput as error:
            return Frame({"ok": False, "error": error.as_dict()["error"]}, b"")
        told = [[each.name, each.type, each.trino] for each in rows.columns]
        return Frame({"ok": True, "columns": told, "count": rows.count}, rows.body)

    return ask


def until_it_scans(ask: Asker, table: str) -> None:
    """Wait for a Trino, which for a while after its start knows of no node that could read."""
    until = time.monotonic() + 240
    while True:
        try:
            ask(f"select count(*) from {table}")
            return
        except (TrinoFailed, TimeoutError):
            assert time.monotonic() < until
            time.sleep(0.5)


async def _queried(server: trino.Trino, sql: str) -> EncodedRows:
    engine = TrinoEngine(server.url, "test", server.catalog)
    try:
        return await engine.query(sql, seconds=240, rows=100_000, bytes=64 << 20, format="json")
    finally:
        await engine.close()


def rows(frame: Frame) -> list[list[Any]]:
    """The rows of a JSON answer."""
    assert frame.error is None, frame.error
    return [json.loads(line) for line in bytes(frame.body).splitlines()]

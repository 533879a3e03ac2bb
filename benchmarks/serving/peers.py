"""The same queries on engines that read the files: DuckDB, DataFusion, Spark, Trino.

Each is started once and asked every question twice: the second time counts.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.serving.lake import TABLE
from thermocline.api.query import execute_query
from thermocline.lake import Lake

Asker = Callable[[str], int]
"""Runs one query and returns the number of rows."""


def medians(lake: Lake, questions: Sequence[str], left_out: Sequence[str]) -> dict[str, float]:
    """Return the median milliseconds per query on each peer. Leave out those that cannot run."""
    started: dict[str, Callable[[Lake], AbstractContextManager[Asker]]] = {
        "duckdb": _duckdb, "datafusion": _datafusion, "spark": _spark, "trino": _trino,
    }  # fmt: skip
    found, counts = {}, {}
    for name, start in started.items():
        if name in left_out:
            continue
        try:
            with start(lake) as ask:
                found[name], counts[name] = _timed(ask, questions)
        except (ImportError, RuntimeError) as error:
            print(f"without {name}: {error}", file=sys.stderr)
    different = {name for name in counts if counts[name] != counts["duckdb"]} if counts else set()
    assert not different, f"{different} returned other numbers of rows than DuckDB"
    return found


def _timed(ask: Asker, questions: Sequence[str]) -> tuple[float, list[int]]:
    times, counts = [], []
    for sql in questions:
        ask(sql)
        began = time.perf_counter()
        counts.append(ask(sql))
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times), counts


@contextmanager
def _duckdb(lake: Lake) -> Iterator[Asker]:
    yield lambda sql: len(execute_query(lake, sql, engine="duckdb").rows)


@contextmanager
def _spark(lake: Lake) -> Iterator[Asker]:
    yield lambda sql: len(execute_query(lake, sql, engine="spark").rows)


@contextmanager
def _datafusion(lake: Lake) -> Iterator[Asker]:
    """Open DataFusion over the Parquet files; without deletes, they are the table."""
    from datafusion import SessionContext

    context = SessionContext()
    folder = lake.iceberg(TABLE).location().removeprefix("file://")
    context.register_listing_table("views", f"{folder}/data/", file_extension=".parquet")

    def ask(sql: str) -> int:
        spoken = re.sub(r"current_date - (\d+)", r"current_date - interval '\1 day'", sql)
        batches = context.sql(spoken.replace(TABLE, "views")).collect()
        return sum(batch.num_rows for batch in batches)

    yield ask


@contextmanager
def _trino(lake: Lake) -> Iterator[Asker]:
    from tests.servers import trino as servers

    from thermocline.serve.engines.trino_client import TrinoEngine

    if missing := servers.missing():
        raise RuntimeError(missing)
    loop = asyncio.new_event_loop()
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.serve(Path(folder), lake.settings) as server,
    ):
        engine = TrinoEngine(server.url, "bench", server.catalog)

        def ask(sql: str) -> int:
            translated = _translated(sql, f"{server.catalog}.{TABLE}", lake)
            asked = engine.query(
                translated, seconds=120, rows=100_000, bytes=64 << 20, format="json"
            )
            return loop.run_until_complete(asked).count

        try:
            yield ask
        finally:
            loop.run_until_complete(engine.close())
            loop.close()


def _translated(sql: str, name: str, lake: Lake) -> str:
    """Return a query in Trino's dialect, as the router translates it."""
    from thermocline.lake.schema import shape_of
    from thermocline.serve.analysis.clock import pin_clock
    from thermocline.sql.guard import guard
    from thermocline.sql.translate import translate

    question = guard(sql)
    pin_clock(question.tree, datetime.now(UTC))
    state = lake.state(TABLE)
    columns = {TABLE: {each.name: str(each.type) for each in shape_of(state).columns}}
    names = {TABLE: f"{name} FOR VERSION AS OF {state.head()}"}
    return translate(question, "trino", names, columns)

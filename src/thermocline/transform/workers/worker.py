"""Doing a piece of work: DuckDB computes it, and its files are handed over by group commit."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.errors import BadInput
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft import Draft
from thermocline.lake.run_locks import RunLock
from thermocline.transform.duck import append_overwrite
from thermocline.transform.duck.executor import DuckExecutor
from thermocline.transform.duck.session import Unable
from thermocline.transform.models import Model
from thermocline.transform.run_plan import Way
from thermocline.transform.step import compute
from thermocline.transform.workers.work_unit import Done, Piece

if TYPE_CHECKING:
    from thermocline.config import Settings
    from thermocline.lake import Lake

OWN = 400 << 20
"""What a worker needs beside DuckDB: libraries, and rows on their way into files."""
LEAST = 128 << 20
SLACK = 512 << 20


class OutOfMemory(Unable):
    """A piece that does not fit into the memory of its worker; nothing of it was committed."""

    code = "out-of-memory"


class Worker:
    """Does pieces, one after the other, in one DuckDB connection."""

    def __init__(
        self, lake: Lake, models: Mapping[str, Model], executor: DuckExecutor | None = None
    ) -> None:
        self._lake = lake
        self._models = models
        self._executor = executor or DuckExecutor(lake)

    def warm(self) -> None:
        """Load and open all that a piece needs, Arrow's pool of memory among it."""
        import pyarrow as pa

        pa.array(range(1000)).cast(pa.string())
        self._executor.session.connection.execute("SELECT 1")
        for table in self._lake.tables()[:1]:
            self._lake.iceberg(table)

    def do(self, piece: Piece) -> Done:
        """Compute a piece and put it on its branch; says when it is committed.

        Doing it again is harmless: it lands once. Raises OutOfMemory where it needs more than this
        worker has, Unable where DuckDB cannot compute it.
        """
        model = self._models.get(piece.table)
        if model is None:
            raise BadInput(f"There is no model of {piece.table}.", "Is it another project's piece?")
        began, cpu = time.monotonic(), time.process_time()
        alive = RunLock(self._lake.settings.project, piece.run)
        try:
            done = self._parts(model, piece) if piece.parts else self._whole(model, piece)
        except MemoryError as error:
            raise OutOfMemory(f"{piece.table}: no memory left") from error
        except Unable as error:
            # Of a result that breaks off, only the text is left to tell.
            if "Out of Memory" in error.cause or "bad_alloc" in error.cause:
                raise OutOfMemory(error.cause) from error
            raise
        finally:
            alive.release()
        return replace(
            done,
            seconds=round(time.monotonic() - began, 3),
            cpu_seconds=round(time.process_time() - cpu, 3),
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        )

    def close(self) -> None:
        """Let go of the engine."""
        self._executor.close()
        self._lake.close()

    def _parts(self, model: Model, piece: Piece) -> Done:
        from thermocline.lake.groupcommit import CommitEntry, ReplacePartitions
        from thermocline.lake.overwrite import of_partitions

        assert piece.parts is not None
        crash_point("worker.begun")
        inputs = self._executor.sql_inputs(model, piece.spans)
        try:
            rows = append_overwrite.ready(
                self._executor.session, inputs.only(piece.parts), model.contract
            )
            table = self._lake.iceberg(piece.table)
            files, records = of_partitions(table, rows, piece.parts.as_dicts())
        except self._executor.failures as error:
            raise self._executor.failed(error, model.contract) from error
        finally:
            inputs.close()
        entry = CommitEntry.of(
            table,
            piece.key,
            files,
            replaces=ReplacePartitions.named(table.spec().spec_id, records or ()),
            branch=piece.branch,
            properties={bookmarks.RUN: piece.run, bookmarks.OPERATION: "partitions"},
        )
        crash_point("worker.written")
        # Files of an entry that fails stay: an orphan costs a little, a file too few the data.
        snapshot = self._lake.group_commit.commit(entry)
        crash_point("worker.landed")
        return Done(snapshot, sum(file.record_count for file in files), len(files))

    def _whole(self, model: Model, piece: Piece) -> Done:
        draft = Draft(self._lake, piece.run, piece.whole["into"])
        for table, base in piece.whole["bases"].items():
            draft.resume(table, base)
        way, bookmark = Way(piece.whole["way"]), piece.whole["bookmark"]
        snapshot, took, detail = compute(self._executor, model, draft, way, piece.spans, bookmark)
        return Done(snapshot, way=str(took), detail=detail)


def limited(settings: Settings, memory: int, threads: int) -> Settings:
    """The settings of a worker that may take so much memory in all."""
    share = f"{max(memory - OWN, LEAST) >> 20}MiB"
    return replace(settings, duckdb=replace(settings.duckdb, memory_limit=share, threads=threads))


def brake(memory: int) -> None:
    """Have the system refuse this process what is far beyond its share.

    What its libraries have mapped by now is left out, and something for threads to come: both
    reserve much that they never use.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return  # not Linux: DuckDB's own limit has to do
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    most = (int(lines["VmData"].split()[0]) << 10) + memory + SLACK
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))

"""Compute work units: DuckDB computes the rows, and group commit commits the files."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.contract import load_contracts
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.errors import BadInput
from thermocline.lake import Lake
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft import Draft
from thermocline.lake.run_locks import RunLock
from thermocline.transform.duck import append_overwrite
from thermocline.transform.duck.executor import DuckExecutor
from thermocline.transform.models import Model, load_models
from thermocline.transform.run_plan import RefreshMode
from thermocline.transform.step import compute_step
from thermocline.transform.workers.work_unit import WorkResult, WorkUnit

if TYPE_CHECKING:
    from thermocline.config import Settings

OVERHEAD_BYTES = 400 << 20
"""Memory of a worker outside of DuckDB: libraries, and rows that are being written."""
MIN_BYTES = 128 << 20
SLACK_BYTES = 512 << 20


class OutOfMemory(UnsupportedByDuckDB):
    """A work unit exceeds the memory of its worker; nothing was committed."""

    code = "out-of-memory"


class PartitionWorker:
    """Computes work units, one after the other, in one DuckDB connection."""

    def __init__(
        self, lake: Lake, models: Mapping[str, Model], executor: DuckExecutor | None = None
    ) -> None:
        self._lake = lake
        self._models = models
        self._executor = executor or DuckExecutor(lake)

    def warm_up(self) -> None:
        """Load and open everything that a unit needs, including Arrow's memory pool."""
        import pyarrow as pa

        pa.array(range(1000)).cast(pa.string())
        self._executor.session.connection.execute("SELECT 1")
        for table in self._lake.tables()[:1]:
            self._lake.iceberg(table)

    def compute(self, unit: WorkUnit) -> WorkResult:
        """Compute a unit and commit it to its branch.

        It is idempotent: a unit that is computed twice lands once. Raises OutOfMemory if it
        exceeds the worker's memory, and UnsupportedByDuckDB if DuckDB cannot compute it.
        """
        model = self._models.get(unit.table)
        if model is None:
            raise BadInput(
                f"There is no model of {unit.table}.", "Is the work unit of another project?"
            )
        began, cpu = time.monotonic(), time.process_time()
        lock = RunLock(self._lake.settings.project, unit.run)
        try:
            done = (
                self._compute_parts(model, unit) if unit.parts else self._compute_step(model, unit)
            )
        except MemoryError as error:
            raise OutOfMemory(f"{unit.table}: no memory left") from error
        except UnsupportedByDuckDB as error:
            # For a result that breaks off, only the error's text names the cause.
            if "Out of Memory" in error.cause or "bad_alloc" in error.cause:
                raise OutOfMemory(error.cause) from error
            raise
        finally:
            lock.release()
        return replace(
            done,
            seconds=round(time.monotonic() - began, 3),
            cpu_seconds=round(time.process_time() - cpu, 3),
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        )

    def close(self) -> None:
        """Close the engine and the lake."""
        self._executor.close()
        self._lake.close()

    def _compute_parts(self, model: Model, unit: WorkUnit) -> WorkResult:
        from thermocline.lake.groupcommit import CommitEntry, ReplacePartitions
        from thermocline.lake.overwrite import write_partitions

        assert unit.parts is not None
        crash_point("worker.begun")
        inputs = self._executor.open_sql_inputs(model, unit.spans)
        try:
            rows = append_overwrite.prepare_rows(
                self._executor.session, inputs.read_parts(unit.parts), model.contract
            )
            table = self._lake.iceberg(unit.table)
            files, records = write_partitions(table, rows, unit.parts.as_dicts())
        except self._executor.failures as error:
            raise self._executor.explain_failure(error, model.contract) from error
        finally:
            inputs.close()
        entry = CommitEntry.of(
            table,
            unit.key,
            files,
            replaces=ReplacePartitions.named(table.spec().spec_id, records or ()),
            branch=unit.branch,
            properties={bookmarks.RUN: unit.run, bookmarks.OPERATION: "partitions"},
        )
        crash_point("worker.written")
        # Files of a failed entry stay: an orphan costs little, a missing file loses data.
        snapshot = self._lake.group_commit.commit(entry)
        crash_point("worker.landed")
        return WorkResult(snapshot, sum(file.record_count for file in files), len(files))

    def _compute_step(self, model: Model, unit: WorkUnit) -> WorkResult:
        draft = Draft(self._lake, unit.run, unit.whole["into"])
        for table, base in unit.whole["bases"].items():
            draft.resume(table, base)
        refresh_mode, bookmark = RefreshMode(unit.whole["refresh_mode"]), unit.whole["bookmark"]
        snapshot, took, detail = compute_step(
            self._executor, model, draft, refresh_mode, unit.spans, bookmark
        )
        return WorkResult(snapshot, refresh_mode=str(took), detail=detail)


@contextmanager
def open_worker(settings: Settings, memory: int, threads: int = 1) -> Iterator[PartitionWorker]:
    """Open a worker of a project that may use `memory` bytes; close it at the end."""
    models = load_models(
        settings.project / "models", load_contracts(settings.project / "contracts")
    )
    worker = PartitionWorker(Lake(limit_settings(settings, memory, threads)), models)
    try:
        yield worker
    finally:
        worker.close()


def limit_settings(settings: Settings, memory: int, threads: int) -> Settings:
    """Return the settings of a worker that may use `memory` bytes in total."""
    share = f"{max(memory - OVERHEAD_BYTES, MIN_BYTES) >> 20}MiB"
    return replace(settings, duckdb=replace(settings.duckdb, memory_limit=share, threads=threads))


def limit_memory(memory: int) -> None:
    """Let the operating system refuse memory far above the worker's share.

    Memory that libraries have mapped by now is not counted, plus a slack for later threads: both
    reserve much that they never use.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return  # not Linux: only DuckDB's own limit applies
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    most = (int(lines["VmData"].split()[0]) << 10) + memory + SLACK_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))

"""A pool of worker processes on this machine, fed from a queue of work units.

There are never more writers than processes. A process that dies is replaced, and its unit is
retried. A unit that exceeds its worker's memory is retried by a single worker that has the memory
of all; if it exceeds that too, its outcome is an error, and the caller may use another engine.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from thermocline import interrupt, telemetry
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.errors import Permanent, ThermoclineError, Transient
from thermocline.transform.workers.partition_worker import OutOfMemory
from thermocline.transform.workers.work_unit import WorkResult, WorkUnit

if TYPE_CHECKING:
    from thermocline.config import Settings

MAX_DEATHS, MAX_TRIES = 20, 5
"""How often a unit may lose its worker, or fail with a transient error, before it fails."""


class WorkerFailed(Permanent):
    """An error that a worker process reported."""


@dataclass
class UnitCounters:
    """Progress of the work units, in partitions; all threads of a pool share it."""

    total: int
    done: int = 0
    failed: int = 0
    running: int = 0
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        waiting = self.total - self.done - self.failed - self.running
        parts = [f"{waiting:,} queued", f"{self.running:,} running", f"{self.done:,} done"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.done and waiting + self.running:
            left = (time.monotonic() - self.began) / self.done * (waiting + self.running)
            parts.append(f"about {left:,.0f} s left")
        return " · ".join(parts)


@dataclass(frozen=True)
class UnitOutcome:
    """A work unit with its result or its error."""

    unit: WorkUnit
    done: WorkResult | None = None
    error: ThermoclineError | None = None

    @property
    def needs_spark(self) -> bool:
        """Whether DuckDB cannot compute it, so that Spark may."""
        return isinstance(self.error, UnsupportedByDuckDB)

    @property
    def exceeds_worker(self) -> bool:
        """Whether it exceeded its worker's memory."""
        return isinstance(self.error, OutOfMemory)


ProgressCallback = Callable[[UnitOutcome | None, UnitCounters], None]
"""Called whenever a unit starts (with None) or ends."""


class WorkerPool:
    """The worker processes of a run, as many as the settings allow; steps share them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._group: _ProcessGroup | None = None

    def compute(
        self,
        units: Sequence[WorkUnit],
        *,
        count: int | None = None,
        on_progress: ProgressCallback = lambda *_: None,
    ) -> list[UnitOutcome]:
        """Compute all units and return their outcomes."""
        settings = self._settings.workers
        count = min(count or settings.processes, len(units)) or 1
        counters = UnitCounters(sum(map(_count_partitions, units)))
        if self._group is None:
            self._group = _ProcessGroup(self._settings, settings.bytes, 1)
        outcomes = self._group.compute(units, count, counters, on_progress)
        too_large = [outcome.unit for outcome in outcomes if outcome.exceeds_worker]
        if not too_large:
            return outcomes
        counters.failed -= sum(map(_count_partitions, too_large))
        self.close()  # frees their memory
        with closing(
            _ProcessGroup(self._settings, settings.bytes * max(count, 2), count)
        ) as single:
            retried = single.compute(too_large, 1, counters, on_progress)
        return [outcome for outcome in outcomes if not outcome.exceeds_worker] + retried

    def close(self) -> None:
        """End the worker processes."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _count_partitions(unit: WorkUnit) -> int:
    return len(unit.labels()) or 1


class _ProcessGroup:
    """Worker processes with equal memory limits, each fed by a thread."""

    def __init__(self, settings: Settings, memory: int, threads: int) -> None:
        self._command = [
            *(sys.executable, "-m", "thermocline.transform.workers", str(settings.project)),
            *(("--profile", settings.profile) if settings.profile else ()),
            *("--memory", str(memory), "--threads", str(threads)),
        ]
        self._processes: list[_WorkerProcess] = []
        self._lock = threading.Lock()

    def compute(
        self,
        units: Iterable[WorkUnit],
        count: int,
        counters: UnitCounters,
        on_progress: ProgressCallback,
    ) -> list[UnitOutcome]:
        """Compute the units in their order with `count` processes."""
        while len(self._processes) < count:
            self._processes.append(_WorkerProcess(self._command))
        waiting, outcomes = deque(units), list[UnitOutcome]()

        def feed(process: _WorkerProcess) -> None:
            while True:
                with self._lock:
                    if not waiting:
                        return
                    unit = waiting.popleft()
                    counters.running += _count_partitions(unit)
                    on_progress(None, counters)
                outcome = _compute_with_retries(process, unit)
                with self._lock:
                    counters.running -= _count_partitions(unit)
                    counters.done += _count_partitions(unit) if outcome.done else 0
                    counters.failed += _count_partitions(unit) if outcome.error else 0
                    outcomes.append(outcome)
                    on_progress(outcome, counters)

        threads = [
            threading.Thread(target=feed, args=[process], daemon=True)
            for process in self._processes[:count]
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():  # a timeout, so that Ctrl-C gets through
                    thread.join(0.2)
        except BaseException:
            waiting.clear()
            for process in self._processes:
                process.kill()
            raise
        return outcomes

    def close(self) -> None:
        """Close the processes: each ends when its input does."""
        for process in self._processes:
            process.close()


def _compute_with_retries(process: _WorkerProcess, unit: WorkUnit) -> UnitOutcome:
    """Compute a unit; retry where a retry may help."""
    deaths = tries = 0
    while True:
        answer = process.compute(unit)
        if answer is None:
            deaths += 1
            if process.has_exited and deaths >= MAX_TRIES:
                return UnitOutcome(unit, error=WorkerFailed(
                    f"No worker can be started: {process.death_cause}",
                    "Start one by hand to see why: thermo work.",
                ))  # fmt: skip
            if deaths < (2 if process.was_aborted else MAX_DEATHS):
                continue
            return UnitOutcome(unit, error=OutOfMemory(
                f"{unit.table}: its worker died {deaths} times, {process.death_cause}"
            ))  # fmt: skip
        tries += 1
        if "error" in answer and answer["error"]["transient"] and tries < MAX_TRIES:
            time.sleep(0.2 * tries)
            continue
        return parse_answer(unit, answer)


def parse_answer(unit: WorkUnit, answer: dict[str, Any]) -> UnitOutcome:
    """Parse a worker's answer into the outcome of a unit."""
    if "done" in answer:
        return UnitOutcome(unit, WorkResult(**answer["done"]))
    return UnitOutcome(unit, error=parse_error(answer["error"]))


def parse_error(reported: dict[str, Any]) -> ThermoclineError:
    """Rebuild the error that a worker reported."""
    for known in (OutOfMemory, UnsupportedByDuckDB):
        if reported["code"] == known.code:
            return known(reported["cause"], reported["next_step"])
    kind = Transient if reported["transient"] else WorkerFailed
    error = kind(reported["cause"], reported["next_step"], **reported["details"])
    error.code = reported["code"]
    return error


class _WorkerProcess:
    """One worker process, started on first use and restarted whenever it has died."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._running: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._stopped = False
        self.death_cause = ""
        self.has_exited = False
        """Whether it ended by itself rather than by a signal."""
        self.was_aborted = False
        """Whether a library aborted it, as libraries do when memory runs out."""

    def compute(self, unit: WorkUnit) -> dict[str, Any] | None:
        """Send a unit to the process and return its answer; None if the process died."""
        if self._stopped:
            return Permanent(
                "The work was interrupted.", "Run the command again to resume."
            ).as_dict()
        if self._running is None:
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
            self._running = interrupt.start_child(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
            )
        process = self._running
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(unit.as_dict()) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line.endswith("\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = process.wait()
        self.has_exited = code >= 0
        self.was_aborted = code in {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
        self.death_cause = f"by signal {-code}" if code < 0 else self._last_error(code)
        self.close()
        return None

    def _last_error(self, code: int) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        text = telemetry.redact(telemetry.one_line(lines[-1][:300])) if lines else ""
        return text or f"it ended with code {code}"

    def kill(self) -> None:
        """Kill the process now, even while it computes."""
        self._stopped = True
        process = self._running
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Close the process's input, and wait until it ends."""
        process, self._running = self._running, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    if stream is not None:
                        stream.close()
            process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

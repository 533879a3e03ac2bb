"""Many writer processes on one table, forked from a parent that has loaded all libraries.

`python -m tests.contract.concurrent_writers PROJECT JOB` runs a job (JSON, see `Job`) and prints
its results. A killed writer is restarted and continues with its first unacknowledged key, with new
files, as a real writer would.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyiceberg.table import Table
from tests.leases import find_leaseholder

from thermocline.config import load_settings
from thermocline.contract import Column, Contract, PartitionField
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.groupcommit import CommitEntry, ReplaceFiles

TABLE = "silver.concurrent"
CONTRACT = Contract(
    TABLE,
    (
        Column("id", Primitive("long"), True),
        Column("writer", Primitive("int"), True),
        Column("payload", Primitive("string")),
    ),
    partition=(PartitionField("id", "bucket", 2),),
)
PER_WRITER = 100_000
_WORTH_JOINING = 20

Answer = tuple[str, int, float, float]
"""A key, its snapshot, the seconds that the commit took, and when the answer came."""


@dataclass(frozen=True)
class Job:
    """A job of concurrent writers.

    `first` are environment variables of each writer's first run. `kills` are kills with SIGKILL,
    spread over the commits, every other one of a leaseholder if there is one, or all of them with
    `holders_only`. Writers run in sequence unless they run `together`. `freeze` stops the first
    writer until the others have finished; they use its keys, too. `compact` adds a process that
    compacts continuously. With `peer_seconds` writers append with PyIceberg alone, for at most so
    many seconds.
    """

    writers: int
    commits: int
    first: list[dict[str, str]] = field(default_factory=list)
    together: bool = True
    freeze: bool = False
    kills: int = 0
    holders_only: bool = False
    compact: bool = False
    peer_seconds: float = 0.0
    seed: int = 1
    timeout: float = 120.0


@dataclass(frozen=True)
class WriterResults:
    """The results of a job: each writer's answers, and counts of events."""

    answers: dict[int, list[Answer]]
    deaths: int
    holders_killed: int
    compactions: int
    failures: list[str]


def rows_of(writer: int, number: int) -> pa.Table:
    """Return the row of a commit."""
    row = {"id": writer * PER_WRITER + number, "writer": writer, "payload": "x" * 20}
    return pa.Table.from_pylist([row])


def key(writer: int, number: int) -> str:
    """Return the key of a writer's commit."""
    return f"w{writer}-{number}"


def run(project: Path, job: Job, environ: dict[str, str], timeout: float = 300) -> WriterResults:
    """Run a job in separate processes."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.contract.concurrent_writers",
            project,
            json.dumps(asdict(job)),
        ],
        env={**environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    answers = {int(writer): list(map(tuple, some)) for writer, some in results["answers"].items()}
    return WriterResults(**{**results, "answers": answers})


class WriterParent:
    """The parent process of the writers. It has no threads, so it may fork at any time."""

    def __init__(self, project: Path, job: Job) -> None:
        self._project = project
        self._job = job
        self._notes = project / f"writers-{os.getpid()}"
        self._notes.mkdir()
        self._random = random.Random(job.seed)
        self._running: dict[int, int] = {}
        self._has_leases = load_settings(project).catalog.type != "rest"
        self._kills = self._deaths = self._holders_killed = 0

    def run(self) -> WriterResults:
        """Run the job."""
        compactor = [self._fork(self._compact)] if self._job.compact else []
        try:
            self._freeze() if self._job.freeze else self._gather()
        finally:
            for pid in (*compactor, *self._running):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return WriterResults(
            {writer: self._answers(writer) for writer in range(self._job.writers)},
            self._deaths,
            self._holders_killed,
            len(list(self._notes.glob("compaction-*"))),
            [path.read_text() for path in sorted(self._notes.glob("failed-*"))],
        )

    def _gather(self) -> None:
        for writer in range(self._job.writers):
            self._start(writer, self._job.first[writer] if self._job.first else {})
            if not self._job.together:
                self._watch()
        self._watch()

    def _freeze(self) -> None:
        self._start(0, self._job.first[0])
        frozen = next(iter(self._running))
        _, status = os.waitpid(frozen, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the first writer did not reach its point"
        del self._running[frozen]
        for writer in range(1, self._job.writers):
            self._start(writer, {})
        self._watch()
        os.kill(frozen, signal.SIGCONT)
        os.waitpid(frozen, 0)

    def _start(self, writer: int, environ: dict[str, str]) -> None:
        def write() -> None:
            os.environ.update(environ)
            (self._append if self._job.peer_seconds else self._write)(writer)

        self._running[self._fork(write)] = writer

    def _fork(self, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            work()
        except BaseException as error:  # the parent's stack must not go on in the child
            (self._notes / f"failed-{os.getpid()}").write_text(repr(error))
        finally:
            os._exit(0)

    def _watch(self) -> None:
        """Wait for the writers, kill as the job says, and start again who was killed."""
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            writer = self._running.pop(pid, None)
            if writer is not None and os.WIFSIGNALED(status):
                self._deaths += 1
                self._start(writer, {})
            if self._is_kill_due():
                self._kill()
            if not pid:
                time.sleep(0.01)

    def _is_kill_due(self) -> bool:
        """Whether the share of commits that have an answer is that of the kills so far."""
        if self._kills >= self._job.kills or not self._running:
            return False
        answered = sum(len(self._answers(writer)) for writer in range(self._job.writers))
        wanted = self._job.writers * self._job.commits
        return answered * (self._job.kills + 1) >= wanted * (self._kills + 0.5)

    def _kill(self) -> None:
        """Kill a writer, unless a leaseholder is due and there is none now."""
        only = self._job.holders_only
        wants_holder = self._has_leases and (only or self._kills % 2 == 0)
        victim = find_leaseholder(load_settings(self._project)) if wants_holder else None
        if victim in self._running:
            self._holders_killed += 1
        elif wants_holder:
            return
        else:
            victim = self._random.choice(sorted(self._running))
        self._kills += 1
        os.kill(victim, signal.SIGKILL)

    def _write(self, writer: int) -> None:
        """Commit key by key, from the first that has no answer yet."""
        lake = Lake(load_settings(self._project))
        table = self._ready(lake, writer)
        owners = range(writer + 1) if self._job.freeze else [writer]
        for number in range(len(self._answers(writer)), self._job.commits):
            for owner in owners:
                entry = CommitEntry.of(
                    table, key(owner, number), write_files(table, rows_of(owner, number))
                )
                began = time.perf_counter()
                snapshot = lake.group_commit.commit(entry, self._job.timeout)
                seconds = time.perf_counter() - began
            self._note(writer, number, snapshot, seconds)

    def _append(self, writer: int) -> None:
        """Plain appends, which PyIceberg tries again as it does, and the writer after that."""
        from pyiceberg.exceptions import CommitFailedException

        table = self._ready(Lake(load_settings(self._project)), writer)
        schema, until = table.schema().as_arrow(), time.time() + self._job.peer_seconds
        for number in range(self._job.commits):
            began = time.perf_counter()
            while time.time() < until:
                try:
                    table.append(rows_of(writer, number).cast(schema))
                except (CommitFailedException, ValueError):
                    table.refresh()
                    continue
                self._note(writer, number, 0, time.perf_counter() - began)
                break

    def _compact(self) -> None:
        """Compact the files of each partition, repeatedly."""
        lake = Lake(load_settings(self._project))
        for number in count():
            table = lake.iceberg(TABLE)
            head = table.current_snapshot()
            old = [task.file for task in table.scan().plan_files()]
            if head is not None and len(old) > _WORTH_JOINING:
                new = write_files(table, table.scan(snapshot_id=head.snapshot_id).to_arrow())
                name = f"compaction-{number}"
                replaced = ReplaceFiles.of(old, head.snapshot_id)
                lake.group_commit.commit(CommitEntry.of(table, name, new, replaces=replaced), 600)
                (self._notes / name).touch()
            time.sleep(0.5)

    def _ready(self, lake: Lake, writer: int) -> Table:
        """The table, once all who work together have opened it: starting up counts for nobody."""
        table = lake.iceberg(TABLE)
        (self._notes / f"ready-{writer}").touch()
        others = self._job.writers if self._job.together and not self._job.freeze else 0
        while len(list(self._notes.glob("ready-*"))) < others:
            time.sleep(0.02)
        return table

    def _note(self, writer: int, number: int, snapshot: int, seconds: float) -> None:
        answer: Answer = (key(writer, number), snapshot, seconds, time.time())
        with (self._notes / f"writer-{writer}").open("a") as notes:
            notes.write(json.dumps(answer) + "\n")

    def _answers(self, writer: int) -> list[Answer]:
        path = self._notes / f"writer-{writer}"
        return [tuple(json.loads(line)) for line in path.open()] if path.exists() else []


def preload() -> None:
    """Load what writers need, before there are writers."""
    import psycopg2  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pyiceberg.catalog.rest
    import pyiceberg.catalog.sql
    import pyiceberg.io.pyarrow  # noqa: F401

    import thermocline.lake.groupcommit.committer
    import thermocline.lake.groupcommit.optimistic_commit  # noqa: F401


def main(arguments: Sequence[str]) -> None:
    """Run one job."""
    preload()
    outcome = WriterParent(Path(arguments[0]), Job(**json.loads(arguments[1]))).run()
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main(sys.argv[1:])

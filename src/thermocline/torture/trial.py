"""A trial: events are sent, the pipeline is started, something is done to it, and so on."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline import api
from thermocline.errors import BadInput, ThermoclineError, Transient
from thermocline.telemetry import SILENT, Progress, one_line, redact
from thermocline.torture import project as projects
from thermocline.torture.lanes import FilesLane, KafkaLane, Lane
from thermocline.torture.plan import Deed, Round, plan
from thermocline.torture.project import Scratch
from thermocline.torture.verdict import LaneVerdict, Verdict, judge, rows_of
from thermocline.torture.worker import Worker
from thermocline.torture.workload import Workload

if TYPE_CHECKING:
    from thermocline.api import Lakehouse

SECONDS_A_ROUND = 20
SLICE_EVENTS = 10_000
PORTIONS, PAUSE_SECONDS = 4, 1.0
"""A round's events come little by little, so that the process is met in more than one batch."""

MANY_BATCHES = 1_000_000
ATTEMPTS_TO_SETTLE = 5


@dataclass(frozen=True)
class Order:
    """What is asked of a trial. `restarts` restart a server each: a command, or a function."""

    minutes: float = 5.0
    seed: int = 1
    kills: int | None = None
    events: int = 100_000
    lanes: tuple[str, ...] = ()
    restarts: tuple[str | Callable[[], None], ...] = ()
    keep: bool = False
    profile: str | None = None

    @property
    def rounds(self) -> int:
        """How many times something is done to the pipeline, if the time is enough."""
        return self.kills or max(1, int(self.minutes * 60 / SECONDS_A_ROUND))


@dataclass
class _Record:
    """What has been done so far."""

    deeds: Counter[str] = field(default_factory=Counter)
    in_vain: int = 0
    surprises: list[str] = field(default_factory=list)


def torture(house: Lakehouse, order: Order, *, progress: Progress = SILENT) -> Verdict:
    """Send known events through the project's own pipeline while it is killed again and again.

    The project's settings are used, and its brokers; its tables are not touched. What the trial
    makes is removed at the end, unless it failed or is to be kept.
    """
    began = time.monotonic()
    name = f"s{order.seed}_{int(time.time()):x}"
    lanes = _lanes(house, order, name)
    folder = house.settings.project / ".thermocline" / "torture" / name
    scratch = projects.write(house.settings, folder, name, lanes)
    with contextlib.ExitStack() as made:
        for lane in lanes:
            lane.begin(folder)
            made.callback(lane.end)
        trial = _Trial(scratch, order, progress, began + order.minutes * 60)
        verdict = trial.run(began)
        if not verdict.passed or order.keep:
            made.pop_all()  # what is there is the evidence
    if verdict.passed and not order.keep:
        _remove(scratch, order.profile)
    return verdict


class _Trial:
    def __init__(self, scratch: Scratch, order: Order, progress: Progress, until: float) -> None:
        self._scratch = scratch
        self._order = order
        self._progress = progress
        self._until = until
        self._log = scratch.folder / "worker.log"
        self._done = _Record()
        self._sender = Sender(scratch.lanes)
        settings = api.open(scratch.folder, order.profile).settings
        self._catalog = Path(settings.catalog.uri) if settings.catalog.type == "sqlite" else None

    def run(self, began: float) -> Verdict:
        order = self._order
        rounds = plan(
            order.seed, order.rounds, order.events,
            lockable=self._catalog is not None, servers=len(order.restarts),
        )  # fmt: skip
        self._progress.step("torture", total=len(rounds))
        with self._sender:
            for each in rounds:
                if time.monotonic() > self._until:
                    break
                self._sender.send(each.events, PORTIONS)
                self._round(each)
                self._progress.advance(1, str(each))
            self._sender.send_all(order.events)
        self._progress.done(f"{sum(self._done.deeds.values())} times")
        lanes = self._settle()
        return Verdict(
            order.seed,
            round(time.monotonic() - began, 1),
            dict(self._done.deeds),
            len(rounds),
            self._done.in_vain,
            lanes,
            tuple(self._done.surprises),
        )

    def _round(self, each: Round) -> None:
        """One life of the process. However it goes, nothing of it is left running.

        Only what was really done counts: a process may have ended before, or never come to the
        point where it was to die.
        """
        crash_at = f"{each.point}:{each.nth}" if each.deed is Deed.CRASH else ""
        worker = Worker(self._arguments(), self._log, crash_at)
        done = False
        try:
            if each.deed is Deed.CRASH:
                worker.wait_for(MANY_BATCHES)
                done = worker.code == -signal.SIGKILL
            elif worker.wait_for(each.batches):
                time.sleep(each.delay)
                done = worker.running
                if done:
                    self._do(each, worker)
            if not done or each.deed in {Deed.LOCK, Deed.RESTART}:
                self._look_at_the_end(each, worker)
        finally:
            worker.kill()
        if done:
            self._done.deeds[str(each.deed)] += 1
        else:
            self._done.in_vain += 1

    def _do(self, each: Round, worker: Worker) -> None:
        match each.deed:
            case Deed.KILL:
                worker.kill()
            case Deed.KILL_PYTHON:
                worker.kill_python()
            case Deed.KILL_JVM:
                worker.kill_jvm()
                worker.wait(each.delay)
            case Deed.LOCK if self._catalog is not None:
                with _locked(self._catalog):
                    time.sleep(each.hold)
                worker.wait_for(worker.batches + 1)  # it is to go on by itself
            case Deed.RESTART:
                _restart(self._order.restarts[each.which])
                worker.wait_for(worker.batches + 1)

    def _look_at_the_end(self, each: Round, worker: Worker) -> None:
        """An end that nobody brought about is told, unless trying again helps."""
        if worker.code not in {None, Transient.exit_code}:
            said = redact(one_line(worker.said))[:300]
            self._done.surprises.append(f"round {each.number}: ended with {worker.code}: {said}")

    def _arguments(self) -> list[str]:
        scratch = self._scratch
        profile = ["--profile", self._order.profile] if self._order.profile else []
        then = [part for lane in scratch.lanes for part in ("--then", scratch.silver(lane))]
        sources = [scratch.source(lane) for lane in scratch.lanes]
        return [
            "--project", str(scratch.folder), *profile, "--json", "stream", *sources, *then,
            "--every", "0.5s",
        ]  # fmt: skip

    def _settle(self) -> tuple[LaneVerdict, ...]:
        """Let everything land that was sent, undisturbed, and judge it."""
        house = api.open(self._scratch.folder, self._order.profile)
        tables = [self._scratch.bronze(lane) for lane in self._scratch.lanes]
        disturbed = [rows_of(house.lake, table) for table in tables]
        self._progress.step("settle")
        silver = [self._scratch.silver(lane) for lane in self._scratch.lanes]
        for attempt in range(1, ATTEMPTS_TO_SETTLE + 1):
            try:
                house.ingest()
                house.run(silver)
                break
            except ThermoclineError as error:
                if not error.transient or attempt == ATTEMPTS_TO_SETTLE:
                    raise
        self._progress.done()
        self._progress.step("compare")
        found = tuple(
            replace(judge(house.lake, self._scratch, lane, self._sender.sent(lane)), disturbed=rows)
            for lane, rows in zip(self._scratch.lanes, disturbed, strict=True)
        )
        self._progress.done()
        house.close()
        return found


class Sender:
    """Sends each lane's events from a thread of its own, so that they come while others land."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._sent = {lane.kind: 0 for lane in lanes}
        self._wanted = 0
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *error: object) -> None:
        self._join()

    def send(self, more: int, portions: int = 1) -> None:
        """Send so many more events down every lane, in portions, and return at once."""
        self._join()
        goals = [self._wanted + more * n // portions for n in range(1, portions + 1)]
        self._wanted += more
        self._thread = threading.Thread(target=self._run, args=(goals,), daemon=True)
        self._thread.start()

    def send_all(self, events: int) -> None:
        """Send what is left of all events, and wait until that is done."""
        self.send(events - self._wanted)
        self._join()

    def sent(self, lane: Lane) -> int:
        """How many events of a lane its source has."""
        return self._sent[lane.kind]

    def _run(self, portions: Sequence[int]) -> None:
        try:
            for number, wanted in enumerate(portions):
                if number:
                    time.sleep(PAUSE_SECONDS)
                self._send_to(wanted)
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            self._failure = error

    def _send_to(self, wanted: int) -> None:
        for lane in self._lanes:
            while (first := self._sent[lane.kind]) < wanted:
                last = min(first + SLICE_EVENTS, wanted)
                lane.send(lane.workload.between(first, last))
                self._sent[lane.kind] = last

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


def _lanes(house: Lakehouse, order: Order, name: str) -> list[Lane]:
    """Files always; Kafka where a source of the project names a broker."""
    workload = Workload(order.seed, order.events)
    brokers = [source.reach for source in house.sources.values() if source.kind == "kafka"]
    makers: dict[str, Callable[[], Lane]] = {"files": lambda: FilesLane(workload)}
    if brokers:
        reach = brokers[0]
        makers["kafka"] = lambda: KafkaLane(
            workload, f"torture-{name}", reach.servers, reach.options
        )
    unknown = [lane for lane in order.lanes if lane not in makers]
    if unknown:
        raise BadInput(
            f"There is no lane {', '.join(unknown)} here.",
            f"There are: {', '.join(makers)}. Kafka needs a source of kind kafka in the project.",
        )
    return [make() for lane, make in makers.items() if not order.lanes or lane in order.lanes]


@contextlib.contextmanager
def _locked(catalog: Path) -> Iterator[None]:
    """Nobody reads or writes a SQLite catalog for the time of the block."""
    with contextlib.closing(sqlite3.connect(catalog, timeout=30, isolation_level=None)) as held:
        held.execute("begin exclusive")
        try:
            yield
        finally:
            held.execute("rollback")


def _restart(command: str | Callable[[], None]) -> None:
    if callable(command):
        command()
        return
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)  # noqa: S602  the user's own command
    if done.returncode:
        raise BadInput(
            f"The restart command ended with {done.returncode}: {one_line(done.stderr)[:300]}",
            "Try it by hand first.",
        )


def _remove(scratch: Scratch, profile: str | None) -> None:
    """Drop the trial's tables with their files, then its folder."""
    house = api.open(scratch.folder, profile)
    for table in house.lake.tables():
        if f"torture_{scratch.name}_" in table:
            house.lake.catalog.purge_table(tuple(table.split(".")))
    house.close()
    shutil.rmtree(scratch.folder)

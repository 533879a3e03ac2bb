"""A trial: events are sent, the pipeline is started, something is done to it, and so on."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline import api
from thermocline.errors import ThermoclineError, Transient
from thermocline.telemetry import SILENT, Progress, one_line, redact
from thermocline.torture import chaos_actions
from thermocline.torture import trial_project as projects
from thermocline.torture.chaos_plan import GOES_ON, Deed, Round, plan
from thermocline.torture.lanes import lanes_for
from thermocline.torture.sender import Sender
from thermocline.torture.stream_process import Worker
from thermocline.torture.trial_project import Scratch
from thermocline.torture.verdict import LaneVerdict, Verdict, judge, newest_landed, rows_of
from thermocline.torture.workload import Workload

if TYPE_CHECKING:
    from thermocline.api import Lakehouse

SECONDS_A_ROUND = 20
PORTIONS, PAUSE_SECONDS = 40, 1.0
"""A round's events come little by little, for as long as most rounds last."""

MANY_BATCHES = 1_000_000
SETTLE_SECONDS = 90.0
"""How long, at the end, servers may be away and events under way."""


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

    The project's settings are used, its brokers and databases; its tables are not touched. What
    the trial makes is removed at the end, unless it failed or is to be kept.
    """
    began = time.monotonic()
    name = f"s{order.seed}_{int(time.time()):x}"
    workload = Workload(order.seed, order.events)
    lanes = lanes_for(house.sources.values(), order.lanes, workload, name)
    folder = house.settings.project / ".thermocline" / "torture" / name
    scratch = projects.write(house.settings, folder, name, lanes)
    with contextlib.ExitStack() as made:
        for lane in lanes:
            lane.begin(folder)
            made.callback(lane.end, keep=False)
        trial = _Trial(scratch, order, progress, began + order.minutes * 60)
        verdict = trial.run(began)
        if not verdict.passed or order.keep:
            made.pop_all()
            for lane in lanes:
                lane.end(keep=True)  # what is there is the evidence
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
        self._sender = Sender(scratch.lanes, PAUSE_SECONDS)
        self._house = api.open(scratch.folder, order.profile)
        settings = self._house.settings
        self._catalog = Path(settings.catalog.uri) if settings.catalog.type == "sqlite" else None

    def run(self, began: float) -> Verdict:
        order = self._order
        rounds = plan(
            order.seed, order.rounds, order.events,
            lockable=self._catalog is not None, servers=len(order.restarts),
            reader=any(lane.changes for lane in self._scratch.lanes),
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
        worker = Worker(self._arguments(each.number), self._log, crash_at)
        done = False
        try:
            if each.deed is Deed.CRASH:
                worker.wait_for(MANY_BATCHES)
                done = worker.code == -signal.SIGKILL
            elif worker.wait_for(each.batches):
                time.sleep(each.delay)
                done = worker.running and self._do(each, worker)
            if not done or each.deed in GOES_ON:
                self._look_at_the_end(each, worker)
        finally:
            worker.kill()
        if done:
            self._done.deeds[str(each.deed)] += 1
        else:
            self._done.in_vain += 1

    def _do(self, each: Round, worker: Worker) -> bool:
        """Do it, and see that the process goes on where it should; whether it could be done."""
        done = True
        match each.deed:
            case Deed.KILL:
                worker.kill()
            case Deed.KILL_PYTHON:
                worker.kill_python()
            case Deed.KILL_JVM:
                worker.kill_jvm()
                worker.wait(each.delay)
            case Deed.KILL_READER:
                done = worker.kill_reader()
            case Deed.LOCK if self._catalog is not None and self._catalog.exists():
                with chaos_actions.locked(self._catalog):
                    time.sleep(each.hold)
            case Deed.LOCK:
                done = False  # the process has not come to make it yet
            case Deed.RESTART:
                chaos_actions.restart(self._order.restarts[each.which])
            case Deed.COMPACT:
                done = self._compact(each)
        if done and each.deed in GOES_ON:
            worker.wait_for(worker.batches + len(self._scratch.lanes))  # each has its turn
        return done

    def _compact(self, each: Round) -> bool:
        """Compact bronze. That this fails is no fault of the process, but it is told."""
        tables = [self._scratch.bronze(lane) for lane in self._scratch.lanes]
        try:
            return chaos_actions.compact(self._house.lake, tables)
        except Transient as error:
            self._done.surprises.append(f"round {each.number}: {error.cause}")
            return False

    def _look_at_the_end(self, each: Round, worker: Worker) -> None:
        """An end that nobody brought about is told, unless trying again helps."""
        if worker.code not in {None, Transient.exit_code}:
            said = redact(one_line(worker.said))[:300]
            self._done.surprises.append(f"round {each.number}: ended with {worker.code}: {said}")

    def _arguments(self, number: int) -> list[str]:
        """The command of a round. Each time another lane is the first to be looked at."""
        scratch = self._scratch
        first = number % len(scratch.lanes)
        lanes = (*scratch.lanes[first:], *scratch.lanes[:first])
        profile = ["--profile", self._order.profile] if self._order.profile else []
        then = [part for lane in lanes for part in ("--then", scratch.silver(lane))]
        sources = [scratch.source(lane) for lane in lanes]
        return [
            "--project", str(scratch.folder), *profile, "--json", "stream", *sources, *then,
            "--every", "0.5s",
        ]  # fmt: skip

    def _settle(self) -> tuple[LaneVerdict, ...]:
        """Let everything land that was sent, undisturbed, and judge it."""
        lake, scratch = self._house.lake, self._scratch
        disturbed = [rows_of(lake, scratch.bronze(lane)) for lane in scratch.lanes]
        self._progress.step("settle")
        self._land_all()
        self._progress.done()
        self._progress.step("compare")
        found = tuple(
            replace(judge(lake, scratch, lane, self._sender.sent(lane)), disturbed=rows)
            for lane, rows in zip(scratch.lanes, disturbed, strict=True)
        )
        self._progress.done()
        self._house.close()
        return found

    def _land_all(self) -> None:
        """Take in what the sources have, until nothing is known to be under way any more."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            late = time.monotonic() > until
            try:
                self._house.ingest()
                if late or not self._under_way():
                    self._house.run([self._scratch.silver(lane) for lane in self._scratch.lanes])
                    return
            except ThermoclineError as error:
                if late or not error.transient:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _under_way(self) -> bool:
        """Whether changes were made that did not come: who captures them may be behind."""
        return any(
            newest_landed(self._house.lake, self._scratch, lane) < self._sender.sent(lane) - 1
            for lane in self._scratch.lanes
            if lane.changes
        )


def _remove(scratch: Scratch, profile: str | None) -> None:
    """Drop the trial's tables with their files, then its folder."""
    house = api.open(scratch.folder, profile)
    for table in house.lake.tables():
        if f"torture_{scratch.name}_" in table:
            house.lake.catalog.purge_table(tuple(table.split(".")))
    house.close()
    shutil.rmtree(scratch.folder)

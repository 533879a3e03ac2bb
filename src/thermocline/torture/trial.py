"""Run a trial: send events, start the pipeline, act on it, and repeat."""

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
from thermocline.torture.chaos_plan import SURVIVABLE, ChaosAction, Round, plan_rounds
from thermocline.torture.lanes import lanes_for
from thermocline.torture.sender import Sender
from thermocline.torture.stream_process import StreamProcess
from thermocline.torture.trial_project import TrialProject
from thermocline.torture.verdict import LaneVerdict, Verdict, count_rows, newest_landed, verify_lane
from thermocline.torture.workload import Workload

if TYPE_CHECKING:
    from thermocline.api import Lakehouse

SECONDS_PER_ROUND = 20
PORTIONS, PAUSE_SECONDS = 40, 1.0
"""A round's events are sent gradually, over the duration of most rounds."""

MANY_BATCHES = 1_000_000
SETTLE_SECONDS = 90.0
"""Seconds at the end for servers to come back and for events to land."""


@dataclass(frozen=True)
class TrialOptions:
    """The options of a trial. `restarts` are commands or functions that restart a server each."""

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
        """The number of rounds, if there is enough time."""
        return self.kills or max(1, int(self.minutes * 60 / SECONDS_PER_ROUND))


@dataclass
class _TrialCounters:
    """Counters of the rounds so far."""

    actions: Counter[str] = field(default_factory=Counter)
    without_effect: int = 0
    warnings: list[str] = field(default_factory=list)


def torture(house: Lakehouse, options: TrialOptions, *, progress: Progress = SILENT) -> Verdict:
    """Send known events through the project's own pipeline while it is killed repeatedly.

    The trial uses the project's settings, brokers and databases, but not its tables. Everything
    that it creates is removed at the end, unless it failed or `keep` is set.
    """
    began = time.monotonic()
    name = f"s{options.seed}_{int(time.time()):x}"
    workload = Workload(options.seed, options.events)
    lanes = lanes_for(house.sources.values(), options.lanes, workload, name)
    folder = house.settings.project / ".thermocline" / "torture" / name
    project = projects.write(house.settings, folder, name, lanes)
    with contextlib.ExitStack() as stack:
        for lane in lanes:
            lane.set_up(folder)
            stack.callback(lane.tear_down, keep=False)
        trial = _Trial(project, options, progress, began + options.minutes * 60)
        verdict = trial.run(began)
        if not verdict.passed or options.keep:
            stack.pop_all()
            for lane in lanes:
                lane.tear_down(keep=True)  # kept as evidence
    if verdict.passed and not options.keep:
        _remove(project, options.profile)
    return verdict


class _Trial:
    def __init__(
        self, project: TrialProject, options: TrialOptions, progress: Progress, until: float
    ) -> None:
        self._project = project
        self._options = options
        self._progress = progress
        self._until = until
        self._log = project.folder / "worker.log"
        self._counters = _TrialCounters()
        self._sender = Sender(project.lanes, PAUSE_SECONDS)
        self._house = api.open(project.folder, options.profile)
        settings = self._house.settings
        self._catalog = Path(settings.catalog.uri) if settings.catalog.type == "sqlite" else None

    def run(self, began: float) -> Verdict:
        options = self._options
        rounds = plan_rounds(
            options.seed, options.rounds, options.events,
            lockable=self._catalog is not None, servers=len(options.restarts),
            reader=any(lane.changes for lane in self._project.lanes),
        )  # fmt: skip
        self._progress.step("torture", total=len(rounds))
        with self._sender:
            for each in rounds:
                if time.monotonic() > self._until:
                    break
                self._sender.send(each.events, PORTIONS)
                self._round(each)
                self._progress.advance(1, str(each))
            self._sender.send_all(options.events)
        self._progress.done(f"{sum(self._counters.actions.values())} times")
        lanes = self._settle()
        return Verdict(
            options.seed,
            round(time.monotonic() - began, 1),
            dict(self._counters.actions),
            len(rounds),
            self._counters.without_effect,
            lanes,
            tuple(self._counters.warnings),
        )

    def _round(self, each: Round) -> None:
        """Run the process once, and leave nothing of it running.

        An action counts only if it happened: the process may have ended before, or never reached
        its crash point.
        """
        crash_at = f"{each.point}:{each.nth}" if each.action is ChaosAction.CRASH else ""
        process = StreamProcess(self._arguments(each.number), self._log, crash_at)
        done = False
        try:
            if each.action is ChaosAction.CRASH:
                process.wait_for(MANY_BATCHES)
                done = process.exit_code == -signal.SIGKILL
            elif process.wait_for(each.batches):
                time.sleep(each.delay)
                done = process.is_running and self._do(each, process)
            if not done or each.action in SURVIVABLE:
                self._check_exit(each, process)
        finally:
            process.kill()
        if done:
            self._counters.actions[str(each.action)] += 1
        else:
            self._counters.without_effect += 1

    def _do(self, each: Round, process: StreamProcess) -> bool:
        """Apply the action, and wait for further batches if it is survivable."""
        done = True
        match each.action:
            case ChaosAction.KILL:
                process.kill()
            case ChaosAction.KILL_PYTHON:
                process.kill_python()
            case ChaosAction.KILL_JVM:
                process.kill_jvm()
                process.wait(each.delay)
            case ChaosAction.KILL_READER:
                done = process.kill_reader()
            case ChaosAction.LOCK if self._catalog is not None and self._catalog.exists():
                with chaos_actions.lock_catalog(self._catalog):
                    time.sleep(each.hold)
            case ChaosAction.LOCK:
                done = False  # the process has not created it yet
            case ChaosAction.RESTART:
                chaos_actions.restart(self._options.restarts[each.which])
            case ChaosAction.COMPACT:
                done = self._compact(each)
        if done and each.action in SURVIVABLE:
            process.wait_for(
                process.batches + len(self._project.lanes)
            )  # at least one for each lane
        return done

    def _compact(self, each: Round) -> bool:
        """Compact bronze. A failure is not the process's fault, but it is reported."""
        tables = [self._project.bronze(lane) for lane in self._project.lanes]
        try:
            return chaos_actions.compact(self._house.lake, tables)
        except Transient as error:
            self._counters.warnings.append(f"round {each.number}: {error.cause}")
            return False

    def _check_exit(self, each: Round, process: StreamProcess) -> None:
        """Report an exit that no action caused, unless its error is transient."""
        if process.exit_code not in {None, Transient.exit_code}:
            reason = redact(one_line(process.last_line))[:300]
            self._counters.warnings.append(
                f"round {each.number}: ended with {process.exit_code}: {reason}"
            )

    def _arguments(self, number: int) -> list[str]:
        """Return the arguments of a round's command. The first lane alternates."""
        project = self._project
        first = number % len(project.lanes)
        lanes = (*project.lanes[first:], *project.lanes[:first])
        profile = ["--profile", self._options.profile] if self._options.profile else []
        then = [part for lane in lanes for part in ("--then", project.silver(lane))]
        sources = [project.source(lane) for lane in lanes]
        return [
            "--project", str(project.folder), *profile, "--json", "stream", *sources, *then,
            "--every", "0.5s",
        ]  # fmt: skip

    def _settle(self) -> tuple[LaneVerdict, ...]:
        """Let all sent events land undisturbed, and verify the tables."""
        lake, project = self._house.lake, self._project
        landed = [count_rows(lake, project.bronze(lane)) for lane in project.lanes]
        self._progress.step("settle")
        self._land_all()
        self._progress.done()
        self._progress.step("compare")
        found = tuple(
            replace(
                verify_lane(lake, project, lane, self._sender.sent(lane)), landed_during_chaos=rows
            )
            for lane, rows in zip(project.lanes, landed, strict=True)
        )
        self._progress.done()
        self._house.close()
        return found

    def _land_all(self) -> None:
        """Ingest from the sources until no event is known to be pending."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            is_late = time.monotonic() > deadline
            try:
                self._house.ingest()
                if is_late or not self._has_pending_events():
                    self._house.run([self._project.silver(lane) for lane in self._project.lanes])
                    return
            except ThermoclineError as error:
                if is_late or not error.transient:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _has_pending_events(self) -> bool:
        """Whether sent changes have not landed yet: their capture may be behind."""
        return any(
            newest_landed(self._house.lake, self._project, lane) < self._sender.sent(lane) - 1
            for lane in self._project.lanes
            if lane.changes
        )


def _remove(project: TrialProject, profile: str | None) -> None:
    """Drop the trial's tables with their files, then its folder."""
    house = api.open(project.folder, profile)
    for table in house.lake.tables():
        if f"torture_{project.name}_" in table:
            house.lake.catalog.purge_table(tuple(table.split(".")))
    house.close()
    shutil.rmtree(project.folder)

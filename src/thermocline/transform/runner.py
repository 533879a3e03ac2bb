"""Run a plan: compute each step on the run's draft, check it there, publish everything at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.check.gate import Report, raise_if_failed
from thermocline.check.table_checks import check_tables
from thermocline.contract import Contract
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import companions, row_counts
from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft import Draft, PublishResult
from thermocline.lake.partition_cardinality import partition_warnings
from thermocline.lake.retention import list_consumers
from thermocline.telemetry import SILENT, Progress
from thermocline.transform import graph, rebase, tombstones
from thermocline.transform.duck.executor import DuckExecutor
from thermocline.transform.duck.session import Unable
from thermocline.transform.executor import Executor
from thermocline.transform.inputs import Span
from thermocline.transform.model_versions import Formulas
from thermocline.transform.models import Model
from thermocline.transform.run_plan import BEYOND_KEY, Plan, Step, Way
from thermocline.transform.spark.executor import SparkExecutor
from thermocline.transform.step import compute
from thermocline.transform.workers.executor import WorkersExecutor
from thermocline.transform.workers.work_unit import Piece
from thermocline.transform.workers.worker import OutOfMemory

if TYPE_CHECKING:
    from thermocline.lake import Lake

ROUNDS = 5
"""How often a run works itself onto a main that keeps moving before it gives up."""


@dataclass(frozen=True)
class StepResult:
    """What one step did."""

    table: str
    write: str
    engine: str
    way: str
    detail: str
    added: int
    changed: int
    removed: int
    total: int
    snapshot: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return dict(vars(self))


@dataclass(frozen=True)
class RunReport:
    """What a run did. `published` is None when there was nothing to do."""

    run: str
    steps: tuple[StepResult, ...]
    fresh: tuple[str, ...]
    checks: tuple[Report, ...]
    published: PublishResult | None
    seconds: float
    replayed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def rules(self) -> int:
        """How many quality rules were checked."""
        return sum(len(report.outcomes) for report in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        published = self.published
        return {
            "run": self.run,
            "steps": [step.as_dict() for step in self.steps],
            "fresh": list(self.fresh),
            "checks": [report.as_dict() for report in self.checks],
            "published": {t: after for t, (_, after) in published.tables.items()}
            if published
            else {},
            "replayed": list(self.replayed),
            "warnings": list(self.warnings),
            "seconds": round(self.seconds, 3),
        }


def run(
    lake: Lake,
    models: Mapping[str, Model],
    plan: Plan,
    *,
    run_id: str,
    progress: Progress = SILENT,
) -> RunReport:
    """Bring every table of a plan up to date, all at once or not at all."""
    started = time.monotonic()
    for contract in plan.evolving:
        lake.ensure(contract)
    if not plan.steps:
        return RunReport(run_id, (), plan.fresh, (), None, time.monotonic() - started)
    return _Run(lake, models, plan, run_id, progress).execute(started)


class _Run:
    """One run on its way."""

    def __init__(
        self, lake: Lake, models: Mapping[str, Model], plan: Plan, run_id: str, progress: Progress
    ) -> None:
        self.lake = lake
        self.models = models
        self.plan = plan
        self.progress = progress
        self.draft = Draft(lake, run_id, plan.into)
        self.executors: dict[str, Executor[Any]] = {
            "spark": SparkExecutor(lake),
            "duckdb": DuckExecutor(lake),
        }
        self.executors["polars"] = self.executors["duckdb"]
        self.workers = WorkersExecutor(lake, lambda: self.executors["spark"], progress)
        self.executors["duckdb partition"] = self.workers
        self.results: dict[str, StepResult] = {}
        self.ran: dict[str, str] = {}
        self.replayed: list[str] = []

    def execute(self, started: float) -> RunReport:
        """Do everything, and let go of the engines whatever happens."""
        try:
            return self._execute(started)
        finally:
            for executor in self.executors.values():
                executor.close()
            self.draft.release()

    def _execute(self, started: float) -> RunReport:
        steps = self.plan.steps
        self._prepare(steps)
        for step in steps:
            self._compute(step)
        checks = self._check([step.model.contract for step in steps])
        published = self._publish()
        self.progress.step("publish")
        self.progress.done(f"{len(published.tables)} tables in one commit")
        return RunReport(
            self.draft.run,
            tuple(self.results[step.table] for step in steps),
            self.plan.fresh,
            tuple(checks.values()),
            published,
            time.monotonic() - started,
            tuple(self.replayed),
            self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        """What the data says about the contracts' partitioning."""
        return tuple(
            f"{step.table}: {warning}"
            for step in self.plan.steps
            for warning in partition_warnings(
                self.lake, step.model.contract, self.results[step.table].snapshot
            )
        )

    def _prepare(self, steps: Sequence[Step]) -> None:
        """Bring the tables to their contracts. What is not allowed was refused by the plan."""
        crash_point("run.planned")
        wanted = [c for step in steps for c in _contracts(step.model.contract)]
        for contract in wanted:
            self.lake.ensure(contract)
        crash_point("run.ensured")
        self.draft.begin(*(contract.table for contract in wanted))
        self._hold_sources(steps)

    def _hold_sources(self, steps: Sequence[Step]) -> None:
        """Have what a first run reads kept while it works; later the bookmarks hold it."""
        if (beside := self.lake.beside) is not None:
            beside.register(
                each
                for step in steps
                for each in list_consumers(step.table, self.draft.into, {
                    source: self.plan.pins[source]
                    for source in step.model.sources
                    if source in self.plan.pins
                })
            )  # fmt: skip

    def _compute(self, step: Step) -> None:
        """Compute one step's rows and commit them to the draft, with the bookmark."""
        began = time.monotonic()
        self.progress.step(f"run {step.table}")
        crash_point("step.before")
        spans = self._spans(step.model)
        bookmark: dict[str, Any] = {span.table: span.end for span in spans.values()}
        bookmark |= Formulas(step.model.fingerprint).as_dict()
        marked = bookmarks.read(self.lake.state(step.table), self.draft.branch)
        if BEYOND_KEY in marked:
            bookmark[BEYOND_KEY] = marked[BEYOND_KEY]
        self.workers.sizes[step.table] = step.choice.bytes
        before, engine = self.draft.head(step.table), step.choice.executor
        try:
            snapshot, way, detail = self._write(step, engine, spans, bookmark)
        except Unable as unable:
            if self.lake.settings.transform.engine != "auto":
                raise
            engine = "spark"
            if isinstance(unable, OutOfMemory):
                bookmark[BEYOND_KEY] = step.choice.bytes
            self._start_over(step.model.contract)
            before = self.draft.head(step.table)
            snapshot, way, detail = self._write(step, engine, spans, bookmark)
            detail = f"{detail}, not on duckdb: {unable.cause}"
        crash_point("step.after")
        self._done(step, engine, str(way), detail, before, snapshot, time.monotonic() - began)

    def _done(
        self,
        step: Step,
        engine: str,
        way: str,
        detail: str,
        before: int,
        snapshot: int,
        seconds: float,
    ) -> None:
        """Keep what a step did, which may have taken several snapshots."""
        state = self.lake.state(step.table)
        made = state.between(before, snapshot) or [state.snapshot(snapshot)]
        last = state.snapshot(snapshot)
        rows = row_counts.sum_counts(made)
        result = StepResult(
            table=step.table,
            write=str(step.model.contract.write),
            engine=engine.partition(" ")[0],
            way=way,
            detail=self._by_whom(engine, detail),
            added=rows.added,
            changed=rows.changed,
            removed=rows.removed,
            total=last.count("total-records") - last.count("total-position-deletes"),
            snapshot=snapshot,
            seconds=seconds,
        )
        self.results[step.table] = result
        self.ran[step.table] = engine
        said = f"{result.write:<10} {result.total:,} rows   {result.detail} on {result.engine}"
        self.progress.done(said)

    def _by_whom(self, engine: str, detail: str) -> str:
        if engine != "duckdb partition":
            return f"{detail}, by a worker" if engine.endswith(" model") else detail
        return f"{detail}, by {self.workers.crew}" if self.workers.crew else detail

    def _start_over(self, contract: Contract) -> None:
        """Forget what the draft wrote to a table and its companion."""
        for each in _contracts(contract):
            self.draft.rebase(each.table)

    def _spans(self, model: Model) -> dict[str, Span]:
        """Each source from where the target last read it to where it is for this run."""
        state = self.lake.state(model.table)
        marked = bookmarks.read(state, self.draft.branch)
        spans = {}
        for source in model.sources:
            inside = source in self.draft.tables
            end = self.draft.head(source) if inside else self.plan.pins[source]
            spans[source] = Span(source, marked.get(source), end)
        return spans

    def _write(
        self, step: Step, engine: str, spans: Mapping[str, Span], bookmark: Mapping[str, Any]
    ) -> tuple[int, Way, str]:
        if engine.endswith(" model"):
            return self._by_worker(step, spans, bookmark)
        executor = self.executors[engine]
        return compute(executor, step.model, self.draft, step.way, spans, bookmark)

    def _by_worker(
        self, step: Step, spans: Mapping[str, Span], bookmark: Mapping[str, Any]
    ) -> tuple[int, Way, str]:
        """Have the whole step computed by a process that has its own memory."""
        bases = {c.table: self.draft.base(c.table) for c in _contracts(step.model.contract)}
        whole = {"into": self.draft.into, "bases": bases, "way": str(step.way),
                 "bookmark": dict(bookmark)}  # fmt: skip
        piece = Piece(
            self.draft.run, step.table, self.draft.branch, bases[step.table], spans, whole=whole
        )
        (outcome,) = self.workers.pool.work([piece])
        if outcome.done is None:
            raise outcome.error or AssertionError(outcome)
        return outcome.done.snapshot, Way(outcome.done.way), outcome.done.detail

    def _check(self, contracts: Sequence[Contract]) -> dict[str, Report]:
        """Check the tables on the draft. A broken rule stops the run and leaves the branch."""
        self.progress.step("check")
        snapshots = dict(self.plan.pins) | {t: self.draft.head(t) for t in self.draft.tables}
        reports = {c.table: r for c in contracts for r in check_tables(self.lake, [c], snapshots)}
        raise_if_failed(list(reports.values()), self.draft.branch)
        rules = sum(len(report.outcomes) for report in reports.values())
        warned = sum(len(report.warnings) for report in reports.values())
        warnings = f" · {warned} warnings" if warned else ""
        self.progress.done(f"{rules} rules · {rules - warned} hold{warnings}")
        crash_point("run.checked")
        return reports

    def _publish(self) -> PublishResult:
        """Publish, working the draft onto main first whenever main moved meanwhile."""
        for _ in range(ROUNDS):
            try:
                return self.draft.publish()
            except MainMoved as moved:
                self._catch_up(moved.tables)
        return self.draft.publish()

    def _catch_up(self, moved: Sequence[str]) -> None:
        """Replay or compute again every table that moved, and all that were computed from one."""
        main_tables = {table.removesuffix(companions.TOMBSTONES) for table in moved}
        behind = graph.downstream(self.models, main_tables)
        redone: list[Contract] = []
        changed: set[str] = set()
        for step in self.plan.steps:
            if step.table not in behind:
                continue
            executor = self.executors[self.ran[step.table].removesuffix(" model")]
            stands = not changed & set(step.model.sources)
            if stands and rebase.onto_moved(self.draft, step.model.contract, executor):
                self.replayed.append(step.table)
            else:
                self._start_over(step.model.contract)
                self._compute(step)
            changed.add(step.table)
            redone.append(step.model.contract)
        for table in set(moved) - {c.table for s in redone for c in _contracts(s)}:
            self.draft.rebase(table)
        self._check(redone)


def _contracts(contract: Contract) -> list[Contract]:
    """A table's contract and that of its companion, if it has one."""
    companion = tombstones.contract_for(contract)
    return [contract] if companion is None else [companion, contract]

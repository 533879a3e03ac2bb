"""Run a plan: compute each step on the run's draft, check it there, publish everything at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.check.gate import CheckReport, raise_if_failed
from thermocline.check.table_checks import check_tables
from thermocline.contract import Contract
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import companions, row_counts
from thermocline.lake.consumers import protect_sources
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft import Draft, PublishResult
from thermocline.lake.partition_cardinality import partition_warnings
from thermocline.lake.retries import retry_moved_main
from thermocline.telemetry import SILENT, Progress
from thermocline.transform import model_graph, rebase, tombstones
from thermocline.transform.duck.executor import DuckExecutor
from thermocline.transform.executor import Executor
from thermocline.transform.inputs import SourceSpan
from thermocline.transform.model_versions import ModelVersions
from thermocline.transform.models import Model
from thermocline.transform.run_plan import MEMORY_LIMIT_KEY, Plan, RefreshMode, Step
from thermocline.transform.spark.executor import SparkExecutor
from thermocline.transform.step import compute_step
from thermocline.transform.workers.executor import WorkersExecutor
from thermocline.transform.workers.partition_worker import OutOfMemory
from thermocline.transform.workers.work_unit import WorkUnit

if TYPE_CHECKING:
    from thermocline.lake import Lake

"""How often a run rebases onto a moving main before it gives up."""


@dataclass(frozen=True)
class StepResult:
    """The result of one step."""

    table: str
    write: str
    engine: str
    refresh_mode: str
    detail: str
    added: int
    changed: int
    removed: int
    total: int
    snapshot: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(vars(self))


@dataclass(frozen=True)
class RunReport:
    """The result of a run. `published` is None if no table was stale."""

    run: str
    steps: tuple[StepResult, ...]
    fresh: tuple[str, ...]
    checks: tuple[CheckReport, ...]
    published: PublishResult | None
    seconds: float
    replayed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def rules(self) -> int:
        """The number of quality rules that were checked."""
        return sum(len(report.outcomes) for report in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
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
    """Execute a plan: publish all of its tables in one commit, or none."""
    started = time.monotonic()
    for contract in plan.evolving:
        lake.ensure(contract)
    if not plan.steps:
        return RunReport(run_id, (), plan.fresh, (), None, time.monotonic() - started)
    return _Run(lake, models, plan, run_id, progress).execute(started)


class _Run:
    """The state of one run."""

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
        self.executor_keys: dict[str, str] = {}
        self.replayed: list[str] = []

    def execute(self, started: float) -> RunReport:
        """Execute all steps; always close the engines."""
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
            self._compute_step(step)
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
        """Return warnings about partitionings that do not suit the data."""
        return tuple(
            f"{step.table}: {warning}"
            for step in self.plan.steps
            for warning in partition_warnings(
                self.lake, step.model.contract, self.results[step.table].snapshot
            )
        )

    def _prepare(self, steps: Sequence[Step]) -> None:
        """Create and evolve the tables. The plan has already refused forbidden changes."""
        crash_point("run.planned")
        contracts = [c for step in steps for c in _with_companion(step.model.contract)]
        for contract in contracts:
            self.lake.ensure(contract)
        crash_point("run.ensured")
        self.draft.begin(*(contract.table for contract in contracts))
        self._protect_sources(steps)

    def _protect_sources(self, steps: Sequence[Step]) -> None:
        """Protect source snapshots from expiration during a first run; later bookmarks do it."""
        pins = self.plan.pins
        protect_sources(self.draft, {
            step.table: {source: pins[source] for source in step.model.sources if source in pins}
            for step in steps
        })  # fmt: skip

    def _compute_step(self, step: Step) -> None:
        """Compute one step's rows and commit them to the draft, with the bookmark."""
        began = time.monotonic()
        self.progress.step(f"run {step.table}")
        crash_point("step.before")
        spans = self._source_spans(step.model)
        bookmark: dict[str, Any] = {span.table: span.end for span in spans.values()}
        bookmark |= ModelVersions(step.model.fingerprint).as_dict()
        bookmark_before = bookmarks.read(self.lake.state(step.table), self.draft.branch)
        if MEMORY_LIMIT_KEY in bookmark_before:
            bookmark[MEMORY_LIMIT_KEY] = bookmark_before[MEMORY_LIMIT_KEY]
        self.workers.reports[step.table].input_bytes = step.choice.bytes
        before, engine = self.draft.head(step.table), step.choice.executor_key
        try:
            snapshot, refresh_mode, detail = self._write_step(step, engine, spans, bookmark)
        except UnsupportedByDuckDB as error:
            if self.lake.settings.transform.engine != "auto":
                raise
            engine = "spark"
            if isinstance(error, OutOfMemory):
                bookmark[MEMORY_LIMIT_KEY] = step.choice.bytes
            self._reset_tables(step.model.contract)
            before = self.draft.head(step.table)
            snapshot, refresh_mode, detail = self._write_step(step, engine, spans, bookmark)
            detail = f"{detail}, not on duckdb: {error.cause}"
        crash_point("step.after")
        self._record_result(
            step, engine, str(refresh_mode), detail, before, snapshot, time.monotonic() - began
        )

    def _record_result(
        self,
        step: Step,
        engine: str,
        refresh_mode: str,
        detail: str,
        before: int,
        snapshot: int,
        seconds: float,
    ) -> None:
        """Record the result of a step, which may have made several snapshots."""
        state = self.lake.state(step.table)
        snapshots = state.between(before, snapshot) or [state.snapshot(snapshot)]
        last = state.snapshot(snapshot)
        rows = row_counts.sum_counts(snapshots)
        result = StepResult(
            table=step.table,
            write=str(step.model.contract.write),
            engine=engine.partition(" ")[0],
            refresh_mode=refresh_mode,
            detail=self._describe_workers(step.table, engine, detail),
            added=rows.added,
            changed=rows.changed,
            removed=rows.removed,
            total=last.count("total-records") - last.count("total-position-deletes"),
            snapshot=snapshot,
            seconds=seconds,
        )
        self.results[step.table] = result
        self.executor_keys[step.table] = engine
        summary = f"{result.write:<10} {result.total:,} rows   {result.detail} on {result.engine}"
        self.progress.done(summary)

    def _describe_workers(self, table: str, engine: str, detail: str) -> str:
        if engine != "duckdb partition":
            return f"{detail}, by a worker" if engine.endswith(" model") else detail
        workers = self.workers.reports[table].workers
        return f"{detail}, by {workers}" if workers else detail

    def _reset_tables(self, contract: Contract) -> None:
        """Discard what the draft wrote to a table and its companion."""
        for each in _with_companion(contract):
            self.draft.rebase(each.table)

    def _source_spans(self, model: Model) -> dict[str, SourceSpan]:
        """Return the span of each source, from the target's last read to this run's snapshot."""
        state = self.lake.state(model.table)
        bookmark_before = bookmarks.read(state, self.draft.branch)
        spans = {}
        for source in model.sources:
            inside = source in self.draft.tables
            end = self.draft.head(source) if inside else self.plan.pins[source]
            spans[source] = SourceSpan(source, bookmark_before.get(source), end)
        return spans

    def _write_step(
        self, step: Step, engine: str, spans: Mapping[str, SourceSpan], bookmark: Mapping[str, Any]
    ) -> tuple[int, RefreshMode, str]:
        if engine.endswith(" model"):
            return self._compute_in_worker(step, spans, bookmark)
        executor = self.executors[engine]
        return compute_step(executor, step.model, self.draft, step.refresh_mode, spans, bookmark)

    def _compute_in_worker(
        self, step: Step, spans: Mapping[str, SourceSpan], bookmark: Mapping[str, Any]
    ) -> tuple[int, RefreshMode, str]:
        """Compute the whole step in a worker process, which has its own memory."""
        bases = {c.table: self.draft.base(c.table) for c in _with_companion(step.model.contract)}
        whole = {"into": self.draft.into, "bases": bases, "refresh_mode": str(step.refresh_mode),
                 "bookmark": dict(bookmark)}  # fmt: skip
        unit = WorkUnit(
            self.draft.run, step.table, self.draft.branch, bases[step.table], spans, whole=whole
        )
        (outcome,) = self.workers.pool.compute([unit])
        if outcome.done is None:
            raise outcome.error or AssertionError(outcome)
        return outcome.done.snapshot, RefreshMode(outcome.done.refresh_mode), outcome.done.detail

    def _check(self, contracts: Sequence[Contract]) -> dict[str, CheckReport]:
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
        """Publish the draft; rebase it onto main whenever main moved meanwhile."""
        return retry_moved_main(
            self.draft.publish, lambda moved: self._rebase_onto_main(moved.tables)
        )

    def _rebase_onto_main(self, moved: Sequence[str]) -> None:
        """Rebase or recompute every table that moved, and all tables downstream of one."""
        main_tables = {table.removesuffix(companions.TOMBSTONES) for table in moved}
        behind = model_graph.find_downstream(self.models, main_tables)
        recomputed: list[Contract] = []
        changed: set[str] = set()
        for step in self.plan.steps:
            if step.table not in behind:
                continue
            executor = self.executors[self.executor_keys[step.table].removesuffix(" model")]
            can_rebase = not changed & set(step.model.sources)
            if can_rebase and rebase.rebase_onto_main(self.draft, step.model.contract, executor):
                self.replayed.append(step.table)
            else:
                self._reset_tables(step.model.contract)
                self._compute_step(step)
            changed.add(step.table)
            recomputed.append(step.model.contract)
        for table in set(moved) - {c.table for s in recomputed for c in _with_companion(s)}:
            self.draft.rebase(table)
        self._check(recomputed)


def _with_companion(contract: Contract) -> list[Contract]:
    """Return a table's contract, preceded by its companion's contract if it has one."""
    companion = tombstones.derive_companion(contract)
    return [contract] if companion is None else [companion, contract]

"""The executor that hands a step's partitions to workers, which compute them in parallel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from thermocline.contract import Contract
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.errors import ThermoclineError, Transient
from thermocline.telemetry import SILENT, Progress
from thermocline.transform import rebase
from thermocline.transform.duck.executor import DuckExecutor
from thermocline.transform.executor import StepWrite
from thermocline.transform.inputs import Inputs, SourceSpan
from thermocline.transform.models import Model
from thermocline.transform.run_plan import MEMORY_LIMIT_KEY
from thermocline.transform.target_parts import (
    MAX_PARTS,
    TouchedParts,
    find_partitions,
    part_columns,
)
from thermocline.transform.workers import cluster
from thermocline.transform.workers.partition_worker import PartitionWorker
from thermocline.transform.workers.pool import UnitCounters, UnitOutcome, WorkerPool
from thermocline.transform.workers.work_unit import WorkUnit, is_serializable, split_parts

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.draft import Draft
    from thermocline.transform.executor import Bookmark, Executor


@dataclass(frozen=True)
class PartsToCompute:
    """The parts whose rows workers are to compute, and the sources to read."""

    parts: TouchedParts
    spans: Mapping[str, SourceSpan]


@dataclass
class PartInputs:
    """The input of a step. It finds the parts to compute; workers compute their rows."""

    inputs: Inputs[str]

    def read_all(self) -> PartsToCompute:
        """Return all parts that the model can have rows in."""
        found = self.inputs.find_all_parts(part_columns(self.inputs.model), MAX_PARTS)
        if found is None:
            raise UnsupportedByDuckDB(
                f"{self.inputs.model.table} has more than {MAX_PARTS:,} partitions."
            )
        return self.read_parts(found)

    def read_new(self) -> None:
        """Return None: new rows fall into existing partitions, which are computed whole."""

    def find_touched(self, columns: Sequence[str], most: int) -> TouchedParts | None:
        """Return the partitions that the changes can touch; None if more than `most`."""
        return self.inputs.find_touched(columns, most)

    def find_all_parts(self, columns: Sequence[str], most: int) -> TouchedParts | None:
        """Return all parts that the model can have rows in; None if more than `most`."""
        return self.inputs.find_all_parts(columns, most)

    def read_parts(self, touched: TouchedParts) -> PartsToCompute:
        """Return the touched parts."""
        return PartsToCompute(touched, self.inputs.spans)

    def sample_parts(
        self, columns: Sequence[str], snapshot: int, share: float
    ) -> set[tuple[Any, ...]]:
        """Return a random share of the parts with rows in the table at a snapshot or the model."""
        return self.inputs.sample_parts(columns, snapshot, share)

    def find_differing(self, parts: TouchedParts, snapshot: int) -> list[tuple[Any, ...]]:
        """Return those parts whose rows at a snapshot differ from the model's rows."""
        return self.inputs.find_differing(parts, snapshot)

    def close(self) -> None:
        """Release the resources that were created for reading."""
        self.inputs.close()


@dataclass
class WorkReport:
    """How a table's partitions were computed, for the callers of `WorkersExecutor`."""

    input_bytes: int = 0
    """How many bytes the step reads, as planned."""
    workers: str = ""
    """The workers that computed it last, for people; empty for this process."""
    outcomes: list[UnitOutcome] = field(default_factory=list)
    """The outcomes of the work units that were computed last."""
    fallback_partitions: int = 0
    """How many partitions the workers could not compute, so that the fallback engine did."""


class WorkersExecutor:
    """Hands a step's partitions to workers; `fallback` computes what exceeds their memory."""

    name = "duckdb"

    def __init__(
        self, lake: Lake, fallback: Callable[[], Executor[Any]], progress: Progress = SILENT
    ) -> None:
        self._lake = lake
        self._fallback = fallback
        self._progress = progress
        self._duck = DuckExecutor(lake)
        self.pool = WorkerPool(lake.settings)
        self.reports: defaultdict[str, WorkReport] = defaultdict(WorkReport)
        """One report per table."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """The exceptions that DuckDB raises for a query that it cannot compute."""
        return self._duck.failures

    def explain_failure(self, error: Exception, contract: Contract) -> ThermoclineError:
        """Return the error for such a failure."""
        return self._duck.explain_failure(error, contract)

    def open_inputs(self, model: Model, spans: Mapping[str, SourceSpan]) -> PartInputs:
        """Open the input of a step."""
        return PartInputs(self._duck.open_sql_inputs(model, spans))

    def write(self, rows: PartsToCompute, target: StepWrite) -> int:
        """Compute the parts and write them to the draft; commit the bookmark when all are there.

        With `full`, partitions that the model has no rows for are emptied. A table with files of
        an older partitioning is then replaced as a whole, in this process.
        """
        from thermocline.lake.overwrite import OutdatedPartitioning

        model, draft, parts = target.model, target.draft, rows.parts
        try:
            existing = find_partitions(draft.lake, model.table, draft.head(model.table))
        except OutdatedPartitioning:
            if not target.full:
                raise
            return self._replace_table(rows, target)
        if target.full:
            parts = TouchedParts.of(parts.columns, (*parts.values, *existing))
        failed = self.compute(model, draft, parts, rows.spans)
        if failed:
            raise failed[0].error or AssertionError(failed)
        report, bookmark = self.reports[model.table], dict(target.bookmark or {})
        if report.fallback_partitions:
            bookmark[MEMORY_LIMIT_KEY] = report.input_bytes
        return rebase.commit_bookmark(draft, model.table, bookmark)

    def _replace_table(self, rows: PartsToCompute, target: StepWrite) -> int:
        self.reports[target.model.table].workers = ""
        inputs = self._duck.open_sql_inputs(target.model, rows.spans)
        try:
            return self._duck.write(inputs.read_all(), replace(target, full=True, touched=None))
        finally:
            inputs.close()

    def compute(
        self,
        model: Model,
        draft: Draft,
        parts: TouchedParts,
        spans: Mapping[str, SourceSpan],
        *,
        batch: int | None = None,
        count: int | None = None,
    ) -> list[UnitOutcome]:
        """Compute parts and write them to the draft; return the work units that failed."""
        settings, report = self._lake.settings.workers, self.reports[model.table]
        units = split_into_units(model, draft, parts, spans, batch or settings.batch)

        def on_progress(outcome: UnitOutcome | None, counters: UnitCounters) -> None:
            done = len(outcome.unit.labels()) if outcome is not None else 0
            self._progress.advance(done, str(counters))

        processes = min(count or settings.processes, len(units))
        report.workers = f"{processes} workers" if processes > 1 else "a worker"
        if settings.on == "spark":
            report.workers = f"{len(units)} tasks of Spark"
            outcomes = cluster.compute_units(self._lake, units, on_progress=on_progress)
        else:
            outcomes = self._compute_in_process(model, units) if len(units) == 1 else []
            if outcomes and not any(outcome.exceeds_worker for outcome in outcomes):
                report.workers = ""
            else:
                outcomes = self.pool.compute(units, count=count, on_progress=on_progress)
        unsupported = [outcome.unit for outcome in outcomes if outcome.needs_spark]
        if unsupported and self._lake.settings.transform.engine != "duckdb":
            self._compute_on_fallback(model, draft, unsupported, spans)
            outcomes = [outcome for outcome in outcomes if not outcome.needs_spark]
        report.outcomes = outcomes
        return [outcome for outcome in outcomes if outcome.error is not None]

    def _compute_in_process(self, model: Model, units: Sequence[WorkUnit]) -> list[UnitOutcome]:
        """Compute a single unit in this process: most take less time than starting a worker."""
        worker = PartitionWorker(self._lake, {model.table: model}, self._duck)
        try:
            return [UnitOutcome(unit, worker.compute(unit)) for unit in units]
        except Transient:
            raise
        except ThermoclineError as error:
            return [UnitOutcome(unit, error=error) for unit in units]

    def _compute_on_fallback(
        self, model: Model, draft: Draft, units: Sequence[WorkUnit], spans: Mapping[str, SourceSpan]
    ) -> None:
        """Compute units on the fallback engine, which has no memory limit, in one write."""
        values = [v for unit in units if unit.parts for v in unit.parts.values]
        parts = TouchedParts.of(part_columns(model), values)
        fallback = self._fallback()
        inputs = fallback.open_inputs(model, spans)
        try:
            fallback.write(inputs.read_parts(parts), StepWrite(model, draft, None, touched=parts))
        except fallback.failures as error:
            raise fallback.explain_failure(error, model.contract) from error
        finally:
            inputs.close()
        self.reports[model.table].fallback_partitions = len(parts.values)

    def apply_changes(
        self, changes: ChangeSet, contract: Contract, draft: Draft, bookmark: Bookmark | None
    ) -> int:
        """Apply inserted, updated and deleted rows to a table of the draft."""
        return self._duck.apply_changes(changes, contract, draft, bookmark)

    def close(self) -> None:
        """Close the DuckDB connection and the worker processes."""
        self._duck.close()
        self.pool.close()


def split_into_units(
    model: Model, draft: Draft, parts: TouchedParts, spans: Mapping[str, SourceSpan], batch: int
) -> list[WorkUnit]:
    """Split parts into work units of at most `batch` parts."""
    if not is_serializable(parts):
        raise UnsupportedByDuckDB(
            f"{model.table} is partitioned by values that a work unit cannot hold."
        )
    read = {table: replace(span, start=None) for table, span in spans.items()}
    base = draft.base(model.table)
    return [
        WorkUnit(draft.run, model.table, draft.branch, base, read, some)
        for some in split_parts(parts, batch)
    ]

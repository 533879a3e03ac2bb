"""Where a step runs: workers, which compute its partitions beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from thermocline.contract import Contract
from thermocline.errors import ThermoclineError, Transient
from thermocline.telemetry import SILENT, Progress
from thermocline.transform import rebase
from thermocline.transform.duck.executor import DuckExecutor
from thermocline.transform.duck.session import Unable
from thermocline.transform.inputs import Inputs, Span
from thermocline.transform.models import Model
from thermocline.transform.run_plan import BEYOND_KEY
from thermocline.transform.target_parts import MOST_PARTS, Touched, standing, touched_columns
from thermocline.transform.workers import cluster
from thermocline.transform.workers.pool import Outcome, Pool, Tally
from thermocline.transform.workers.work_unit import Piece, cut, speakable
from thermocline.transform.workers.worker import Worker

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.draft import Draft
    from thermocline.transform.executor import Executor


@dataclass(frozen=True)
class Asked:
    """Rows that workers are to compute: those of some parts."""

    parts: Touched
    spans: Mapping[str, Span]


@dataclass
class AskedInputs:
    """What a step reads. Which parts it touches is found here; its rows are computed elsewhere."""

    inputs: Inputs[str]

    def everything(self) -> Asked:
        """All rows, by all parts that there can be."""
        found = self.inputs.every_part(touched_columns(self.inputs.model), MOST_PARTS)
        if found is None:
            raise Unable(f"{self.inputs.model.table} has more than {MOST_PARTS:,} partitions.")
        return self.only(found)

    def new_rows(self) -> None:
        """New rows go into partitions that are there: these are computed whole."""

    def touched(self, columns: Sequence[str], most: int) -> Touched | None:
        """Which partitions the changes can touch."""
        return self.inputs.touched(columns, most)

    def every_part(self, columns: Sequence[str], most: int) -> Touched | None:
        """All parts that there can be."""
        return self.inputs.every_part(columns, most)

    def only(self, touched: Touched) -> Asked:
        """The rows of the touched parts."""
        return Asked(touched, self.inputs.spans)

    def some_parts(
        self, columns: Sequence[str], snapshot: int, share: float
    ) -> set[tuple[Any, ...]]:
        """A random share of the parts that there are."""
        return self.inputs.some_parts(columns, snapshot, share)

    def differing(self, parts: Touched, snapshot: int) -> list[tuple[Any, ...]]:
        """Those of some parts whose rows are not what the model gives."""
        return self.inputs.differing(parts, snapshot)

    def close(self) -> None:
        """Let go of what was made to look."""
        self.inputs.close()


class WorkersExecutor:
    """Hands a step's partitions out to workers. What they have no memory for, `spare` computes."""

    name = "duckdb"

    def __init__(
        self, lake: Lake, spare: Callable[[], Executor[Any]], progress: Progress = SILENT
    ) -> None:
        self._lake = lake
        self._spare = spare
        self._progress = progress
        self._duck = DuckExecutor(lake)
        self.pool = Pool(lake.settings)
        self.outcomes: list[Outcome] = []
        """What came of the pieces that were handed out last."""
        self.crew = ""
        """Who worked last, for people."""
        self.spared: dict[str, int] = {}
        """How many partitions of each table were beyond the workers."""
        self.sizes: dict[str, int] = {}
        """How much each step has to read, for the plans to come."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What it raises for a query that it cannot compute."""
        return self._duck.failures

    def failed(self, error: Exception, contract: Contract) -> ThermoclineError:
        """Such a failure in our words."""
        return self._duck.failed(error, contract)

    def inputs(self, model: Model, spans: Mapping[str, Span]) -> AskedInputs:
        """What a step reads."""
        return AskedInputs(self._duck.sql_inputs(model, spans))

    def write(
        self,
        rows: Asked,
        model: Model,
        draft: Draft,
        *,
        bookmark: Mapping[str, Any] | None,
        full: bool = False,
        touched: Touched | None = None,
    ) -> int:
        """Have the parts computed and put on the draft; the bookmark follows when all are there.

        With `full`, partitions that the model has no row for any more are emptied. A table with
        files of an older partitioning is then replaced as a whole, in this process.
        """
        from thermocline.lake.overwrite import OlderPartitioning

        parts = rows.parts
        try:
            there = standing(draft.lake, model.table, draft.head(model.table))
        except OlderPartitioning:
            if not full:
                raise
            return self._whole(rows, model, draft, bookmark)
        if full:
            parts = Touched.of(parts.columns, (*parts.values, *there))
        left = self.compute(model, draft, parts, rows.spans)
        if left:
            raise left[0].error or AssertionError(left)
        more = {BEYOND_KEY: self.sizes.get(model.table, 0)} if model.table in self.spared else {}
        return rebase.mark(draft, model.table, {**(bookmark or {}), **more})

    def _whole(
        self, rows: Asked, model: Model, draft: Draft, bookmark: Mapping[str, Any] | None
    ) -> int:
        self.crew = ""
        inputs = self._duck.sql_inputs(model, rows.spans)
        try:
            every = inputs.everything()
            return self._duck.write(every, model, draft, bookmark=bookmark, full=True)
        finally:
            inputs.close()

    def compute(
        self,
        model: Model,
        draft: Draft,
        parts: Touched,
        spans: Mapping[str, Span],
        *,
        batch: int | None = None,
        count: int | None = None,
    ) -> list[Outcome]:
        """Have parts computed and put on the draft; gives the pieces that could not be done."""
        told = self._lake.settings.workers
        pieces = cut_up(model, draft, parts, spans, batch or told.batch)

        def watch(outcome: Outcome | None, tally: Tally) -> None:
            many = len(outcome.piece.labels()) if outcome is not None else 0
            self._progress.advance(many, str(tally))

        many = min(count or told.processes, len(pieces))
        self.crew = f"{many} workers" if many > 1 else "a worker"
        if told.on == "spark":
            self.crew = f"{len(pieces)} tasks of Spark"
            outcomes = cluster.work(self._lake, pieces, watch=watch)
        else:
            outcomes = self._here(model, pieces) if len(pieces) == 1 else []
            if outcomes and not any(outcome.too_large for outcome in outcomes):
                self.crew = ""
            else:
                outcomes = self.pool.work(pieces, count=count, watch=watch)
        beyond = [outcome.piece for outcome in outcomes if outcome.beyond]
        if beyond and self._lake.settings.transform.engine != "duckdb":
            self._do_spare(model, draft, beyond, spans)
            outcomes = [outcome for outcome in outcomes if not outcome.beyond]
        self.outcomes = outcomes
        return [outcome for outcome in outcomes if outcome.error is not None]

    def _here(self, model: Model, pieces: Sequence[Piece]) -> list[Outcome]:
        """Do a single piece in this process: starting another would take longer than most."""
        worker = Worker(self._lake, {model.table: model}, self._duck)
        try:
            return [Outcome(piece, worker.do(piece)) for piece in pieces]
        except Transient:
            raise
        except ThermoclineError as error:
            return [Outcome(piece, error=error) for piece in pieces]

    def _do_spare(
        self, model: Model, draft: Draft, pieces: Sequence[Piece], spans: Mapping[str, Span]
    ) -> None:
        """Compute pieces on the engine that has room for anything, in one go."""
        values = [v for piece in pieces if piece.parts for v in piece.parts.values]
        parts = Touched.of(touched_columns(model), values)
        spare = self._spare()
        inputs = spare.inputs(model, spans)
        try:
            spare.write(inputs.only(parts), model, draft, bookmark=None, touched=parts)
        except spare.failures as error:
            raise spare.failed(error, model.contract) from error
        finally:
            inputs.close()
        self.spared[model.table] = len(parts.values)

    def replay(
        self,
        changes: ChangeSet,
        contract: Contract,
        draft: Draft,
        *,
        bookmark: Mapping[str, Any] | None,
    ) -> int:
        """Put rows that were changed elsewhere into a table of the draft."""
        return self._duck.replay(changes, contract, draft, bookmark=bookmark)

    def close(self) -> None:
        """Close the connection that looked for parts, and let the workers go."""
        self._duck.close()
        self.pool.close()


def cut_up(
    model: Model, draft: Draft, parts: Touched, spans: Mapping[str, Span], batch: int
) -> list[Piece]:
    """The pieces that parts make, so many parts each."""
    if not speakable(parts):
        raise Unable(f"{model.table} is cut by values that a piece of work cannot say.")
    read = {table: replace(span, start=None) for table, span in spans.items()}
    base = draft.base(model.table)
    return [
        Piece(draft.run, model.table, draft.branch, base, read, some) for some in cut(parts, batch)
    ]

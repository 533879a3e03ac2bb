"""A backfill: partitions of one table computed anew by workers, because somebody asked for it.

It works on a branch of its own, whose first commit notes what was asked. Which partitions are done
is read off that branch, so a backfill that died goes on where it was, whoever calls it again. It
is checked and published like a run. What others published meanwhile stays: partitions that only
the backfill touched are put on top as they are, and those that both touched are computed again
from what the sources hold by then.

What the table's bookmark says of its sources is left alone, unless everything was computed: a
backfill repeats work, it does not consume input. What it computed, by which model and from what,
the bookmark says beside that (`formulas`). The branch is begun before the sources are looked at. So
whatever the table had consumed by then, the backfill has read as well; and whoever consumes more
later touches the partitions concerned, and is seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from thermocline.check.gate import raise_if_failed
from thermocline.check.table_checks import check_tables, involved
from thermocline.errors import BadInput, NotFound, Permanent
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft import Draft, PublishResult, source_head
from thermocline.lake.metadata import MAIN, Snapshot, TableState
from thermocline.lake.naming import RUN_PREFIX, new_run_id
from thermocline.lake.retention import list_consumers
from thermocline.telemetry import SILENT, Progress
from thermocline.transform.duck.session import BY_SPARK, Unable
from thermocline.transform.inputs import Span
from thermocline.transform.model_versions import Computed, Formulas, Range
from thermocline.transform.models import Model
from thermocline.transform.target_parts import (
    MOST_PARTS,
    Touched,
    by_day,
    standing,
    touched_columns,
    unfit,
)
from thermocline.transform.workers.executor import WorkersExecutor, cut_up
from thermocline.transform.workers.pool import Outcome
from thermocline.transform.workers.work_unit import Piece

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.transform.executor import Executor

ASKED = bookmarks.PREFIX + "backfill"
FAILED = bookmarks.PREFIX + "failed"
ROUNDS = 8
_NOTED = 50


@dataclass(frozen=True)
class BackfillReport:
    """What a backfill did."""

    run: str
    table: str
    partitions: int
    computed: int
    rows: int
    resumed: bool
    on_spark: int
    snapshots: int
    published: PublishResult
    seconds: float
    cpu_seconds: float
    peak_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        said = {**vars(self), "seconds": round(self.seconds, 3)}
        return said | {"published": {t: after for t, (_, after) in self.published.tables.items()}}


class BackfillFailed(Permanent):
    """Some partitions could not be computed, so nothing was published; the others are kept."""

    code = "backfill"


class Backfill:
    """One backfill on its way: `begin` makes or finds it, `hand_out`, `compute`, `finish`."""

    def __init__(
        self,
        lake: Lake,
        model: Model,
        wanted: Range,
        *,
        into: str = MAIN,
        spare: Callable[[], Executor[Any]],
        progress: Progress = SILENT,
    ) -> None:
        reason = unfit(model)
        if reason is not None:
            raise BadInput(
                f"{model.table} cannot be computed partition by partition: {reason}.",
                f"Compute it as a whole: thermo run --full-refresh --select {model.table}.",
            )
        self.lake, self.model, self.wanted = lake, model, wanted
        self.progress = progress
        self.executor = WorkersExecutor(lake, spare, progress)
        self.resumed = False
        self.pins: dict[str, int] = {}
        self._into = into
        self.draft = Draft(lake, new_run_id(), into)
        self._outcomes: list[Outcome] = []

    def begin(self) -> None:
        """Take up what an earlier call left unfinished, or begin anew."""
        with self._advised():
            self._begin()

    def _begin(self) -> None:
        self.progress.step(f"look {self.model.table}")
        self.lake.ensure(self.model.contract)
        state = self.lake.state(self.model.table)
        found = self._unfinished(state)
        if found is not None:
            run, note = found
            self.draft = Draft(self.lake, run, self._into)
            assert note.parent is not None
            self.draft.resume(self.model.table, note.parent)
            self.pins = {t: int(s) for t, s in json.loads(note.summary[ASKED])["pins"].items()}
            self.resumed = True
        else:
            self.draft.begin(self.model.table)
            self._pin()
            if (beside := self.lake.beside) is not None:  # what it reads is kept while it works
                beside.register(list_consumers(self.model.table, self._into, self.pins))
            self._note()
        crash_point("backfill.begun")
        self.parts = self._parts()
        self.progress.done(f"{len(self.parts.values):,} partitions")

    def hand_out(self, batch: int | None = None) -> list[Piece]:
        """The pieces that are still to be done, for workers elsewhere."""
        batch = batch or self.lake.settings.workers.batch
        return cut_up(self.model, self.draft, self._left(), self._spans(), batch)

    def compute(self, *, batch: int | None = None, count: int | None = None) -> None:
        """Have all that is left computed. Raises BackfillFailed when some could not be."""
        left = self._left()
        if left.values:
            with self._advised():
                self._have_done(left, batch, count)

    @contextmanager
    def _advised(self) -> Iterator[None]:
        """Have an error advise what helps: the engine that a setting names is not asked here."""
        try:
            yield
        except Unable as error:
            if BY_SPARK in error.next_step:
                whole = f"thermo run --full-refresh --select {self.model.table}"
                auto = self.lake.settings.transform.engine == "auto"
                first = "" if auto else "Set transform.engine = auto. "
                error.next_step = f"{first}Compute it as a whole, on Spark: {whole}."
            raise

    def finish(self, *, batch: int | None = None, count: int | None = None) -> PublishResult:
        """Check the table on the branch and publish it, on top of what others did meanwhile."""
        consumed: Mapping[str, Any] | None = dict(self.pins) if self.wanted.open else None
        for _ in range(ROUNDS):
            self._check()
            self._mark_formula(consumed)
            crash_point("backfill.checked")
            try:
                return self.draft.publish()
            except MainMoved:
                consumed = None  # who moved it may have consumed more
                self._catch_up(batch, count)
        return self.draft.publish()

    def report(self, published: PublishResult, seconds: float) -> BackfillReport:
        """What was done."""
        done = [outcome.done for outcome in self._outcomes if outcome.done]
        spared = self.executor.spared.get(self.model.table, 0)
        return BackfillReport(
            run=self.draft.run,
            table=self.model.table,
            partitions=len(self.parts.values),
            computed=sum(len(o.piece.labels()) for o in self._outcomes if o.done) + spared,
            rows=sum(each.rows for each in done),
            resumed=self.resumed,
            on_spark=spared,
            snapshots=len({each.snapshot for each in done}),
            published=published,
            seconds=seconds,
            cpu_seconds=round(sum(each.cpu_seconds for each in done), 3),
            peak_bytes=max((each.peak_bytes for each in done), default=0),
        )

    def close(self) -> None:
        """Let go of the engine that looked for partitions; what is not done can be taken up."""
        self.executor.close()
        self.draft.release()

    def _unfinished(self, state: TableState) -> tuple[str, Snapshot] | None:
        """The run and the note of a backfill of the same, if a branch holds one."""
        for name, ref in state.refs.items():
            run = name.removeprefix(RUN_PREFIX)
            note = noted(state, run, ref.snapshot) if name != run else None
            if note is None:
                continue
            said = json.loads(note.summary[ASKED])
            same = said["range"] == self.wanted.as_list() and said["into"] == self._into
            if same and said["model"] == self.model.fingerprint and self._readable(said["pins"]):
                return run, note
        return None

    def _readable(self, pins: Mapping[str, int]) -> bool:
        return all(pin in self.lake.state(table).snapshots for table, pin in pins.items())

    def _pin(self) -> None:
        """Fix what is read: the sources as they are now."""
        self.pins = {}
        for source in self.model.sources:
            if not self.lake.exists(source):
                raise NotFound(
                    f"{self.model.table} reads {source}, which does not exist yet.",
                    "Ingest it, or run its model first.",
                )
            self.pins[source] = source_head(self.lake.state(source), self._into)

    def _note(self) -> None:
        """Say on the branch what was asked for, so that whoever comes next can go on."""
        said = {
            "range": self.wanted.as_list(),
            "into": self._into,
            "model": self.model.fingerprint,
            "pins": self.pins,
        }
        self._mark(None, {ASKED: json.dumps(said, sort_keys=True)})

    def _mark_formula(self, consumed: Mapping[str, Any] | None) -> None:
        """Say by which model the partitions were computed, and what was consumed if that is all."""
        marked = bookmarks.read(self.lake.state(self.model.table), self.draft.branch)
        before = Formulas.of(marked)
        done = Computed(self.model.fingerprint, self.wanted, self.pins)
        after = before.computed(done, {**marked, **(consumed or {})})
        if consumed is not None:
            self._mark({**consumed, **after.as_dict()})
        elif marked and after != before:  # what was never computed as a whole stays so
            kept = {k: v for k, v in marked.items() if k not in before.as_dict()}
            self._mark({**kept, **after.as_dict()})

    def _mark(
        self, bookmark: Mapping[str, Any] | None, notes: Mapping[str, str] | None = None
    ) -> None:
        self.draft.append(
            self.model.table, (), bookmark=bookmark, operation="backfill", notes=notes
        )

    def _spans(self) -> dict[str, Span]:
        return {source: Span(source, None, pin) for source, pin in self.pins.items()}

    def _parts(self) -> Touched:
        """All partitions that were asked for: those with rows to come, and those with rows now."""
        columns = touched_columns(self.model)
        inputs = self.executor.inputs(self.model, self._spans()).inputs
        try:
            found = inputs.every_part(columns, MOST_PARTS)
        except self.executor.failures as error:
            raise self.executor.failed(error, self.model.contract) from error
        finally:
            inputs.close()
        if found is None:
            raise BadInput(
                f"{self.model.table} has more than {MOST_PARTS:,} partitions.",
                "Partition it by something coarser.",
            )
        there = standing(self.lake, self.model.table, self.draft.base(self.model.table))
        every = (*found.values, *there)
        return Touched.of(columns, (values for values in every if self.wanted.holds(values)))

    def _left(self) -> Touched:
        """The partitions that the branch does not have yet."""
        from thermocline.lake.overwrite import changed_partitions, values_of

        iceberg = self.lake.iceberg(self.model.table)
        base, head = self.draft.base(self.model.table), self.draft.head(self.model.table)
        done = {values_of(iceberg, r) for r in changed_partitions(iceberg, base, head)}
        return Touched.of(self.parts.columns, (v for v in self.parts.values if v not in done))

    def _have_done(self, parts: Touched, batch: int | None, count: int | None) -> None:
        self.progress.step(f"backfill {self.model.table}", len(parts.values))
        failed = self.executor.compute(
            self.model, self.draft, parts, self._spans(), batch=batch, count=count
        )
        self._outcomes += self.executor.outcomes
        if failed:
            raise self._failed(failed)
        self.progress.done(f"{len(parts.values):,} partitions")

    def _failed(self, failed: Sequence[Outcome]) -> BackfillFailed:
        why = {name: str(o.error and o.error.cause) for o in failed for name in o.piece.labels()}
        few = dict(list(why.items())[:_NOTED])
        self._mark(None, {FAILED: json.dumps(few)})
        name, cause = next(iter(why.items()))
        return BackfillFailed(
            f"{len(why):,} of {len(self.parts.values):,} partitions of {self.model.table} could "
            f"not be computed; {name}: {cause}",
            "Nothing was published; what is done is kept. Mend it and call the backfill again.",
            table=self.model.table,
            run=self.draft.run,
            partitions=why,
        )

    def _check(self) -> None:
        self.progress.step(f"check {self.model.table}")
        contract = self.model.contract
        snapshots = {**self.pins, contract.table: self.draft.head(contract.table)}
        # Rules may refer to tables that the model does not read.
        for table, state in self.lake.states(involved([contract])).items():
            if (head := state.head()) is not None:
                snapshots.setdefault(table, head)
        reports = check_tables(self.lake, [contract], snapshots)
        raise_if_failed(reports, self.draft.branch)
        self.progress.done()

    def _catch_up(self, batch: int | None, count: int | None) -> None:
        """Put the branch onto where main is now; compute again what others touched as well."""
        from thermocline.lake.overwrite import partitions_again, values_of

        table = self.model.table
        base, head = self.draft.base(table), self.draft.head(table)
        # The new base is looked at first and the sources after it; see above.
        self.draft.rebase(table)
        iceberg = self.lake.iceberg(table)
        change, clashing = partitions_again(iceberg, base, head, self.draft.base(table))
        before = self.pins
        self._pin()
        self._note()
        if not all(
            self.lake.state(source).is_ancestor(pin, of=self.pins[source])
            for source, pin in before.items()
        ):
            # A source was rolled back: what was computed from it is of another history.
            self._have_done(self.parts, batch, count)
            return
        if change.added or change.removed:
            self.draft.change_files(table, change, bookmark=None, operation="partitions")
        crash_point("backfill.rebased")
        again = Touched.of(self.parts.columns, (values_of(iceberg, record) for record in clashing))
        if again.values:
            self._have_done(again, batch, count)


def noted(state: TableState, run: str, head: int) -> Snapshot | None:
    """The snapshot that says what the backfill of a branch was asked for."""
    for snapshot in state.ancestry(head):
        if snapshot.summary.get(bookmarks.RUN) != run:
            return None  # here the branch begins
        if ASKED in snapshot.summary:
            return snapshot
    return None


def run(
    backfill: Backfill, *, batch: int | None = None, count: int | None = None
) -> BackfillReport:
    """Do a backfill from beginning to end."""
    began = time.monotonic()
    try:
        backfill.begin()
        backfill.compute(batch=batch, count=count)
        published = backfill.finish(batch=batch, count=count)
        return backfill.report(published, time.monotonic() - began)
    finally:
        backfill.close()


def ranged(model: Model, first: str | None, last: str | None) -> Range:
    """A range from what a person wrote, in the type of the model's first partition column."""
    columns = touched_columns(model)
    column = model.contract.column(columns[0]) if columns else None
    return Range(
        *(None if t is None or column is None else _typed(model, t) for t in (first, last))
    )


def _typed(model: Model, text: str) -> Any:
    name = touched_columns(model)[0]
    column = model.contract.column(name)
    assert column is not None, name
    kind = "date" if by_day(model, name) else str(column.type)
    readers: dict[str, Callable[[str], Any]] = {
        "date": date.fromisoformat, "int": int, "long": int, "string": str,
        "timestamp": datetime.fromisoformat, "timestamptz": datetime.fromisoformat,
    }  # fmt: skip
    if kind not in readers:
        raise BadInput(f"A range of {kind} cannot be written.", "Leave --from and --to out.")
    try:
        return readers[kind](text)
    except ValueError as error:
        raise BadInput(
            f"{text!r} is no {kind}, which {name} is cut by.", "Write a day as 2026-11-14."
        ) from error

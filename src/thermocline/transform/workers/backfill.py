"""A backfill: workers recompute partitions of one table on request.

It works on a branch of its own, whose first commit records the request. The branch shows which
partitions are done, so a backfill that died resumes when any process calls it again. It is checked
and published like a run. Commits that others publish meanwhile are kept: partitions that only the
backfill touched are rebased as they are; partitions that both touched are recomputed from the
sources' newest rows.

The source snapshots in the table's bookmark stay as they are, unless all partitions were computed:
a backfill repeats work, it does not consume input. The bookmark also records which ranges it
computed, with which model version and from which snapshots (`model_versions`). The branch begins
before the sources are pinned. So the backfill reads everything that the table had consumed by
then; a later consumer touches the partitions concerned, and the rebase detects it.
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
from thermocline.check.table_checks import check_tables, find_tables_read
from thermocline.engine.duck import SPARK_NEXT_STEP, UnsupportedByDuckDB
from thermocline.errors import BadInput, NotFound, Permanent
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.consumers import protect_sources
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft import Draft, PublishResult, source_head
from thermocline.lake.metadata import MAIN, Snapshot, TableState
from thermocline.lake.naming import RUN_PREFIX, new_run_id
from thermocline.lake.retries import retry_moved_main
from thermocline.telemetry import SILENT, Progress
from thermocline.transform.inputs import SourceSpan
from thermocline.transform.model_versions import ComputedRange, ModelVersions, PartitionRange
from thermocline.transform.models import Model
from thermocline.transform.target_parts import (
    MAX_PARTS,
    TouchedParts,
    find_partition_blocker,
    find_partitions,
    is_by_day,
    part_columns,
)
from thermocline.transform.workers.executor import WorkersExecutor, split_into_units
from thermocline.transform.workers.pool import UnitOutcome
from thermocline.transform.workers.work_unit import WorkUnit

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.transform.executor import Executor

REQUEST_KEY = bookmarks.PREFIX + "backfill"
FAILED_KEY = bookmarks.PREFIX + "failed"
_MAX_NOTED = 50


@dataclass(frozen=True)
class BackfillReport:
    """The result of a backfill."""

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
        """Return the JSON form."""
        values = {**vars(self), "seconds": round(self.seconds, 3)}
        return values | {"published": {t: after for t, (_, after) in self.published.tables.items()}}


class BackfillFailed(Permanent):
    """Some partitions failed, so nothing was published; the computed ones are kept."""

    code = "backfill"


class Backfill:
    """One backfill: `begin` creates or resumes it, then `hand_out`, `compute` and `finish`."""

    def __init__(
        self,
        lake: Lake,
        model: Model,
        range: PartitionRange,
        *,
        into: str = MAIN,
        fallback: Callable[[], Executor[Any]],
        progress: Progress = SILENT,
    ) -> None:
        reason = find_partition_blocker(model)
        if reason is not None:
            raise BadInput(
                f"{model.table} cannot be computed partition by partition: {reason}.",
                f"Compute it as a whole: thermo run --full-refresh --select {model.table}.",
            )
        self.lake, self.model, self.range = lake, model, range
        self.progress = progress
        self.executor = WorkersExecutor(lake, fallback, progress)
        self.resumed = False
        self.pins: dict[str, int] = {}
        self._into = into
        self.draft = Draft(lake, new_run_id(), into)
        self._outcomes: list[UnitOutcome] = []

    def begin(self) -> None:
        """Resume an unfinished backfill of the same partitions, or start a new one."""
        with self._advise_spark():
            self._begin()

    def _begin(self) -> None:
        self.progress.step(f"find partitions {self.model.table}")
        self.lake.ensure(self.model.contract)
        state = self.lake.state(self.model.table)
        found = self._find_unfinished(state)
        if found is not None:
            run, note = found
            self.draft = Draft(self.lake, run, self._into)
            assert note.parent is not None
            self.draft.resume(self.model.table, note.parent)
            self.pins = {
                t: int(s) for t, s in json.loads(note.summary[REQUEST_KEY])["pins"].items()
            }
            protect_sources(self.draft, {self.model.table: self.pins})
            self.resumed = True
        else:
            self.draft.begin(self.model.table)
            self._pin_sources()
            protect_sources(self.draft, {self.model.table: self.pins})
            self._commit_request()
        crash_point("backfill.begun")
        self.parts = self._find_parts()
        self.progress.done(f"{len(self.parts.values):,} partitions")

    def hand_out(self, batch: int | None = None) -> list[WorkUnit]:
        """Return the work units that are left, for workers elsewhere."""
        batch = batch or self.lake.settings.workers.batch
        return split_into_units(
            self.model, self.draft, self._find_remaining(), self._spans(), batch
        )

    def compute(self, *, batch: int | None = None, count: int | None = None) -> None:
        """Compute all remaining partitions; raise BackfillFailed if some fail."""
        remaining = self._find_remaining()
        if remaining.values:
            with self._advise_spark():
                self._compute_parts(remaining, batch, count)

    @contextmanager
    def _advise_spark(self) -> Iterator[None]:
        """Replace an error's advice: a backfill does not use the engine that the setting names."""
        try:
            yield
        except UnsupportedByDuckDB as error:
            if SPARK_NEXT_STEP in error.next_step:
                whole = f"thermo run --full-refresh --select {self.model.table}"
                auto = self.lake.settings.transform.engine == "auto"
                first = "" if auto else "Set transform.engine = auto. "
                error.next_step = f"{first}Compute it as a whole, on Spark: {whole}."
            raise

    def finish(self, *, batch: int | None = None, count: int | None = None) -> PublishResult:
        """Check the table on the branch and publish it, rebased onto the current main."""
        self._commit_checked(dict(self.pins) if self.range.is_open else None)

        def recover(_: MainMoved) -> None:
            self._rebase_onto_main(batch, count)
            self._commit_checked(None)  # the other commit may have consumed more

        return retry_moved_main(self.draft.publish, recover)

    def _commit_checked(self, consumed: Mapping[str, Any] | None) -> None:
        self._check_table()
        self._commit_versions(consumed)
        crash_point("backfill.checked")

    def report(self, published: PublishResult, seconds: float) -> BackfillReport:
        """Return the report."""
        done = [outcome.done for outcome in self._outcomes if outcome.done]
        on_fallback = self.executor.reports[self.model.table].fallback_partitions
        return BackfillReport(
            run=self.draft.run,
            table=self.model.table,
            partitions=len(self.parts.values),
            computed=sum(len(o.unit.labels()) for o in self._outcomes if o.done) + on_fallback,
            rows=sum(each.rows for each in done),
            resumed=self.resumed,
            on_spark=on_fallback,
            snapshots=len({each.snapshot for each in done}),
            published=published,
            seconds=seconds,
            cpu_seconds=round(sum(each.cpu_seconds for each in done), 3),
            peak_bytes=max((each.peak_bytes for each in done), default=0),
        )

    def close(self) -> None:
        """Close the engine. An unfinished backfill can be resumed."""
        self.executor.close()
        self.draft.release()

    def _find_unfinished(self, state: TableState) -> tuple[str, Snapshot] | None:
        """Return the run and the request of an unfinished backfill of the same partitions."""
        for name, ref in state.refs.items():
            run = name.removeprefix(RUN_PREFIX)
            note = find_request(state, run, ref.snapshot) if name != run else None
            if note is None:
                continue
            request = json.loads(note.summary[REQUEST_KEY])
            same = request["range"] == self.range.as_list() and request["into"] == self._into
            if (
                same
                and request["model"] == self.model.fingerprint
                and self._are_pins_readable(request["pins"])
            ):
                return run, note
        return None

    def _are_pins_readable(self, pins: Mapping[str, int]) -> bool:
        return all(pin in self.lake.state(table).snapshots for table, pin in pins.items())

    def _pin_sources(self) -> None:
        """Pin the sources at their current snapshots."""
        self.pins = {}
        for source in self.model.sources:
            if not self.lake.exists(source):
                raise NotFound(
                    f"{self.model.table} reads {source}, which does not exist yet.",
                    "Ingest it, or run its model first.",
                )
            self.pins[source] = source_head(self.lake.state(source), self._into)

    def _commit_request(self) -> None:
        """Record the request on the branch, so that any process can resume it."""
        request = {
            "range": self.range.as_list(),
            "into": self._into,
            "model": self.model.fingerprint,
            "pins": self.pins,
        }
        self._commit_bookmark(None, {REQUEST_KEY: json.dumps(request, sort_keys=True)})

    def _commit_versions(self, consumed: Mapping[str, Any] | None) -> None:
        """Record the model version of the partitions, and the consumed input if it read all."""
        bookmark = bookmarks.read(self.lake.state(self.model.table), self.draft.branch)
        before = ModelVersions.from_bookmark(bookmark)
        done = ComputedRange(self.model.fingerprint, self.range, self.pins)
        after = before.with_backfill(done, {**bookmark, **(consumed or {})})
        if consumed is not None:
            self._commit_bookmark({**consumed, **after.as_dict()})
        elif bookmark and after != before:  # no bookmark: the table was never computed as a whole
            kept = {k: v for k, v in bookmark.items() if k not in before.as_dict()}
            self._commit_bookmark({**kept, **after.as_dict()})

    def _commit_bookmark(
        self, bookmark: Mapping[str, Any] | None, extra_properties: Mapping[str, str] | None = None
    ) -> None:
        self.draft.append(
            self.model.table,
            (),
            bookmark=bookmark,
            operation="backfill",
            extra_properties=extra_properties,
        )

    def _spans(self) -> dict[str, SourceSpan]:
        return {source: SourceSpan(source, None, pin) for source, pin in self.pins.items()}

    def _find_parts(self) -> TouchedParts:
        """Return the requested partitions: those with rows now, and those the model has rows in."""
        columns = part_columns(self.model)
        inputs = self.executor.open_inputs(self.model, self._spans()).inputs
        try:
            found = inputs.find_all_parts(columns, MAX_PARTS)
        except self.executor.failures as error:
            raise self.executor.explain_failure(error, self.model.contract) from error
        finally:
            inputs.close()
        if found is None:
            raise BadInput(
                f"{self.model.table} has more than {MAX_PARTS:,} partitions.",
                "Partition it by something coarser.",
            )
        existing = find_partitions(self.lake, self.model.table, self.draft.base(self.model.table))
        every = (*found.values, *existing)
        return TouchedParts.of(columns, (values for values in every if self.range.contains(values)))

    def _find_remaining(self) -> TouchedParts:
        """Return the partitions that the branch does not have yet."""
        from thermocline.lake.overwrite import changed_partitions, partition_values

        iceberg = self.lake.iceberg(self.model.table)
        base, head = self.draft.base(self.model.table), self.draft.head(self.model.table)
        done = {partition_values(iceberg, r) for r in changed_partitions(iceberg, base, head)}
        return TouchedParts.of(self.parts.columns, (v for v in self.parts.values if v not in done))

    def _compute_parts(self, parts: TouchedParts, batch: int | None, count: int | None) -> None:
        self.progress.step(f"backfill {self.model.table}", len(parts.values))
        failed = self.executor.compute(
            self.model, self.draft, parts, self._spans(), batch=batch, count=count
        )
        self._outcomes += self.executor.reports[self.model.table].outcomes
        if failed:
            raise self._build_failure(failed)
        self.progress.done(f"{len(parts.values):,} partitions")

    def _build_failure(self, failed: Sequence[UnitOutcome]) -> BackfillFailed:
        why = {name: str(o.error and o.error.cause) for o in failed for name in o.unit.labels()}
        few = dict(list(why.items())[:_MAX_NOTED])
        self._commit_bookmark(None, {FAILED_KEY: json.dumps(few)})
        name, cause = next(iter(why.items()))
        return BackfillFailed(
            f"{len(why):,} of {len(self.parts.values):,} partitions of {self.model.table} could "
            f"not be computed; {name}: {cause}",
            "Nothing was published; what is done is kept. Fix it and run the backfill again.",
            table=self.model.table,
            run=self.draft.run,
            partitions=why,
        )

    def _check_table(self) -> None:
        self.progress.step(f"check {self.model.table}")
        contract = self.model.contract
        snapshots = {**self.pins, contract.table: self.draft.head(contract.table)}
        # Rules may refer to tables that the model does not read.
        for table, state in self.lake.states(find_tables_read([contract])).items():
            if (head := state.head()) is not None:
                snapshots.setdefault(table, head)
        reports = check_tables(self.lake, [contract], snapshots)
        raise_if_failed(reports, self.draft.branch)
        self.progress.done()

    def _rebase_onto_main(self, batch: int | None, count: int | None) -> None:
        """Rebase the branch onto the current main; recompute partitions that both touched."""
        from thermocline.lake.overwrite import partition_values, replay_partitions

        table = self.model.table
        base, head = self.draft.base(table), self.draft.head(table)
        # The new base is read before the sources; see the module docstring.
        self.draft.rebase(table)
        iceberg = self.lake.iceberg(table)
        change, clashing = replay_partitions(iceberg, base, head, self.draft.base(table))
        before = self.pins
        self._pin_sources()
        self._commit_request()
        if not all(
            self.lake.state(source).is_ancestor(pin, of=self.pins[source])
            for source, pin in before.items()
        ):
            # A source was rolled back: the partitions were computed from another history.
            self._compute_parts(self.parts, batch, count)
            return
        if change.added or change.removed:
            self.draft.change_files(table, change, bookmark=None, operation="partitions")
        crash_point("backfill.rebased")
        conflicting = TouchedParts.of(
            self.parts.columns, (partition_values(iceberg, record) for record in clashing)
        )
        if conflicting.values:
            self._compute_parts(conflicting, batch, count)


def find_request(state: TableState, run: str, head: int) -> Snapshot | None:
    """Return the snapshot that holds the request of a branch's backfill; None if there is none."""
    for snapshot in state.ancestry(head):
        if snapshot.summary.get(bookmarks.RUN) != run:
            return None  # the branch begins here
        if REQUEST_KEY in snapshot.summary:
            return snapshot
    return None


def run(
    backfill: Backfill, *, batch: int | None = None, count: int | None = None
) -> BackfillReport:
    """Run a backfill from start to end."""
    began = time.monotonic()
    try:
        backfill.begin()
        backfill.compute(batch=batch, count=count)
        published = backfill.finish(batch=batch, count=count)
        return backfill.report(published, time.monotonic() - began)
    finally:
        backfill.close()


def parse_range(model: Model, first: str | None, last: str | None) -> PartitionRange:
    """Parse a range, in the type of the model's first partition column."""
    columns = part_columns(model)
    column = model.contract.column(columns[0]) if columns else None
    return PartitionRange(
        *(None if t is None or column is None else _parse_value(model, t) for t in (first, last))
    )


def _parse_value(model: Model, text: str) -> Any:
    name = part_columns(model)[0]
    column = model.contract.column(name)
    assert column is not None, name
    kind = "date" if is_by_day(model, name) else str(column.type)
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
            f"{text!r} is not a {kind}, the partition type of {name}.", "Write a day as 2026-11-14."
        ) from error

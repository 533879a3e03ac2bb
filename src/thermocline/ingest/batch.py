"""Land one batch: read, validate, write to a draft, and publish.

This is the same for every kind of source: good records go to bronze and bad ones to quarantine, and
the same publish records how far the source has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, DriftMode
from thermocline.contract.types import Primitive
from thermocline.errors import CheckFailed, CommitUnknown, Permanent
from thermocline.ingest import batch_stats, drift, fast_path, marks, quarantine, table_rows
from thermocline.ingest.batch_stats import BatchStats
from thermocline.ingest.layout import Layout
from thermocline.ingest.source import Source
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.ingest.validation import (
    BAD,
    FILE,
    HAS_DRIFT,
    POSITION,
    REASONS,
    UNKNOWN_FIELDS,
)
from thermocline.lake import MainMoved
from thermocline.lake.crash_points import crash_point
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.ingest.fast_path import FastRead
    from thermocline.lake import Draft, Lake
    from thermocline.lake.consumption import Consumption

SHOWN_ROWS = 3
MAX_FIELD_NAMES = 10_000
STRING = Primitive("string")


@dataclass(frozen=True)
class Provenance:
    """Where records come from: a file, a partition of a topic, an endpoint.

    `name` is for people. `identity` is a hash that stays the same when the same records arrive
    again, so that a bad record keeps its id. `layout` is the layout of its records. `records` is
    their number, if it is known and the contract names all their fields.
    """

    name: str
    identity: str
    layout: Layout
    records: int | None = None


@dataclass(frozen=True)
class UnreadableInput:
    """An input that cannot be read at all; it goes to quarantine as one row."""

    name: str
    identity: str
    flaw: str


ReadRecords = Callable[[Contract, "frozenset[int] | None"], "DataFrame"]
"""Returns the validated records of a batch, or of some of its provenances."""

OpenFastRead = Callable[[Contract], "FastRead | None"]
"""Returns a read of the batch in this process, or None if Spark should read it."""


def _skip_confirm() -> None:
    pass


@dataclass(frozen=True)
class Batch:
    """Records to land in one commit.

    FILE in the result of `read` is an index into `origins`. `expected` is the number of records, if
    known. `confirm` is called before anything becomes visible, and raises if the input has changed.
    """

    lake: Lake
    source: Source
    contract: Contract
    run: str
    origins: tuple[Provenance, ...]
    read: ReadRecords
    bookmark: Mapping[str, Any]
    consumed: Consumption
    """What the commit records as consumed."""
    expected: int | None = None
    position_ranges: tuple[tuple[int, int], ...] = ()
    """For each provenance the first position and the one after the last, if known."""
    unreadable: tuple[UnreadableInput, ...] = ()
    confirm: Callable[[], None] = _skip_confirm
    base: int | None = None
    """The snapshot of the target that the batch requires; None if any will do."""
    earlier_counts: tuple[int, int] = (0, 0)
    """Bad records and all records of earlier batches, which count towards the bad share."""
    columns_added: bool = False
    """Whether columns were already added for this batch. Further unknown fields are rescued, so
    that a batch cannot add more columns than allowed."""
    fast_path: OpenFastRead | None = None
    tolerated_bad: int = 0
    """This many bad records are tolerated regardless of their share, unless badShare is 0."""

    @property
    def all_origins(self) -> frozenset[int]:
        """The numbers of all provenances, to read them again and filter out a few records."""
        return frozenset(range(len(self.origins)))


@dataclass(frozen=True)
class BatchResult:
    """The result of a batch.

    `bytes` is the size of the payloads, and `oldest` and `newest` are event times, if records have
    them. `gaps` counts positions without a record, which a topic may legitimately have.
    """

    rows: int
    quarantined: int
    snapshot: int
    bytes: int = 0
    gaps: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None


class SchemaDrift(Exception):
    """Records have unknown fields that the drift policy must handle: names by provenance."""

    def __init__(self, fields: dict[int, set[str]]) -> None:
        super().__init__(fields)
        self.fields = fields


def land(batch: Batch) -> BatchResult:
    """Land a batch: good rows in bronze and bad ones in quarantine, in one publish or not at all.

    Raises SchemaDrift if unknown fields need handling, and MainMoved if the table changed
    concurrently. Nothing of the batch is visible then.
    """
    draft = batch.lake.draft(batch.run, late_branches=True)
    try:
        draft.begin(batch.source.target)
        if batch.base is not None and draft.base(batch.source.target) != batch.base:
            raise MainMoved([batch.source.target], draft.into)
        landed = _write(batch, draft)
        batch.confirm()
        draft.publish()
    except CommitUnknown:
        raise  # it may have landed: recovery needs the branches unchanged
    except Exception:
        draft.drop()
        raise
    crash_point("ingest.published")
    return landed


def _write(batch: Batch, draft: Draft) -> BatchResult:
    now = datetime.now(UTC)
    if batch.fast_path and (fast_read := batch.fast_path(batch.contract)) is not None:
        try:
            return _write_by_fast_path(batch, draft, fast_read, now)
        except NeedsSpark:
            pass  # no side effects; the reader has logged the reason
    frame = batch.read(batch.contract, None)
    crash_point("ingest.read")
    known = [origin.records for origin in batch.origins if origin.records is not None]
    is_counted = bool(known) and len(known) == len(batch.origins) and not batch.source.has_messages
    observation, counted = (None, frame) if is_counted else batch_stats.observe(batch, frame)
    good = counted.where(f"not {BAD}").selectExpr(*table_rows.bronze_columns(batch, now))
    snapshot = draft.commit(
        batch.source.target,
        lambda target: table_rows.append(good, target),
        bookmark=_make_bookmark(batch, draft),
        operation="ingest",
        consumed=batch.consumed,
    )
    crash_point("ingest.committed-bronze")
    found = (
        batch_stats.from_counts(observation.get)
        if observation
        else batch_stats.from_missing(batch, draft, snapshot)
    )
    _expect_every_record(batch, found)
    if found.drifted:
        _refuse_drift(batch)
    _expect_allowed_bad_share(batch, found, lambda: _sample_bad(batch))
    quarantined = 0
    if found.bad or batch.unreadable:
        quarantined = table_rows.quarantine_rows(batch, draft, found.bad_files, now)
    _expect_every_bad_row(batch, found, quarantined - len(batch.unreadable))
    crash_point("ingest.committed-quarantine")
    return _make_result(batch, found, quarantined, snapshot)


def _write_by_fast_path(
    batch: Batch, draft: Draft, fast_read: FastRead, now: datetime
) -> BatchResult:
    """Write the batch through the Arrow lane; ambiguous records are validated separately."""
    found = BatchStats(0, 0, frozenset())
    with draft.open_writer(batch.source.target) as files:
        for records in fast_read.read_unambiguous():
            found = found.plus(_count_records(batch, records))
            files.add(fast_path.to_bronze(batch, records, now))
        bad = None
        if (validated := fast_read.validate_ambiguous()) is not None:
            bad, good = fast_path.split_bad_and_good(validated)
            found = found.plus(BatchStats(validated.num_rows, bad.num_rows, frozenset()))
            files.add(fast_path.to_bronze(batch, good, now))
        crash_point("ingest.read")
        _expect_every_record(batch, found)
        _expect_allowed_bad_share(
            batch, found, lambda: [] if bad is None else bad.slice(0, SHOWN_ROWS).to_pylist()
        )
    snapshot = draft.add(
        batch.source.target, files, bookmark=_make_bookmark(batch, draft), operation="ingest",
        consumed=batch.consumed,
    )  # fmt: skip
    crash_point("ingest.committed-bronze")
    quarantined = found.bad + len(batch.unreadable)
    if quarantined:
        batch.lake.ensure(quarantine.quarantine_contract(batch.source))
        rejected = fast_path.to_quarantine(batch, bad, now)
        draft.append(batch.source.quarantine, rejected, bookmark=None, operation="quarantine")
    crash_point("ingest.committed-quarantine")
    return _make_result(batch, found, quarantined, snapshot)


def _count_records(batch: Batch, records: pa.Table) -> BatchStats:
    if batch.source.has_messages:
        return fast_path.count_messages(records, batch.position_ranges)
    return BatchStats(records.num_rows, 0, frozenset())


def _make_bookmark(batch: Batch, draft: Draft) -> Mapping[str, Any]:
    state = batch.lake.state(batch.source.target)
    return marks.merge(marks.read_all(state, draft.base(batch.source.target)), batch.bookmark)


def _make_result(batch: Batch, found: BatchStats, quarantined: int, snapshot: int) -> BatchResult:
    expected = sum(end - start for start, end in batch.position_ranges)
    return BatchResult(
        found.rows - found.bad,
        quarantined,
        snapshot,
        bytes=found.bytes,
        gaps=expected - found.rows if batch.position_ranges else 0,
        oldest=found.oldest,
        newest=found.newest,
    )


def _expect_every_record(batch: Batch, found: BatchStats) -> None:
    """Raise if records are missing or duplicated: each must land or be quarantined exactly once."""
    if batch.expected is not None and found.rows != batch.expected:
        raise Permanent(
            f"{batch.source.name}: {found.rows:,} of {batch.expected:,} records were read.",
            "Nothing of the batch landed. This is a bug; please report it.",
        )
    most = sum(end - start for start, end in batch.position_ranges)
    if batch.position_ranges and (found.outside or found.rows > most):
        raise Permanent(
            f"{batch.source.name} returned {found.rows:,} records for {most:,} positions, "
            f"{found.outside:,} of them outside the requested ranges.",
            "Nothing of the batch landed. Check whether the source was restored from a copy.",
        )


def _expect_every_bad_row(batch: Batch, found: BatchStats, kept: int) -> None:
    if kept != found.bad:
        raise Permanent(
            f"{batch.source.name}: {kept:,} of {found.bad:,} bad records were quarantined.",
            "Nothing of the batch landed. This is a bug; please report it.",
        )


def _refuse_drift(batch: Batch) -> None:
    """Raise SchemaDrift if the policy refuses the fields or adds columns for them."""
    if batch.contract.drift is DriftMode.RESCUE or batch.columns_added:
        return
    drifted = batch.read(batch.contract, batch.all_origins).where(HAS_DRIFT)
    named = drifted.selectExpr(FILE, f"explode({UNKNOWN_FIELDS}) as name").distinct()
    fields: dict[int, set[str]] = {}
    for row in named.limit(MAX_FIELD_NAMES).collect():
        fields.setdefault(row[FILE], set()).add(row["name"])
    if batch.contract.drift is DriftMode.ADD:
        found = dict.fromkeys({name for names in fields.values() for name in names}, STRING)
        if drift.add_columns(batch.contract, found) == batch.contract:
            return  # the other fields can only be rescued
    raise SchemaDrift(fields)


def _expect_allowed_bad_share(
    batch: Batch, found: BatchStats, sample: Callable[[], Sequence[Any]]
) -> None:
    """Raise if the share of bad records is too high; `sample` returns a few of them."""
    bad, rows = found.bad + batch.earlier_counts[0], found.rows + batch.earlier_counts[1]
    tolerated_bad = batch.tolerated_bad if batch.source.bad_share else 0
    if not found.bad or bad <= max(batch.source.bad_share * rows, tolerated_bad):
        return
    samples = "; ".join(
        f"{one_line(batch.origins[row[FILE]].name)}:{row[POSITION]} {one_line(row[REASONS][0])}"
        for row in sample()
    )
    raise CheckFailed(
        f"{bad:,} of {rows:,} rows for {batch.source.target} are bad, more than "
        f"{batch.source.bad_share:.0%}: {samples}",
        f"Nothing of the batch landed. Fix the source or the contract, or raise badShare of "
        f"{batch.source.name}.",
        bad=bad,
        rows=rows,
    )


def _sample_bad(batch: Batch) -> list[Any]:
    bad = batch.read(batch.contract, batch.all_origins).where(BAD)
    return bad.select(FILE, POSITION, REASONS).limit(SHOWN_ROWS).collect()

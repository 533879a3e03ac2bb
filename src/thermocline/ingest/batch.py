"""One batch: read, judged, and written to a draft, what lands and what does not.

Whatever a source is, its records take this way: good ones into bronze, bad ones into quarantine,
and how far the source has been read, in one publish.
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

    `name` is what a person calls it. `identity` is a hash that is the same whenever the same
    records come again, so that a bad one keeps its id; `layout` is how its records are written.
    `records` is how many there are, where that is known and all their fields have a place.
    """

    name: str
    identity: str
    layout: Layout
    records: int | None = None


@dataclass(frozen=True)
class UnreadableInput:
    """Something that cannot be read at all, and goes to quarantine as one row."""

    name: str
    identity: str
    flaw: str


ReadRecords = Callable[[Contract, "frozenset[int] | None"], "DataFrame"]
"""The judged records of a batch; or, to pick out bad ones, of some of its provenances."""

OpenFastRead = Callable[[Contract], "FastRead | None"]
"""The records of a batch as this process reads them; or None, and Spark is to read them."""


def _skip_confirm() -> None:
    pass


@dataclass(frozen=True)
class Batch:
    """Records that are to land in one commit.

    FILE in what `read` gives is a number in `origins`. `expected` is how many records there are,
    where that is known. `confirm` is called before anything becomes visible, and raises when what
    was read is no longer true.
    """

    lake: Lake
    source: Source
    contract: Contract
    run: str
    origins: tuple[Provenance, ...]
    read: ReadRecords
    bookmark: Mapping[str, Any]
    consumed: Consumption | None = None
    """What the commit says beside the table's pointer; None on a catalog without rows of ours."""
    expected: int | None = None
    position_ranges: tuple[tuple[int, int], ...] = ()
    """Of each provenance the first position and the one behind the last, where that is known."""
    unreadable: tuple[UnreadableInput, ...] = ()
    confirm: Callable[[], None] = _skip_confirm
    base: int | None = None
    """The snapshot of the target that the batch was made for; None when any will do."""
    before: tuple[int, int] = (0, 0)
    """Bad records and all records of the batches before, which count towards the bad share."""
    columns_added: bool = False
    """Whether columns were added for this batch already. What has none then is rescued: to add
    again would go on until every field had one, however many a batch may add."""
    fast_path: OpenFastRead | None = None
    tolerated_bad: int = 0
    """So many bad records are let through whatever their share is, unless that must be 0."""

    @property
    def all_origins(self) -> frozenset[int]:
        """The numbers of all provenances: to read all of them again and pick out a few records."""
        return frozenset(range(len(self.origins)))


@dataclass(frozen=True)
class BatchResult:
    """What a batch did.

    `bytes` are those of the payloads, and `oldest` and `newest` the event times, where records
    have any; `gaps` counts positions that no record had, which a topic may have for good reasons.
    """

    rows: int
    quarantined: int
    snapshot: int
    bytes: int = 0
    gaps: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None


class SchemaDrift(Exception):
    """Records have fields that the contract's policy cannot pass over: names by provenance."""

    def __init__(self, fields: dict[int, set[str]]) -> None:
        super().__init__(fields)
        self.fields = fields


def land(batch: Batch) -> BatchResult:
    """Land a batch: good rows in bronze, bad ones in quarantine, in one publish, or not at all.

    Raises SchemaDrift when its records must be treated otherwise, and MainMoved when somebody else
    landed something meanwhile. Nothing of the batch is visible then.
    """
    draft = batch.lake.draft(batch.run, late_branches=True)
    try:
        draft.begin(batch.source.target)
        if batch.base is not None and draft.base(batch.source.target) != batch.base:
            raise MainMoved([batch.source.target], draft.into)
        landed = _write(batch, draft)
        batch.confirm()
        if batch.consumed is not None:
            draft.land_with(batch.source.target, landed.snapshot, batch.consumed)
        draft.publish()
    except CommitUnknown:
        raise  # it may have landed: whoever looks it up needs the branches as they are
    except Exception:
        draft.drop()
        raise
    crash_point("ingest.published")
    return landed


def _write(batch: Batch, draft: Draft) -> BatchResult:
    now = datetime.now(UTC)
    if batch.fast_path and (reading := batch.fast_path(batch.contract)) is not None:
        try:
            return _write_by_fast_path(batch, draft, reading, now)
        except NeedsSpark:
            pass  # nothing happened; who declined has said why
    frame = batch.read(batch.contract, None)
    crash_point("ingest.read")
    known = [origin.records for origin in batch.origins if origin.records is not None]
    whole = bool(known) and len(known) == len(batch.origins) and not batch.source.has_messages
    seen, counted = (None, frame) if whole else batch_stats.observe(batch, frame)
    good = counted.where(f"not {BAD}").selectExpr(*table_rows.bronze_columns(batch, now))
    snapshot = draft.commit(
        batch.source.target,
        lambda target: table_rows.append(good, target),
        bookmark=_make_bookmark(batch, draft),
        operation="ingest",
    )
    crash_point("ingest.committed-bronze")
    found = (
        batch_stats.from_counts(seen.get)
        if seen
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
    batch: Batch, draft: Draft, reading: FastRead, now: datetime
) -> BatchResult:
    """The same for records that this process reads: Spark judges those that are not plain."""
    found = BatchStats(0, 0, frozenset())
    with draft.writing(batch.source.target) as files:
        for piece in reading.pieces():
            found = found.plus(_count_records(batch, piece))
            files.add(fast_path.to_bronze(batch, piece, now))
        bad = None
        if (judged := reading.judged()) is not None:
            bad, good = fast_path.split_bad_and_good(judged)
            found = found.plus(BatchStats(judged.num_rows, bad.num_rows, frozenset()))
            files.add(fast_path.to_bronze(batch, good, now))
        crash_point("ingest.read")
        _expect_every_record(batch, found)
        _expect_allowed_bad_share(
            batch, found, lambda: [] if bad is None else bad.slice(0, SHOWN_ROWS).to_pylist()
        )
    snapshot = draft.add(
        batch.source.target, files, bookmark=_make_bookmark(batch, draft), operation="ingest"
    )
    crash_point("ingest.committed-bronze")
    quarantined = found.bad + len(batch.unreadable)
    if quarantined:
        batch.lake.ensure(quarantine.quarantine_contract(batch.source))
        aside = fast_path.to_quarantine(batch, bad, now)
        draft.append(batch.source.quarantine, aside, bookmark=None, operation="quarantine")
    crash_point("ingest.committed-quarantine")
    return _make_result(batch, found, quarantined, snapshot)


def _count_records(batch: Batch, piece: pa.Table) -> BatchStats:
    if batch.source.has_messages:
        return fast_path.count_messages(piece, batch.position_ranges)
    return BatchStats(piece.num_rows, 0, frozenset())


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
    """Stop when records are missing or more than there can be: each must land once, or be set
    aside."""
    if batch.expected is not None and found.rows != batch.expected:
        raise Permanent(
            f"{batch.source.name}: {found.rows:,} of {batch.expected:,} records were read.",
            "Nothing of the batch landed. This is a bug; please report it.",
        )
    most = sum(end - start for start, end in batch.position_ranges)
    if batch.position_ranges and (found.outside or found.rows > most):
        raise Permanent(
            f"{batch.source.name} gave {found.rows:,} records for {most:,} positions, "
            f"{found.outside:,} of them others than were asked for.",
            "Nothing of the batch landed. Look whether the source was restored from a copy.",
        )


def _expect_every_bad_row(batch: Batch, found: BatchStats, kept: int) -> None:
    if kept != found.bad:
        raise Permanent(
            f"{batch.source.name}: {kept:,} of {found.bad:,} bad records were set aside.",
            "Nothing of the batch landed. This is a bug; please report it.",
        )


def _refuse_drift(batch: Batch) -> None:
    """Raise SchemaDrift where the policy refuses, or would have added a column."""
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
            return  # the rest has no place but `_rescued`
    raise SchemaDrift(fields)


def _expect_allowed_bad_share(
    batch: Batch, found: BatchStats, some: Callable[[], Sequence[Any]]
) -> None:
    """Stop when more records are bad than the source allows; `some` gives a few of them."""
    bad, rows = found.bad + batch.before[0], found.rows + batch.before[1]
    tolerated_bad = batch.tolerated_bad if batch.source.bad_share else 0
    if not found.bad or bad <= max(batch.source.bad_share * rows, tolerated_bad):
        return
    said = "; ".join(
        f"{one_line(batch.origins[row[FILE]].name)}:{row[POSITION]} {one_line(row[REASONS][0])}"
        for row in some()
    )
    raise CheckFailed(
        f"{bad:,} of {rows:,} rows for {batch.source.target} are bad, more than "
        f"{batch.source.bad_share:.0%}: {said}",
        f"Nothing of the batch landed. Mend the source or the contract, or raise badShare of "
        f"{batch.source.name}.",
        bad=bad,
        rows=rows,
    )


def _sample_bad(batch: Batch) -> list[Any]:
    bad = batch.read(batch.contract, batch.all_origins).where(BAD)
    return bad.select(FILE, POSITION, REASONS).limit(SHOWN_ROWS).collect()

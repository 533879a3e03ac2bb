"""One batch: read, judged, and written to a draft, what lands and what does not.

Whatever a source is, its records take this way: good ones into bronze, bad ones into quarantine,
and how far the source has been read, in one publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, Drift
from thermocline.contract.types import Primitive
from thermocline.errors import CheckFailed, CommitUnknown, Permanent
from thermocline.ingest import drift, marks, quarantine, rows, swift, tally
from thermocline.ingest.judge import (
    BAD,
    DRIFTED,
    FILE,
    POSITION,
    REASONS,
    UNKNOWN,
)
from thermocline.ingest.layout import Layout
from thermocline.ingest.plain import Declined
from thermocline.ingest.source import Source
from thermocline.ingest.tally import Tally
from thermocline.lake import MainMoved
from thermocline.lake.faults import crash_point
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.ingest.swift import Reading
    from thermocline.lake import Draft, Lake
    from thermocline.lake.consumed import Consumed

SHOWN = 3
MOST_NAMES = 10_000
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
class Damaged:
    """Something that cannot be read at all, and goes to quarantine as one row."""

    name: str
    identity: str
    flaw: str


Read = Callable[[Contract, "frozenset[int] | None"], "DataFrame"]
"""The judged records of a batch; or, to pick out bad ones, of some of its provenances."""

Swift = Callable[[Contract], "Reading | None"]
"""The records of a batch as this process reads them; or None, and Spark is to read them."""


def _nothing_to_confirm() -> None:
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
    read: Read
    bookmark: Mapping[str, Any]
    consumed: Consumed | None = None
    """What the commit says beside the table's pointer; None on a catalog without rows of ours."""
    expected: int | None = None
    spans: tuple[tuple[int, int], ...] = ()
    """Of each provenance the first position and the one behind the last, where that is known."""
    damaged: tuple[Damaged, ...] = ()
    confirm: Callable[[], None] = _nothing_to_confirm
    base: int | None = None
    """The snapshot of the target that the batch was made for; None when any will do."""
    before: tuple[int, int] = (0, 0)
    """Bad records and all records of the batches before, which count towards the bad share."""
    grown: bool = False
    """Whether columns were added for this batch already. What has none then is rescued: to add
    again would go on until every field had one, however many a batch may add."""
    swift: Swift | None = None
    few: int = 0
    """So many bad records are let through whatever their share is, unless that must be 0."""

    @property
    def everything(self) -> frozenset[int]:
        """The numbers of all provenances: to read all of them again and pick out a few records."""
        return frozenset(range(len(self.origins)))


@dataclass(frozen=True)
class Landed:
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


class Drifted(Exception):
    """Records have fields that the contract's policy cannot pass over: names by provenance."""

    def __init__(self, fields: dict[int, set[str]]) -> None:
        super().__init__(fields)
        self.fields = fields


def land(batch: Batch) -> Landed:
    """Land a batch: good rows in bronze, bad ones in quarantine, in one publish, or not at all.

    Raises Drifted when its records must be treated otherwise, and MainMoved when somebody else
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


def _write(batch: Batch, draft: Draft) -> Landed:
    now = datetime.now(UTC)
    if batch.swift and (reading := batch.swift(batch.contract)) is not None:
        try:
            return _write_swiftly(batch, draft, reading, now)
        except Declined:
            pass  # nothing happened; who declined has said why
    frame = batch.read(batch.contract, None)
    crash_point("ingest.read")
    known = [origin.records for origin in batch.origins if origin.records is not None]
    whole = bool(known) and len(known) == len(batch.origins) and not batch.source.messages
    seen, counted = (None, frame) if whole else tally.observed(batch, frame)
    good = counted.where(f"not {BAD}").selectExpr(*rows.bronze_columns(batch, now))
    snapshot = draft.commit(
        batch.source.target,
        lambda target: rows.append(good, target),
        bookmark=_bookmark(batch, draft),
        operation="ingest",
    )
    crash_point("ingest.committed-bronze")
    found = tally.of_counts(seen.get) if seen else tally.of_missing(batch, draft, snapshot)
    _expect_every_record(batch, found)
    if found.drifted:
        _refuse_drift(batch)
    _expect_few_bad(batch, found, lambda: _some_bad(batch))
    quarantined = 0
    if found.bad or batch.damaged:
        quarantined = rows.set_aside(batch, draft, found.bad_files, now)
    _expect_every_bad_row(batch, found, quarantined - len(batch.damaged))
    crash_point("ingest.committed-quarantine")
    return _landed(batch, found, quarantined, snapshot)


def _write_swiftly(batch: Batch, draft: Draft, reading: Reading, now: datetime) -> Landed:
    """The same for records that this process reads: Spark judges those that are not plain."""
    found = Tally(0, 0, frozenset())
    with draft.writing(batch.source.target) as files:
        for piece in reading.pieces():
            found = found.plus(_counted(batch, piece))
            files.add(swift.bronze(batch, piece, now))
        bad = None
        if (judged := reading.judged()) is not None:
            bad, good = swift.bad_and_good(judged)
            found = found.plus(Tally(judged.num_rows, bad.num_rows, frozenset()))
            files.add(swift.bronze(batch, good, now))
        crash_point("ingest.read")
        _expect_every_record(batch, found)
        _expect_few_bad(
            batch, found, lambda: [] if bad is None else bad.slice(0, SHOWN).to_pylist()
        )
    snapshot = draft.add(
        batch.source.target, files, bookmark=_bookmark(batch, draft), operation="ingest"
    )
    crash_point("ingest.committed-bronze")
    quarantined = found.bad + len(batch.damaged)
    if quarantined:
        batch.lake.ensure(quarantine.contract_of(batch.source))
        aside = swift.quarantined(batch, bad, now)
        draft.append(batch.source.quarantine, aside, bookmark=None, operation="quarantine")
    crash_point("ingest.committed-quarantine")
    return _landed(batch, found, quarantined, snapshot)


def _counted(batch: Batch, piece: pa.Table) -> Tally:
    if batch.source.messages:
        return swift.tally_of(piece, batch.spans)
    return Tally(piece.num_rows, 0, frozenset())


def _bookmark(batch: Batch, draft: Draft) -> Mapping[str, Any]:
    state = batch.lake.state(batch.source.target)
    return marks.merged(marks.carried(state, draft.base(batch.source.target)), batch.bookmark)


def _landed(batch: Batch, found: Tally, quarantined: int, snapshot: int) -> Landed:
    return Landed(
        found.rows - found.bad, quarantined, snapshot,
        bytes=found.bytes,
        gaps=sum(end - start for start, end in batch.spans) - found.rows if batch.spans else 0,
        oldest=found.oldest,
        newest=found.newest,
    )  # fmt: skip


def _expect_every_record(batch: Batch, found: Tally) -> None:
    """Stop when records are missing or more than there can be: each must land once, or be set
    aside."""
    if batch.expected is not None and found.rows != batch.expected:
        raise Permanent(
            f"{batch.source.name}: {found.rows:,} of {batch.expected:,} records were read.",
            "Nothing of the batch landed. This is a bug; please report it.",
        )
    most = sum(end - start for start, end in batch.spans)
    if batch.spans and (found.outside or found.rows > most):
        raise Permanent(
            f"{batch.source.name} gave {found.rows:,} records for {most:,} positions, "
            f"{found.outside:,} of them others than were asked for.",
            "Nothing of the batch landed. Look whether the source was restored from a copy.",
        )


def _expect_every_bad_row(batch: Batch, found: Tally, kept: int) -> None:
    if kept != found.bad:
        raise Permanent(
            f"{batch.source.name}: {kept:,} of {found.bad:,} bad records were set aside.",
            "Nothing of the batch landed. This is a bug; please report it.",
        )


def _refuse_drift(batch: Batch) -> None:
    """Raise Drifted where the policy refuses, or would have added a column."""
    if batch.contract.drift is Drift.RESCUE or batch.grown:
        return
    drifted = batch.read(batch.contract, batch.everything).where(DRIFTED)
    named = drifted.selectExpr(FILE, f"explode({UNKNOWN}) as name").distinct()
    fields: dict[int, set[str]] = {}
    for row in named.limit(MOST_NAMES).collect():
        fields.setdefault(row[FILE], set()).add(row["name"])
    if batch.contract.drift is Drift.ADD:
        found = dict.fromkeys({name for names in fields.values() for name in names}, STRING)
        if drift.added(batch.contract, found) == batch.contract:
            return  # the rest has no place but `_rescued`
    raise Drifted(fields)


def _expect_few_bad(batch: Batch, found: Tally, some: Callable[[], Sequence[Any]]) -> None:
    """Stop when more records are bad than the source allows; `some` gives a few of them."""
    bad, rows = found.bad + batch.before[0], found.rows + batch.before[1]
    few = batch.few if batch.source.bad_share else 0
    if not found.bad or bad <= max(batch.source.bad_share * rows, few):
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


def _some_bad(batch: Batch) -> list[Any]:
    bad = batch.read(batch.contract, batch.everything).where(BAD)
    return bad.select(FILE, POSITION, REASONS).limit(SHOWN).collect()

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
from thermocline.engine.spark_types import quoted
from thermocline.errors import CheckFailed, CommitUnknown, Permanent
from thermocline.ingest import drift, marks, quarantine, tally
from thermocline.ingest.judge import (
    BAD,
    DRIFTED,
    FILE,
    MESSAGE,
    POSITION,
    RAW,
    REASONS,
    RESCUED,
    UNKNOWN,
)
from thermocline.ingest.layout import Layout
from thermocline.ingest.lines import NOT_TEXT, TOO_LONG
from thermocline.ingest.source import Source
from thermocline.ingest.tally import Tally
from thermocline.ingest.values import instant, literal
from thermocline.lake import MainMoved
from thermocline.lake.faults import crash_point
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.lake import Draft, Lake

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
    draft = batch.lake.draft(batch.run)
    try:
        draft.begin(batch.source.target)
        if batch.base is not None and draft.base(batch.source.target) != batch.base:
            raise MainMoved([batch.source.target], draft.into)
        landed = _write(batch, draft)
        batch.confirm()
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
    frame = batch.read(batch.contract, None)
    crash_point("ingest.read")
    known = [origin.records for origin in batch.origins if origin.records is not None]
    whole = bool(known) and len(known) == len(batch.origins) and not batch.source.messages
    seen, rows = (None, frame) if whole else tally.observed(batch, frame)
    good = rows.where(f"not {BAD}").selectExpr(*_bronze_columns(batch, now))
    table = batch.source.target
    base = batch.lake.state(table)
    bookmark = marks.merged(marks.carried(base, draft.base(table)), batch.bookmark)
    snapshot = draft.commit(
        table, lambda target: append(good, target), bookmark=bookmark, operation="ingest"
    )
    crash_point("ingest.committed-bronze")
    found = tally.of_counts(seen.get) if seen else tally.of_missing(batch, draft, snapshot)
    _expect_every_record(batch, found)
    if found.drifted:
        _refuse_drift(batch)
    bad, count = found.bad + batch.before[0], found.rows + batch.before[1]
    few = batch.few if batch.source.bad_share else 0
    if found.bad and bad > max(batch.source.bad_share * count, few):
        raise _too_many_bad(batch, bad, count)
    quarantined = 0
    if found.bad or batch.damaged:
        quarantined = _quarantine(batch, draft, found.bad_files, now)
    _expect_every_bad_row(batch, found, quarantined - len(batch.damaged))
    crash_point("ingest.committed-quarantine")
    return Landed(
        found.rows - found.bad, quarantined, snapshot,
        bytes=found.bytes,
        gaps=sum(end - start for start, end in batch.spans) - found.rows if batch.spans else 0,
        oldest=found.oldest,
        newest=found.newest,
    )  # fmt: skip


def append(frame: DataFrame, target: str) -> None:
    """Add judged rows to a table."""
    # Required columns are checked row by row before; Spark only sees that they are nullable.
    frame.writeTo(target).option("check-nullability", "false").append()


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


def _bronze_columns(batch: Batch, now: datetime) -> list[str]:
    filled = {
        "_source": literal(batch.source.name),
        "_source_file": _by_file([origin.name for origin in batch.origins]),
        "_position": POSITION,
        "_ingested_at": instant(now),
        "_rescued": RESCUED,
    }
    if batch.source.messages:
        filled |= MESSAGE
    return [
        f"{filled.get(column.name, quoted(column.name))} as {quoted(column.name)}"
        for column in batch.contract.table_columns
    ]


def _by_file(texts: Sequence[str]) -> str:
    """The text that belongs to a row's file."""
    listed = ", ".join(literal(text) for text in texts) or "''"
    return f"array({listed})[{FILE}]"


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


def _too_many_bad(batch: Batch, bad: int, rows: int) -> CheckFailed:
    bad_rows = batch.read(batch.contract, batch.everything).where(BAD)
    samples = bad_rows.selectExpr(FILE, POSITION, f"{REASONS}[0] as reason").limit(SHOWN)
    said = "; ".join(
        f"{one_line(batch.origins[row[FILE]].name)}:{row[POSITION]} {one_line(row['reason'])}"
        for row in samples.collect()
    )
    return CheckFailed(
        f"{bad:,} of {rows:,} rows for {batch.source.target} are bad, more than "
        f"{batch.source.bad_share:.0%}: {said}",
        f"Nothing of the batch landed. Mend the source or the contract, or raise badShare of "
        f"{batch.source.name}.",
        bad=bad,
        rows=rows,
    )


def _quarantine(batch: Batch, draft: Draft, bad: frozenset[int], now: datetime) -> int:
    """Write the bad rows, and what is damaged as rows of its own; says how many there are."""
    batch.lake.ensure(quarantine.contract_of(batch.source))
    frame = _damaged_rows(batch)
    if bad:
        judged = batch.read(batch.contract, bad).where(BAD)
        rows = judged.selectExpr(*_quarantine_columns(batch))
        frame = rows.unionByName(frame, allowMissingColumns=True) if batch.damaged else rows
    stamped = frame.selectExpr(
        "sha2(concat(file_sha256, ':', position), 256) as id",
        f"{literal(batch.source.name)} as source",
        f"{literal(batch.source.target)} as target",
        "file", "file_sha256", "position", "reasons", "raw", "layout",
        f"{literal(batch.run)} as run",
        f"{instant(now)} as quarantined_at",
        "cast(null as timestamp) as replayed_at",
        "cast(null as string) as replayed_run",
        *(MESSAGE if batch.source.messages else ()),
    )  # fmt: skip
    table = batch.source.quarantine
    snapshot = draft.commit(
        table, lambda target: append(stamped, target), bookmark=None, operation="quarantine"
    )
    return tally.added(batch.lake, table, snapshot)


def _quarantine_columns(batch: Batch) -> list[str]:
    # What was cut or could not be decoded cannot be read again from here.
    whole = f"{REASONS}[0] not in ({literal(TOO_LONG)}, {literal(NOT_TEXT)})"
    layouts = _by_file([origin.layout.written() for origin in batch.origins])
    return [
        f"{_by_file([origin.name for origin in batch.origins])} as file",
        f"{_by_file([origin.identity for origin in batch.origins])} as file_sha256",
        f"{POSITION} as position",
        f"{REASONS} as reasons",
        f"{RAW} as raw",
        f"case when {whole} then {layouts} end as layout",
        *(f"{it} as {name}" for name, it in MESSAGE.items() if batch.source.messages),
    ]


def _damaged_rows(batch: Batch) -> DataFrame:
    rows = [(each.name, each.identity, 0, [each.flaw], None, None) for each in batch.damaged]
    schema = (
        "file string, file_sha256 string, position long, reasons array<string>, "
        "raw string, layout string"
    )
    return batch.lake.spark.session.createDataFrame(rows, schema)

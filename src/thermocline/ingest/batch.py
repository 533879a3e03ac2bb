"""One batch of files: read, judge, and write to a draft what lands and what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, Drift
from thermocline.contract.types import Primitive
from thermocline.engine.spark import CATALOG
from thermocline.errors import CheckFailed, CommitUnknown, Permanent, Transient
from thermocline.ingest import drift, ledger, quarantine
from thermocline.ingest.judge import BAD, DRIFTED, FILE, POSITION, RAW, REASONS, RESCUED, UNKNOWN
from thermocline.ingest.landing import Folder
from thermocline.ingest.layout import Layout
from thermocline.ingest.lines import NOT_TEXT, TOO_LONG
from thermocline.ingest.read import read
from thermocline.ingest.source import Source
from thermocline.ingest.values import instant, literal, quoted
from thermocline.lake.faults import crash_point
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

    from thermocline.ingest.examine import Examined
    from thermocline.ingest.stage import Staged
    from thermocline.lake import Draft, Lake

SHOWN = 3
MOST_NAMES = 10_000
STRING = Primitive("string")


@dataclass(frozen=True)
class Landed:
    """What a batch did."""

    files: int
    rows: int
    quarantined: int
    snapshot: int


@dataclass(frozen=True)
class Batch:
    """Files that are to land in one commit. `damaged` ones only go to quarantine, as files."""

    lake: Lake
    source: Source
    contract: Contract
    folder: Folder
    files: tuple[Staged, ...]
    damaged: tuple[Examined, ...]
    run: str

    @property
    def all_files(self) -> list[Examined]:
        """Every file that the commit's bookmark will name."""
        return [*(file.examined for file in self.files), *self.damaged]

    def without(self, gone: set[str]) -> Batch:
        """The batch without some files, by hash."""
        kept = tuple(file for file in self.files if file.examined.sha256 not in gone)
        return replace(self, files=kept)


class Drifted(Exception):
    """Records have fields that the contract's policy cannot pass over: names by file hash."""

    def __init__(self, fields: dict[str, set[str]]) -> None:
        super().__init__(fields)
        self.fields = fields


def land(batch: Batch) -> Landed:
    """Land a batch: good rows in bronze, bad ones in quarantine, in one publish, or not at all.

    Raises Drifted when its files must be treated otherwise, and MainMoved when somebody else
    landed something meanwhile. Nothing of the batch is visible then.
    """
    draft = batch.lake.draft(batch.run)
    try:
        landed = _write(batch, draft)
        for file in batch.all_files:
            if not batch.folder.unchanged(file.file):
                raise Transient(
                    f"{one_line(file.file.name)} changed while it was read.",
                    "Nothing of the batch landed. Run again when the file is complete.",
                )
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
    frame = read(batch.lake.spark.session, batch.files, batch.source, batch.contract)
    crash_point("ingest.read")
    known = _records_by_file(batch)
    seen, rows = (None, frame) if known else _observed(frame)
    good = rows.where(f"not {BAD}").selectExpr(*_bronze_columns(batch, now))
    snapshot = draft.commit(
        batch.source.target,
        lambda target: _append(good, target),
        bookmark=ledger.bookmark_of(batch.all_files),
        operation="ingest",
    )
    crash_point("ingest.committed-bronze")
    found = _found(seen.get) if seen else _missing(batch, known, draft, snapshot)
    if found.drifted:
        _refuse_drift(batch, frame)
    if found.bad > batch.source.bad_share * found.rows:
        raise _too_many_bad(batch, frame, found.bad, found.rows)
    quarantined = 0
    if found.bad or batch.damaged:
        quarantined = _quarantine(batch, draft, found.bad_files, now)
    _expect_every_record(batch, found, quarantined - len(batch.damaged))
    crash_point("ingest.committed-quarantine")
    return Landed(len(batch.all_files), found.rows - found.bad, quarantined, snapshot)


@dataclass(frozen=True)
class Found:
    """What a batch's records turned out to be. `bad_files` are those with bad rows, by number."""

    rows: int
    bad: int
    bad_files: frozenset[int]
    drifted: bool = False


def _records_by_file(batch: Batch) -> dict[str, int]:
    """How many records the files say they have, by name; empty where only reading tells.

    Nor is that enough where records have fields that the contract does not name.
    """
    counts: dict[str, int] = {}
    for file in batch.files:
        records = file.examined.records
        if records is None or drift.stray_fields(file.examined, batch.contract):
            return {}
        counts[file.examined.file.name] = records
    return counts


def _observed(frame: DataFrame) -> tuple[Observation, DataFrame]:
    """The rows, counted while they are written: a second reading is needed only for bad ones.

    What only those need is left out before, because Spark computes all that a count looks at.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    counted = frame.drop(RAW, UNKNOWN).observe(
        seen,
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.expr(BAD)).alias("bad"),
        F.count_if(F.col(DRIFTED)).alias("drifted"),
        F.collect_set(F.expr(f"case when {BAD} then {FILE} end")).alias("bad_files"),
    )
    return seen, counted


def _found(counts: Mapping[str, Any]) -> Found:
    bad_files = frozenset(counts["bad_files"])
    return Found(counts["rows"], counts["bad"], bad_files, bool(counts["drifted"]))


def _missing(batch: Batch, known: dict[str, int], draft: Draft, snapshot: int) -> Found:
    """What files of known length did not bring. Cheaper than counting rows on their way: Spark
    reads, judges and writes them in one loop then."""
    rows = sum(known.values())
    bad = rows - _added(draft.lake, batch.source.target, snapshot)
    if not bad:
        return Found(rows, 0, frozenset())
    landed = _landed_by_file(draft, batch.source.target, snapshot)
    lacking = (i for i, (name, count) in enumerate(known.items()) if landed.get(name, 0) < count)
    return Found(rows, bad, frozenset(lacking))


def _landed_by_file(draft: Draft, table: str, snapshot: int) -> dict[str, int]:
    reader = draft.lake.spark.session.read.option("start-snapshot-id", str(draft.base(table)))
    added = reader.option("end-snapshot-id", str(snapshot)).table(f"{CATALOG}.{table}")
    return {row[0]: row[1] for row in added.groupBy("_source_file").count().collect()}


def _append(frame: DataFrame, target: str) -> None:
    # Required columns are checked row by row before; Spark only sees that they are nullable.
    frame.writeTo(target).option("check-nullability", "false").append()


def _added(lake: Lake, table: str, snapshot: int) -> int:
    return lake.state(table).snapshot(snapshot).count("added-records")


def _expect_every_record(batch: Batch, found: Found, kept: int) -> None:
    """Stop when a record was neither landed nor set aside."""
    counted = [file.examined.records for file in batch.files]
    expected = sum(count for count in counted if count is not None)
    short = None not in counted and found.rows != expected
    if short or kept != found.bad:
        raise Permanent(
            f"{batch.source.name}: of {expected if short else found.rows:,} records "
            f"{found.rows - found.bad:,} were read and {kept:,} set aside.",
            "Nothing of the batch landed. This is a bug; please report it.",
        )


def _bronze_columns(batch: Batch, now: datetime) -> list[str]:
    filled = {
        "_source": literal(batch.source.name),
        "_source_file": _by_file([file.examined.file.name for file in batch.files]),
        "_position": POSITION,
        "_ingested_at": instant(now),
        "_rescued": RESCUED,
    }
    return [
        f"{filled.get(column.name, quoted(column.name))} as {quoted(column.name)}"
        for column in batch.contract.table_columns
    ]


def _by_file(texts: Sequence[str]) -> str:
    """The text that belongs to a row's file."""
    listed = ", ".join(literal(text) for text in texts) or "''"
    return f"array({listed})[{FILE}]"


def _refuse_drift(batch: Batch, frame: DataFrame) -> None:
    """Raise Drifted where the policy refuses, or would have added a column."""
    if batch.contract.drift is Drift.RESCUE:
        return
    named = frame.where(DRIFTED).selectExpr(FILE, f"explode({UNKNOWN}) as name").distinct()
    fields: dict[str, set[str]] = {}
    for row in named.limit(MOST_NAMES).collect():
        fields.setdefault(batch.files[row[FILE]].examined.sha256, set()).add(row["name"])
    if batch.contract.drift is Drift.ADD:
        found = dict.fromkeys({name for names in fields.values() for name in names}, STRING)
        if drift.added(batch.contract, found) == batch.contract:
            return  # the rest has no place but `_rescued`
    raise Drifted(fields)


def _too_many_bad(batch: Batch, frame: DataFrame, bad: int, rows: int) -> CheckFailed:
    samples = frame.where(BAD).selectExpr(FILE, POSITION, f"{REASONS}[0] as reason").limit(SHOWN)
    said = "; ".join(
        f"{one_line(batch.files[row[FILE]].examined.file.name)}:{row[POSITION]} "
        f"{one_line(row['reason'])}"
        for row in samples.collect()
    )
    return CheckFailed(
        f"{bad:,} of {rows:,} rows for {batch.source.target} are bad, more than "
        f"{batch.source.bad_share:.0%}: {said}",
        f"Nothing of the batch landed. Mend the files or the contract, or raise badShare of "
        f"{batch.source.name}.",
        bad=bad,
        rows=rows,
    )


def _quarantine(batch: Batch, draft: Draft, bad_files: Set[int], now: datetime) -> int:
    """Write the bad rows, and the damaged files as rows of their own; says how many there are."""
    spark = batch.lake.spark.session
    batch.lake.ensure(quarantine.contract_of(batch.source))
    frame = _damaged_rows(batch)
    if bad_files:
        again = replace(batch, files=tuple(batch.files[i] for i in sorted(bad_files)))
        judged = read(spark, again.files, batch.source, batch.contract).where(BAD)
        frame = judged.selectExpr(*_quarantine_columns(again)).unionByName(frame)
    stamped = frame.selectExpr(
        "sha2(concat(file_sha256, ':', position), 256) as id",
        f"{literal(batch.source.name)} as source",
        f"{literal(batch.source.target)} as target",
        "file", "file_sha256", "position", "reasons", "raw", "layout",
        f"{literal(batch.run)} as run",
        f"{instant(now)} as quarantined_at",
        "cast(null as timestamp) as replayed_at",
        "cast(null as string) as replayed_run",
    )  # fmt: skip
    table = batch.source.quarantine
    snapshot = draft.commit(
        table, lambda target: _append(stamped, target), bookmark=None, operation="quarantine"
    )
    return _added(batch.lake, table, snapshot)


def _quarantine_columns(batch: Batch) -> list[str]:
    examined = [file.examined for file in batch.files]
    layouts = [Layout.of(file, batch.source, batch.contract).written() for file in examined]
    # What was cut or could not be decoded cannot be read again from here.
    whole = f"{REASONS}[0] not in ({literal(TOO_LONG)}, {literal(NOT_TEXT)})"
    return [
        f"{_by_file([file.file.name for file in examined])} as file",
        f"{_by_file([file.sha256 for file in examined])} as file_sha256",
        f"{POSITION} as position",
        f"{REASONS} as reasons",
        f"{RAW} as raw",
        f"case when {whole} then {_by_file(layouts)} end as layout",
    ]


def _damaged_rows(batch: Batch) -> DataFrame:
    rows = [
        (file.file.name, file.sha256, 0, [file.flaw or "cannot be read"], None, None)
        for file in batch.damaged
    ]
    schema = (
        "file string, file_sha256 string, position long, reasons array<string>, "
        "raw string, layout string"
    )
    return batch.lake.spark.session.createDataFrame(rows, schema)

"""Flatten Debezium's change events to records: the row and its position in the source's log.

An event is an envelope: the operation (c created, u updated, d deleted, r read, t truncated), the
row before and after it, and its source. The landed record is the row after the change (for a
delete, the row before it) as JSON, preceded by the envelope fields that the contract has columns
for. The whole envelope is kept as the payload.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from thermocline.contract.definition import Contract
from thermocline.ingest.lines import FLAW
from thermocline.ingest.validation import EVENT_TIME, FILE, HEADERS, KEY, PAYLOAD, POSITION, RAW
from thermocline.ingest.value_expressions import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OP, TS_MS, LSN, TXN, TABLE = "_op", "_ts_ms", "_lsn", "_txn", "_table"
COLUMNS = (OP, TS_MS, LSN, TXN, TABLE)
"""The envelope fields that a contract may have as columns."""

NO_EVENT = "not a change event of Debezium"
TRUNCATED = "a truncate, which needs the columns _op and _lsn in the contract"
NOT_SENT = (
    "a large value that did not change was not sent, and the change that it is from is not known; "
    "set the table's replica identity to full in the source"
)

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"
"""Debezium's default placeholder for an unsent value. A real text may equal it."""

ROW, UNSENT = "__tc_row", "__tc_unsent"
"""A row as JSON text, and the names of its columns with unsent values."""

MEMBERS = "map<string,string>"
_E = "__tc_e"
_FORM = (
    "op string, before string, after string, payload string, unsent array<string>, "
    "source struct<lsn:string,txId:string,table:string,schema:string,ts_ms:string>"
)
_LINES = (FILE, POSITION, KEY, HEADERS, PAYLOAD)


@dataclass(frozen=True)
class Placeholders:
    """What Debezium writes in place of an unsent value, by the value's type."""

    text: str

    def forms(self) -> tuple[str, ...]:
        """Return the placeholder's forms as texts of a row's members."""
        raw = self.text.encode()
        bytes_ = base64.b64encode(raw).decode()
        numbers = ",".join(map(str, raw))
        # The same derivation as Java's UUID.nameUUIDFromBytes.
        uuid = UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3)
        return (
            self.text, bytes_, f"[{numbers}]", f'["{self.text}"]', f'["{bytes_}"]', f'["{uuid}"]',
            f'{{"{self.text}":"{self.text}"}}',
        )  # fmt: skip

    def unsent_expression(self, row: str) -> str:
        """Return an expression for the names of a row's columns that hold a placeholder."""
        shortest = [text.strip('[]{"}') for text in self.forms()[1:6]]
        marks = " or ".join(f"contains({row}, {literal(t)})" for t in (self.text, *shortest))
        forms = ", ".join(literal(form) for form in self.forms())
        placeholders_found = (
            f"map_keys(map_filter(from_json({row}, '{MEMBERS}'), (k, v) -> v in ({forms})))"
        )
        return f"if({marks}, {placeholders_found}, null)"


@dataclass(frozen=True)
class Truncation:
    """The moment a table became empty: by a truncate, or because it is read again."""

    file: int
    position: int
    lsn: int
    ts_ms: int
    txn: str | None
    payload: str | None


def flatten_events(lines: DataFrame, contract: Contract | None = None) -> DataFrame:
    """Fill RAW, FLAW and EVENT_TIME of lines from the envelope in PAYLOAD.

    A tombstone only repeats the delete before it, for Kafka's compaction, and is left out. Without
    a contract, RAW has all fields of the envelope.
    """
    return to_lines(parse_events(lines, placeholders=Placeholders(DEFAULT_PLACEHOLDER)), contract)


def parse_events(
    lines: DataFrame, snapshot_lsn: int | None = None, placeholders: Placeholders | None = None
) -> DataFrame:
    """Parse each event: the envelope's columns, the row as JSON, and its unsent columns.

    The embedded reader lists unsent values; Debezium writes `placeholders` in their place.
    `snapshot_lsn` is the log position for rows of the initial snapshot, older than every later
    change. Debezium's own position is newer than the first changes of transactions that were open
    at that moment, so the snapshot would win over them.
    """
    text = f"cast({PAYLOAD} as string)"
    outer = lines.where(f"{PAYLOAD} is not null").selectExpr(
        *_LINES, FLAW, f"from_json({text}, {literal(_FORM)}) as {_E}"
    )
    # With schemas, a converter wraps the envelope again.
    inner = f"from_json({_E}.payload, {literal(_FORM)})"
    frame = outer.selectExpr(
        *_LINES, FLAW, f"if({_E}.op is null and {_E}.payload is not null, {inner}, {_E}) as {_E}"
    )
    lsn = f"cast({_E}.source.lsn as bigint)"
    if snapshot_lsn is not None:
        lsn = f"if({_E}.op = 'r', {snapshot_lsn}L, {lsn})"
    row = f"coalesce({_E}.after, {_E}.before, cast({KEY} as string))"
    unsent = f"{_E}.unsent" if placeholders is None else placeholders.unsent_expression(row)
    return frame.selectExpr(
        *_LINES,
        FLAW,
        f"{_E}.op as {OP}",
        f"cast({_E}.source.ts_ms as bigint) as {TS_MS}",
        f"{lsn} as {LSN}",
        f"{_E}.source.txId as {TXN}",
        f"{_E}.source.table as {TABLE}",
        f"{row} as {ROW}",
        f"coalesce({unsent}, array()) as {UNSENT}",
    )


def reduce_deletes_to_keys(parts: DataFrame, files: Sequence[int]) -> DataFrame:
    """Reduce the deletes of some files to the row's key.

    A source without full replica identity sends only the key of a deleted row. Debezium then makes
    up values for other columns that are not nullable.
    """
    from pyspark.sql import functions as F

    listed = ", ".join(map(str, files))
    key = f"if({OP} = 'd' and {FILE} in ({listed}), cast({KEY} as string), {ROW})"
    return parts.withColumn(ROW, F.expr(key))


def expand_truncates(
    parts: DataFrame, truncations: Sequence[Truncation], history: DataFrame
) -> DataFrame:
    """Replace every truncate by a delete of each row that existed.

    These are the rows of `history`, the landed table, and earlier rows of the same batch. A delete
    has the last known values of the row, so it satisfies the contract.
    """
    from pyspark.sql import functions as F

    first = {
        truncation.file: truncation
        for truncation in sorted(
            truncations, key=lambda truncation: truncation.position, reverse=True
        )
    }
    changes = parts.where(f"coalesce({OP}, '') <> 't'")
    every = _truncations_frame(parts.sparkSession, truncations)
    within = (
        changes.where(f"{OP} is not null and {FLAW} is null")
        .join(every, F.expr(f"{FILE} = __cut_file and {POSITION} < __cut_at"))
        .groupBy(KEY, *every.columns)
        .agg(F.expr(f"max_by(struct({OP}, {TABLE}, {ROW}), {POSITION}) as last"))
    )
    landed = (
        history.join(_truncations_frame(parts.sparkSession, list(first.values())), "__cut_file")
        .groupBy(KEY, *every.columns)
        .agg(F.expr(f"max_by(struct({OP}, {TABLE}, {ROW}), {LSN}) as last"))
        .join(within, [KEY, "__cut_file"], "leftanti")
    )
    deleted = within.unionByName(landed).where(f"last.{OP} <> 'd'")
    deletes = deleted.selectExpr(
        f"__cut_file as {FILE}", f"__cut_at as {POSITION}", KEY,
        f"cast(null as array<struct<key:string,value:binary>>) as {HEADERS}",
        f"cast(__cut_payload as binary) as {PAYLOAD}", f"cast(null as string) as {FLAW}",
        f"'d' as {OP}", f"__cut_ts as {TS_MS}", f"__cut_lsn as {LSN}", f"__cut_txn as {TXN}",
        f"last.{TABLE} as {TABLE}", f"last.{ROW} as {ROW}",
        f"cast(array() as array<string>) as {UNSENT}",
    )  # fmt: skip
    return changes.unionByName(deletes)


def _truncations_frame(spark: SparkSession, truncations: Sequence[Truncation]) -> DataFrame:
    from pyspark.sql import functions as F

    schema = (
        "__cut_file int, __cut_at long, __cut_lsn long, __cut_ts long, __cut_txn string, "
        "__cut_payload string"
    )
    return F.broadcast(
        spark.createDataFrame([astuple(truncation) for truncation in truncations], schema)
    )


def has_order_columns(contract: Contract) -> bool:
    """Whether a contract has the columns that order two changes."""
    return {OP, LSN} <= {column.name for column in contract.columns}


def to_lines(
    parts: DataFrame, contract: Contract | None, doubt: str = "cast(null as string)"
) -> DataFrame:
    """Convert parsed events to lines. `doubt` is an expression for why a readable row is flawed."""
    event = f"cast({PAYLOAD} as string)"
    flaw = (
        f"case when {FLAW} is not null then {FLAW} "
        f"when {OP} is null or {LSN} is null then {literal(NO_EVENT)} "
        f"when {OP} = 't' then {literal(TRUNCATED)} "
        f"when size({UNSENT}) > 0 then {literal(NOT_SENT)} else {doubt} end"
    )
    lines = {
        FILE: FILE,
        POSITION: POSITION,
        # For an incomplete row, RAW is the whole event.
        RAW: f"if(size({UNSENT}) > 0, {event}, coalesce({_flat_json(contract)}, {event}))",
        FLAW: flaw,
        KEY: KEY,
        HEADERS: HEADERS,
        EVENT_TIME: f"timestamp_millis({TS_MS})",
        PAYLOAD: PAYLOAD,
    }
    # A generator keeps Spark from repeating these expressions wherever a later step uses RAW;
    # without it, planning a filter on FLAW took 17 s.
    cells = ", ".join(f"{it} as {name}" for name, it in lines.items())
    return parts.selectExpr(f"inline(array(struct({cells})))")


def _flat_json(contract: Contract | None) -> str:
    """Return an expression for the row as JSON, with the envelope's columns first."""
    named = {*COLUMNS} if contract is None else {column.name for column in contract.columns}
    texts = {
        OP: f"concat('\"', {OP}, '\"')",
        TS_MS: f"cast({TS_MS} as string)",
        LSN: f"cast({LSN} as string)",
        TXN: f"coalesce(concat('\"', {TXN}, '\"'), 'null')",
        # A table's name may need escaping: let to_json escape it inside a list of one.
        TABLE: f"coalesce(regexp_extract(to_json(array({TABLE})), '^.(.*).$', 1), 'null')",
    }
    cells = [f"'\"{name}\":', {texts[name]}" for name in COLUMNS if name in named]
    if not cells:
        return ROW
    front = ", ',', ".join(cells)
    rest = f"if({ROW} = '{{}}', '}}', concat(',', substring({ROW}, 2)))"
    return f"concat('{{', {front}, {rest})"

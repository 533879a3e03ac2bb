"""Debezium's change events as flat records: the row, and where in the source's log it changed.

An event is an envelope: the operation (c created, u updated, d deleted, r read, t truncated), the
row before and after it, and its source. What lands is the row after the change, of a delete the
row before it, as JSON, with as much of the envelope in front as the contract has columns for. The
envelope itself is kept whole beside it.
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
"""What a contract may have of the envelope."""

NO_EVENT = "not a change event of Debezium"
TRUNCATED = "a truncate, which needs the columns _op and _lsn in the contract"
NOT_SENT = (
    "a large value that did not change was not sent, and the change that it is from is not known; "
    "set the table's replica identity to full in the source"
)

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"
"""What a Debezium that others run puts where a value was not sent. Any text may equal it."""

ROW, UNSENT = "__tc_row", "__tc_unsent"
"""A row as JSON text, and the names of its columns whose values were not sent."""

MEMBERS = "map<string,string>"
_E = "__tc_e"
_FORM = (
    "op string, before string, after string, payload string, unsent array<string>, "
    "source struct<lsn:string,txId:string,table:string,schema:string,ts_ms:string>"
)
_LINES = (FILE, POSITION, KEY, HEADERS, PAYLOAD)


@dataclass(frozen=True)
class Placeholders:
    """What Debezium writes in place of a value that was not sent, by the value's type."""

    text: str

    def forms(self) -> tuple[str, ...]:
        """Return the forms as the texts of members of a row."""
        raw = self.text.encode()
        bytes_ = base64.b64encode(raw).decode()
        numbers = ",".join(map(str, raw))
        # As Java derives a UUID from bytes.
        uuid = UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3)
        return (
            self.text, bytes_, f"[{numbers}]", f'["{self.text}"]', f'["{bytes_}"]', f'["{uuid}"]',
            f'{{"{self.text}":"{self.text}"}}',
        )  # fmt: skip

    def unsent(self, row: str) -> str:
        """Return an expression for the names of a row's columns that hold one of the forms."""
        shortest = [text.strip('[]{"}') for text in self.forms()[1:6]]
        marks = " or ".join(f"contains({row}, {literal(t)})" for t in (self.text, *shortest))
        forms = ", ".join(literal(form) for form in self.forms())
        held = f"map_keys(map_filter(from_json({row}, '{MEMBERS}'), (k, v) -> v in ({forms})))"
        return f"if({marks}, {held}, null)"


@dataclass(frozen=True)
class Truncation:
    """A moment from which a table was empty: by a truncate, or because it is read anew."""

    file: int
    position: int
    lsn: int
    ts_ms: int
    txn: str | None
    payload: str | None


def flatten_events(lines: DataFrame, contract: Contract | None = None) -> DataFrame:
    """Lines whose PAYLOAD is an envelope, with RAW, FLAW and EVENT_TIME filled from it.

    A tombstone only repeats the delete before it, for Kafka's compaction, and is left out.
    Without a contract, RAW has all that the envelope says.
    """
    return to_lines(parse_events(lines, placeholders=Placeholders(DEFAULT_PLACEHOLDER)), contract)


def parse_events(
    lines: DataFrame, reads_at: int | None = None, placeholders: Placeholders | None = None
) -> DataFrame:
    """The parts of each event: the columns of the envelope, the row as JSON, and what it lacks.

    Our own reader says which values were not sent; Debezium writes `placeholders` in their place.
    `reads_at` is the place in the log that rows of the first state are given: one that is older
    than every change that follows. Debezium's own is newer than the first changes of transactions
    that were under way at that moment, and would win over them.
    """
    text = f"cast({PAYLOAD} as string)"
    outer = lines.where(f"{PAYLOAD} is not null").selectExpr(
        *_LINES, FLAW, f"from_json({text}, {literal(_FORM)}) as {_E}"
    )
    # With schemas, a converter wraps the envelope once more.
    inner = f"from_json({_E}.payload, {literal(_FORM)})"
    frame = outer.selectExpr(
        *_LINES, FLAW, f"if({_E}.op is null and {_E}.payload is not null, {inner}, {_E}) as {_E}"
    )
    lsn = f"cast({_E}.source.lsn as bigint)"
    if reads_at is not None:
        lsn = f"if({_E}.op = 'r', {reads_at}L, {lsn})"
    row = f"coalesce({_E}.after, {_E}.before, cast({KEY} as string))"
    unsent = f"{_E}.unsent" if placeholders is None else placeholders.unsent(row)
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
    """The opened events, with deletes of some files as nothing but the row's key.

    A source that does not send the whole row before a delete sends its key. Debezium invents a
    value for every other column that the source does not allow to be null.
    """
    from pyspark.sql import functions as F

    listed = ", ".join(map(str, files))
    key = f"if({OP} = 'd' and {FILE} in ({listed}), cast({KEY} as string), {ROW})"
    return parts.withColumn(ROW, F.expr(key))


def expand_truncates(parts: DataFrame, cuts: Sequence[Truncation], history: DataFrame) -> DataFrame:
    """The opened events with every truncate as what it means: a delete of each row there was.

    Those are the rows of `history`, the table as it has landed, and the rows before it in the
    same batch. A delete carries the row as it was last known, so it satisfies the contract.
    """
    from pyspark.sql import functions as F

    first = {cut.file: cut for cut in sorted(cuts, key=lambda cut: cut.position, reverse=True)}
    changes = parts.where(f"coalesce({OP}, '') <> 't'")
    every = _truncations_frame(parts.sparkSession, cuts)
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
    gone = within.unionByName(landed).where(f"last.{OP} <> 'd'")
    deletes = gone.selectExpr(
        f"__cut_file as {FILE}", f"__cut_at as {POSITION}", KEY,
        f"cast(null as array<struct<key:string,value:binary>>) as {HEADERS}",
        f"cast(__cut_payload as binary) as {PAYLOAD}", f"cast(null as string) as {FLAW}",
        f"'d' as {OP}", f"__cut_ts as {TS_MS}", f"__cut_lsn as {LSN}", f"__cut_txn as {TXN}",
        f"last.{TABLE} as {TABLE}", f"last.{ROW} as {ROW}",
        f"cast(array() as array<string>) as {UNSENT}",
    )  # fmt: skip
    return changes.unionByName(deletes)


def _truncations_frame(spark: SparkSession, cuts: Sequence[Truncation]) -> DataFrame:
    from pyspark.sql import functions as F

    schema = (
        "__cut_file int, __cut_at long, __cut_lsn long, __cut_ts long, __cut_txn string, "
        "__cut_payload string"
    )
    return F.broadcast(spark.createDataFrame([astuple(cut) for cut in cuts], schema))


def has_order_columns(contract: Contract) -> bool:
    """Whether a contract has the columns that say which of two changes is the later one."""
    return {OP, LSN} <= {column.name for column in contract.columns}


def to_lines(
    parts: DataFrame, contract: Contract | None, doubt: str = "cast(null as string)"
) -> DataFrame:
    """Opened events as lines. `doubt` says why a row that could be read is not to be believed."""
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
        # A row that is not whole is kept as the event that it came in, for it is no row.
        RAW: f"if(size({UNSENT}) > 0, {event}, coalesce({_flat_json(contract)}, {event}))",
        FLAW: flaw,
        KEY: KEY,
        HEADERS: HEADERS,
        EVENT_TIME: f"timestamp_millis({TS_MS})",
        PAYLOAD: PAYLOAD,
    }
    # As rows of a generator, so that Spark does not write all this out again wherever a later step
    # mentions RAW: a filter on what is wrong with a row took 17 s to plan.
    cells = ", ".join(f"{it} as {name}" for name, it in lines.items())
    return parts.selectExpr(f"inline(array(struct({cells})))")


def _flat_json(contract: Contract | None) -> str:
    """The row with the envelope's columns in front of its own, as JSON."""
    named = {*COLUMNS} if contract is None else {column.name for column in contract.columns}
    texts = {
        OP: f"concat('\"', {OP}, '\"')",
        TS_MS: f"cast({TS_MS} as string)",
        LSN: f"cast({LSN} as string)",
        TXN: f"coalesce(concat('\"', {TXN}, '\"'), 'null')",
        # A table's name may hold anything: JSON's own way of writing it, out of a list of one.
        TABLE: f"coalesce(regexp_extract(to_json(array({TABLE})), '^.(.*).$', 1), 'null')",
    }
    cells = [f"'\"{name}\":', {texts[name]}" for name in COLUMNS if name in named]
    if not cells:
        return ROW
    front = ", ',', ".join(cells)
    rest = f"if({ROW} = '{{}}', '}}', concat(',', substring({ROW}, 2)))"
    return f"concat('{{', {front}, {rest})"

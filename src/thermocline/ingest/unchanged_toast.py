"""Fill in large values that Postgres did not send because they did not change.

Postgres stores large values out of line (TOAST) and does not send them again with an update that
leaves them unchanged. The current value is known from earlier changes: those of the same batch, or
the last one that landed. So every row of bronze is complete, and models need no special case. If
the value is unknown, the change goes to quarantine, and so do later ones until the value is sent
again: a guess could overwrite a correct value.

The change that holds a value is found by keys and log positions alone. A row with a changed key
gets its values from the row under the old key, whose delete must have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from thermocline.ingest.debezium import LSN, MEMBERS, OP, ROW, UNSENT
from thermocline.ingest.validation import FILE, HEADERS, KEY, POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OLD_KEY = "__debezium.oldkey"
"""The header by which the event of a new key names the old one."""

EventRef = tuple[int, int]
"""The file and position of an event in the batch; LANDED and a number for a landed event."""

LANDED = -1


@dataclass(frozen=True)
class ChangeEvent:
    """The parts of a change that are needed to find its unsent values.

    `is_whole` is false if its values are unknown, as for a row in quarantine.
    """

    table: str
    key: bytes
    lsn: int
    ref: EventRef
    op: str
    unsent: frozenset[str] = frozenset()
    old_key: bytes | None = None
    is_whole: bool = True


@dataclass
class _KeyHistory:
    """The events of one key in log order."""

    events: list[ChangeEvent] = field(default_factory=list)

    def find_before(self, lsn: int) -> ChangeEvent | None:
        found = None
        for event in self.events:
            if event.lsn >= lsn:
                return found
            found = event
        return found

    def was_deleted_at(self, lsn: int) -> bool:
        return any(event.lsn == lsn and event.op == "d" for event in self.events)


def find_value_sources(events: Iterable[ChangeEvent]) -> dict[tuple[EventRef, str], EventRef]:
    """Return, for each unsent value (event and column), the event that holds it.

    Unknown values are not in the result. The order and batching of events do not matter.
    """
    ordered = sorted(events, key=lambda event: (event.lsn, event.ref))
    histories: dict[tuple[str, bytes], _KeyHistory] = {}
    for event in ordered:
        histories.setdefault((event.table, event.key), _KeyHistory()).events.append(event)
    found: dict[tuple[EventRef, str], EventRef] = {}
    for event in ordered:
        if not event.unsent:
            continue
        before = _find_previous(event, histories)
        if before is None or before.op == "d" or not before.is_whole:
            continue
        for column in event.unsent:
            source = found.get((before.ref, column)) if column in before.unsent else before.ref
            if source is not None:
                found[event.ref, column] = source
    return found


def _find_previous(
    event: ChangeEvent, histories: Mapping[tuple[str, bytes], _KeyHistory]
) -> ChangeEvent | None:
    """Return the change that wrote the row before this change."""
    if event.op == "u":
        return histories[event.table, event.key].find_before(event.lsn)
    if event.op != "c" or event.old_key is None:
        return None
    key_history = histories.get((event.table, event.old_key))
    # Changes of the old key may be in another partition. All have arrived once its delete has.
    return (
        key_history.find_before(event.lsn)
        if key_history is not None and key_history.was_deleted_at(event.lsn)
        else None
    )


class ChangeHistory(Protocol):
    """Changes that have landed or were quarantined earlier."""

    def find_events(self, keys: Sequence[tuple[str, bytes, int]]) -> list[ChangeEvent]:
        """Return the events of some keys that may precede a log position.

        `keys` are tables, keys and the first requested position. The events' refs count from 0.
        """

    def read_texts(self, numbers: Sequence[int]) -> DataFrame:
        """Return rows of `find_events` by number `n`, as a map `m` from column to text."""


def fill_unsent_values(
    parts: DataFrame, origins: Sequence[str], history: ChangeHistory
) -> DataFrame:
    """Return the parsed events with unsent values filled in where they are known.

    `origins` are the names of the tables by FILE. UNSENT keeps the columns that remain unknown.
    """
    events = _collect_events(parts, origins)
    if not events:
        return parts
    first: dict[tuple[str, bytes], int] = {}
    for event in events:
        for key in (event.key, event.old_key):
            if key is not None:
                at = (event.table, key)
                first[at] = min(first.get(at, event.lsn), event.lsn)
    events += history.find_events([(*at, lsn) for at, lsn in first.items()])
    found = find_value_sources(events)
    return _fill_values(parts, found, history) if found else parts


def _collect_events(parts: DataFrame, origins: Sequence[str]) -> list[ChangeEvent]:
    """Return all events of the keys that an event with unsent values depends on."""
    from pyspark.sql import functions as F

    old = f"get(filter({HEADERS}, h -> h.key = '{OLD_KEY}'), 0).value"
    named = parts.where(f"{KEY} is not null and {LSN} is not null").selectExpr(
        FILE, POSITION, KEY, LSN, OP, UNSENT, f"if(size({UNSENT}) > 0, {old}, null) as old"
    )
    lacking = named.where(f"size({UNSENT}) > 0").select(FILE, KEY, "old").collect()
    keys = {
        (origins[row[FILE]], bytes(key))
        for row in lacking
        for key in (row[KEY], row["old"])
        if key is not None
    }
    if not keys:
        return []
    # A changed key may be in another partition of its topic, under another number.
    numbered_keys = [
        (number, key) for number, name in enumerate(origins) for table, key in keys if table == name
    ]
    keyed = parts.sparkSession.createDataFrame(
        sorted(set(numbered_keys)), f"{FILE} int, {KEY} binary"
    )
    rows = named.join(F.broadcast(keyed), [FILE, KEY], "leftsemi").collect()
    return [
        ChangeEvent(
            origins[row[FILE]],
            bytes(row[KEY]),
            row[LSN],
            (row[FILE], row[POSITION]),
            row[OP],
            frozenset(row[UNSENT] or ()),
            bytes(row["old"]) if row["old"] is not None else None,
        )
        for row in rows
    ]


def _fill_values(
    parts: DataFrame, found: Mapping[tuple[EventRef, str], EventRef], history: ChangeHistory
) -> DataFrame:
    """Fill the values into the rows that lack them."""
    from pyspark.sql import functions as F

    rows = [(*to, column, *source) for (to, column), source in found.items()]
    spark = parts.sparkSession
    where = spark.createDataFrame(rows, f"{FILE} int, {POSITION} long, c string, f int, n long")
    candidates = parts.selectExpr(
        f"{FILE} as f", f"{POSITION} as n", f"from_json({ROW}, '{MEMBERS}') as m"
    )
    values = where.join(candidates, ["f", "n"])
    if landed := sorted({number for file, number in found.values() if file == LANDED}):
        texts = history.read_texts(landed).selectExpr(f"{LANDED} as f", "n", "m")
        values = values.unionByName(where.join(texts, ["f", "n"]))
    pair = "collect_list(struct(c as key, m[c] as value))"
    filled = values.where("map_contains_key(m, c)").groupBy(FILE, POSITION)
    texts = filled.agg(F.expr(f"map_from_entries({pair})").alias("__tc_texts"))
    sent = f"map_filter(from_json({ROW}, '{MEMBERS}'), (k, v) -> not array_contains({UNSENT}, k))"
    row = f"to_json(map_concat({sent}, __tc_texts), map('ignoreNullFields', 'false'))"
    return parts.join(texts, [FILE, POSITION], "left").selectExpr(
        *(name for name in parts.columns if name not in {ROW, UNSENT}),
        f"if(__tc_texts is null, {ROW}, {row}) as {ROW}",
        f"if(__tc_texts is null, {UNSENT}, array_except({UNSENT}, map_keys(__tc_texts))) "
        f"as {UNSENT}",
    )

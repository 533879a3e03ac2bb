"""Complete rows that came without large values that did not change.

Postgres keeps large values apart (TOAST) and does not send them again with an update that left them
alone. Such a change says: keep what is there. What is there is known from the changes before it:
those of the same batch, or the last one that landed. So every row of bronze is whole, and models
need not know of this. Where the value cannot be known the change goes to quarantine, and so do
those after it, until the value is sent again: a guess would overwrite a true value.

Which change holds a value is decided here from keys and places in the log alone. A key that was
changed takes its values from the row under the old key, whose delete must have been seen.
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
"""Of an event in the batch its file and position; of a landed one LANDED and its number."""

LANDED = -1


@dataclass(frozen=True)
class ChangeEvent:
    """What must be known of a change to find the values that it left out.

    `whole` is false for one whose values are not known, as of a row in quarantine.
    """

    table: str
    key: bytes
    lsn: int
    place: EventRef
    op: str
    unsent: frozenset[str] = frozenset()
    old_key: bytes | None = None
    whole: bool = True


@dataclass
class _KeyHistory:
    """The events of one key, by their place in the log."""

    events: list[ChangeEvent] = field(default_factory=list)

    def before(self, lsn: int) -> ChangeEvent | None:
        found = None
        for event in self.events:
            if event.lsn >= lsn:
                return found
            found = event
        return found

    def deleted_at(self, lsn: int) -> bool:
        return any(event.lsn == lsn and event.op == "d" for event in self.events)


def find_value_sources(events: Iterable[ChangeEvent]) -> dict[tuple[EventRef, str], EventRef]:
    """Return where each value that was left out is: by event and column, the event that holds it.

    What cannot be known is not in the answer. The order and batching of events play no part.
    """
    ordered = sorted(events, key=lambda event: (event.lsn, event.place))
    lines: dict[tuple[str, bytes], _KeyHistory] = {}
    for event in ordered:
        lines.setdefault((event.table, event.key), _KeyHistory()).events.append(event)
    found: dict[tuple[EventRef, str], EventRef] = {}
    for event in ordered:
        if not event.unsent:
            continue
        before = _find_previous(event, lines)
        if before is None or before.op == "d" or not before.whole:
            continue
        for column in event.unsent:
            held = found.get((before.place, column)) if column in before.unsent else before.place
            if held is not None:
                found[event.place, column] = held
    return found


def _find_previous(
    event: ChangeEvent, lines: Mapping[tuple[str, bytes], _KeyHistory]
) -> ChangeEvent | None:
    """Return the change that made the row as this one found it."""
    if event.op == "u":
        return lines[event.table, event.key].before(event.lsn)
    if event.op != "c" or event.old_key is None:
        return None
    line = lines.get((event.table, event.old_key))
    # Changes of the old key may come by another way. All have come when its delete has.
    return line.before(event.lsn) if line is not None and line.deleted_at(event.lsn) else None


class ChangeHistory(Protocol):
    """What has landed or was set aside before."""

    def before(self, keys: Sequence[tuple[str, bytes, int]]) -> list[ChangeEvent]:
        """Return the events of some keys that may precede a place in the log.

        `keys` are tables, keys, and the first place that is asked for. The events' places count
        from 0.
        """

    def texts(self, numbers: Sequence[int]) -> DataFrame:
        """Return rows that `before` gave by their number `n`, as a map `m` from column to text."""


def fill_unsent_values(
    parts: DataFrame, origins: Sequence[str], history: ChangeHistory
) -> DataFrame:
    """The opened events, with the values that were left out where they are known.

    `origins` are the names of the tables by FILE. UNSENT keeps the columns that stay unknown.
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
    events += history.before([(*at, lsn) for at, lsn in first.items()])
    found = find_value_sources(events)
    return _fill_values(parts, found, history) if found else parts


def _collect_events(parts: DataFrame, origins: Sequence[str]) -> list[ChangeEvent]:
    """Return all events of the keys that an event with values left out depends on."""
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
    wanted = [
        (number, key) for number, name in enumerate(origins) for table, key in keys if table == name
    ]
    asked = parts.sparkSession.createDataFrame(sorted(set(wanted)), f"{FILE} int, {KEY} binary")
    rows = named.join(F.broadcast(asked), [FILE, KEY], "leftsemi").collect()
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
    """Put the values that were found into the rows that lack them."""
    from pyspark.sql import functions as F

    rows = [(*to, column, *held) for (to, column), held in found.items()]
    spark = parts.sparkSession
    where = spark.createDataFrame(rows, f"{FILE} int, {POSITION} long, c string, f int, n long")
    near = parts.selectExpr(
        f"{FILE} as f", f"{POSITION} as n", f"from_json({ROW}, '{MEMBERS}') as m"
    )
    values = where.join(near, ["f", "n"])
    if far := sorted({number for file, number in found.values() if file == LANDED}):
        texts = history.texts(far).selectExpr(f"{LANDED} as f", "n", "m")
        values = values.unionByName(where.join(texts, ["f", "n"]))
    pair = "collect_list(struct(c as key, m[c] as value))"
    put = values.where("map_contains_key(m, c)").groupBy(FILE, POSITION)
    texts = put.agg(F.expr(f"map_from_entries({pair})").alias("__tc_texts"))
    sent = f"map_filter(from_json({ROW}, '{MEMBERS}'), (k, v) -> not array_contains({UNSENT}, k))"
    row = f"to_json(map_concat({sent}, __tc_texts), map('ignoreNullFields', 'false'))"
    return parts.join(texts, [FILE, POSITION], "left").selectExpr(
        *(name for name in parts.columns if name not in {ROW, UNSENT}),
        f"if(__tc_texts is null, {ROW}, {row}) as {ROW}",
        f"if(__tc_texts is null, {UNSENT}, array_except({UNSENT}, map_keys(__tc_texts))) "
        f"as {UNSENT}",
    )

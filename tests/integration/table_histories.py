"""Random histories of one table and its companions, beside a model of them in plain Python.

A history is a sequence of what people do to versions: ingest, run, roll back (to a snapshot, a tag,
a run), tag, branch, work in an environment and publish it, backfill, edit the model. After each
step the tables hold what the model says: after a run a function of the events, after an operation
on versions what the same snapshot held before, companions included. No Spark unless asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import count, groupby
from pathlib import Path
from random import Random
from typing import Any

from tests.conftest import SETTINGS as HOUSE
from tests.conftest import clean_environment
from tests.integration.odcs import HEAD

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.errors import BadInput, NotFound
from thermocline.lake import MainMoved
from thermocline.lake.changes import read_rows
from thermocline.lake.companions import QUARANTINE, tombstones_of

SETTINGS = (
    HOUSE
    + """
[engine.duckdb]
threads = 1
[transform]
engine = "{engine}"
"""
)
EXPIRING = """
[lake.retention]
snapshots = 1
age = "0.001s"
"""
"""By which every commit lets go each snapshot that it may."""
SOURCE = """\
name: events
kind: files
path: landing
format: auto
target: bronze.events
badShare: 1.0
"""
_COLUMNS = """\
      - {name: id, logicalType: integer, physicalType: long, required: true%s}
      - {name: at, logicalType: timestamp, physicalType: timestamptz}
      - {name: seq, logicalType: integer, physicalType: long}
      - {name: amount, logicalType: integer, physicalType: long}
"""
_OP = "      - {name: op, logicalType: string, physicalType: string}\n"
_EVENTS = """\
customProperties:
  - {{property: write, value: {write}}}
  - {{property: orderBy, value: [at, seq]}}
  - {{property: deleteWhen, value: "op = 'd'"}}
"""
_DAILY = """\
      - {name: day, logicalType: date, physicalType: date, partitioned: true}
      - {name: total, logicalType: integer, physicalType: long}
customProperties:
  - {property: write, value: partitions}
"""
BRONZE = _COLUMNS % "" + _OP + "customProperties:\n  - {property: write, value: append}\n"
CONTRACTS = {
    "merge": _COLUMNS % ", primaryKey: true" + _EVENTS.format(write="merge"),
    "scd2": _COLUMNS % ", primaryKey: true" + _EVENTS.format(write="scd2"),
    "partitions": _DAILY,
}
MODELS = {
    "merge": "select id, at, seq, amount * {factor} as amount, op from bronze.events\n",
    "scd2": "select id, at, seq, amount * {factor} as amount, op from bronze.events\n",
    "partitions": "select cast(at as date) as day, cast(sum(amount * {factor}) as bigint) as total "
    "from bronze.events group by cast(at as date)\n",
}
KINDS = tuple(MODELS)
TARGET = "silver.t"
EVENTS = "bronze.events"
START = datetime(2026, 1, 1, tzinfo=UTC)
IDS, DAYS = 4, 5

Rows = tuple[tuple[Any, ...], ...]
Content = Mapping[str, Rows]
"""What each table of a unit holds."""


@dataclass(frozen=True)
class Event:
    """What a source said about an id at a time. `seq` is unique."""

    id: int
    at: datetime
    seq: int
    amount: int
    op: str


class Broken(AssertionError):
    """A step after which the lake is not what the model says."""


class History:
    """One history on its way: `step` does something at random and compares."""

    def __init__(
        self, folder: Path, seed: int, kind: str, engine: str = "duckdb", *, expiring: bool = False
    ) -> None:
        self.dice = Random(f"{kind} {seed}")
        self.kind = kind
        self.folder = folder
        self.log: list[str] = []
        self._factor = 1
        self._numbers = count(1)
        self._landed: list[list[Event]] = []
        self._damaged: list[str] = []
        self._held: dict[int, Content] = {}
        """What a unit held when its table was at a snapshot."""
        self._past: dict[str, list[int]] = {EVENTS: [], TARGET: []}
        """The snapshots that main of a table was at."""
        self._names: dict[tuple[str, str], int] = {}
        """Branches and tags by table and name, with the snapshot of each."""
        self._seen: dict[int, Rows] = {}
        """The rows of each snapshot of any table, read once."""
        self._runs: list[str] = []
        self._env: tuple[int, int] | None = None
        """The target's main when the environment was begun, and where the environment is."""
        self._expiring = expiring
        self._make(engine)

    def _make(self, engine: str) -> None:
        history = EXPIRING if self._expiring else ""
        self._write("thermocline.toml", SETTINGS.format(engine=engine) + history)
        self._write("contracts/bronze/events.odcs.yaml", HEAD.format(name="events") + BRONZE)
        contract = HEAD.format(name="t") + CONTRACTS[self.kind]
        self._write("contracts/silver/t.odcs.yaml", contract)
        self._write("sources/events.yaml", SOURCE)
        (self.folder / "landing").mkdir()
        self._write_model(1)
        self.house = self._open()
        self.house.lake.ensure(self.house.contracts[EVENTS])

    def _write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def _edit(self, factor: int) -> None:
        """Write another model, and open the project as a new process would."""
        self.close()
        self._write_model(factor)
        self.house = self._open()

    def _write_model(self, factor: int) -> None:
        self._factor = factor
        self._write("models/silver/t.sql", MODELS[self.kind].format(factor=factor))

    def _open(self) -> Lakehouse:
        return Lakehouse(load_settings(self.folder, environ=clean_environment()))

    def move(self, folder: Path) -> None:
        """Go on in a project that holds what this one does; every row is read again."""
        self.folder = folder
        self._seen.clear()
        self._edit(self._factor)

    def close(self) -> None:
        """Let go of the lake, as the end of its process would; Spark's session is the process's."""
        self.house.lake.disconnect()

    def play(self, steps: int) -> None:
        """Do so many steps; Broken names the step and all before it."""
        for step in [self.ingest, self.run, *self.dice.choices(*self._weighted(), k=steps)]:
            try:
                step()
                self._compare()
            except Exception as error:
                raise Broken(f"{self.kind}: {' → '.join(self.log)}: {error}") from error

    def _weighted(self) -> tuple[list[Callable[[], None]], list[int]]:
        steps: dict[Callable[[], None], int] = {
            self.ingest: 6, self.run: 6, self.rollback: 5, self.rollback_run: 2, self.name: 3,
            self.env: 2, self.publish: 2, self.edit: 2, self.full_refresh: 1, self.drop_name: 1,
        }  # fmt: skip
        if self.kind == "partitions":
            steps[self.backfill] = 4
        return list(steps), list(steps.values())

    # What people do

    def ingest(self) -> None:
        """Deliver a file, now and then a damaged one as well, and ingest."""
        number = next(self._numbers)
        events = [self._event() for _ in range(self.dice.randrange(1, 5))]
        text = "".join(
            json.dumps({**vars(e), "at": f"{e.at:%Y-%m-%d %H:%M:%S}Z"}) + "\n" for e in events
        )
        self._write(f"landing/f{number}.jsonl", text)
        self._landed.append(events)
        if self.dice.random() < 0.5:
            self._write(f"landing/f{number}.parquet", f"no parquet {number}")
            self._damaged.append(f"f{number}.parquet")
        self.log.append("ingest")
        before = self.house.lake.state(EVENTS).head()
        report = self.house.ingest()
        self._runs.append(report.run)
        assert self.house.lake.state(EVENTS).head() != before
        self._noted(EVENTS)

    def run(self, *, full: bool = False) -> None:
        """Bring the target up to date."""
        self.log.append("full refresh" if full else "run")
        report = self.house.run(full_refresh=full)
        if report.published is not None:
            self._runs.append(report.run)
            self._noted(TARGET)

    def full_refresh(self) -> None:
        """Compute the target as a whole."""
        self.run(full=True)

    def rollback(self) -> None:
        """Take a table back to a snapshot or a name, at times one that came later."""
        table = self.dice.choice([EVENTS, TARGET])
        names = [name for of, name in self._names if of == table]
        if names and self.dice.random() < 0.5:
            name = self.dice.choice(names)
            to: int | str = name
            target = self._names[table, name]
        else:
            to = target = self.dice.choice(self._still(table))
        if target not in self._past[table]:
            return  # it was only ever in an environment
        self.log.append(f"rollback {table} to {'a name' if isinstance(to, str) else 'a snapshot'}")
        done = self.house.table(table).rollback(to)
        assert done.tables[table][1] == target

    def rollback_run(self) -> None:
        """Undo a run, if nothing was built on it."""
        run = self.dice.choice(self._runs)
        self.log.append("rollback of a run")
        try:
            self.house.rollback(run)
        except (BadInput, NotFound):
            self.log[-1] += " (refused)"

    def name(self) -> None:
        """Give a snapshot a tag or begin a branch at it."""
        table = self.dice.choice([EVENTS, TARGET])
        name = f"n{next(self._numbers)}"
        at = self.dice.choice(self._still(table))
        kind = self.dice.choice(["tag", "branch"])
        self.log.append(f"{kind} {table}")
        getattr(self.house.table(table), kind)(name, at=at)
        self._names[table, name] = at

    def drop_name(self) -> None:
        """Take a name away."""
        if self._names:
            table, name = self.dice.choice(sorted(self._names))
            self.log.append(f"drop a name of {table}")
            self.house.table(table).drop_ref(name)
            del self._names[table, name]

    def env(self) -> None:
        """Run in an environment."""
        self.log.append("run in env")
        main = self._head(TARGET)
        report = self.house.run(env="dev")
        if report.published is None:
            return
        self._env = (self._env[0] if self._env else main, self._head(TARGET, "env-dev"))
        self._held.setdefault(self._env[1], self._read(TARGET, "env-dev"))
        assert self._held[self._env[1]][TARGET] == self._computed()

    def publish(self) -> None:
        """Publish the environment; where main has moved away it is discarded."""
        if self._env is None:
            return
        base, head = self._env
        self.log.append("publish env")
        try:
            self.house.publish("dev")
            self._past[TARGET].append(head)
            assert self._head(TARGET) == head
        except MainMoved:
            self.log[-1] += " (refused)"
            assert self._head(TARGET) != base
            self.house.drop_env("dev")
        self._env = None

    def edit(self) -> None:
        """Change what the model computes, perhaps back to what it was."""
        factor = self.dice.choice([each for each in (1, 2, 3) if each != self._factor])
        self.log.append(f"edit to {factor}")
        self.close()
        self._edit(factor)

    def backfill(self) -> None:
        """Compute some days of the target again."""
        first, last = sorted(self.dice.choices(range(DAYS), k=2))
        day = [str((START + timedelta(days=each)).date()) for each in (first, last)]
        self.log.append(f"backfill {first}–{last}")
        before = self._held[self._head(TARGET)].get(TARGET, ())
        self.house.backfill(TARGET, *day)
        outside = [row for row in before if not day[0] <= str(row[0]) <= day[1]]
        inside = [row for row in self._computed() if day[0] <= str(row[0]) <= day[1]]
        self._noted(TARGET, tuple(sorted([*outside, *inside])))

    def _still(self, table: str) -> list[int]:
        """Where main of a table can go back to: all that it was at, or what has not expired."""
        if not self._expiring:
            return self._past[table]
        state = self.house.lake.state(table)
        kept = {*(each.id for each in state.ancestry(state.head())), *state.names}
        return [at for at in self._past[table] if at in kept]

    # What the model says

    def _event(self) -> Event:
        at = START + timedelta(days=self.dice.randrange(DAYS), hours=self.dice.randrange(3))
        op = "d" if self.dice.random() < 0.25 else "u"
        amount = self.dice.randrange(3)
        return Event(self.dice.randrange(IDS), at, next(self._numbers), amount, op)

    def _events(self) -> list[Event]:
        """The events that bronze holds now, by the model."""
        known = {event.seq: event for events in self._landed for event in events}
        return [known[row[2]] for row in self._held[self._head(EVENTS)].get(EVENTS, ())]

    def _computed(self) -> Rows:
        """What the model of the target gives for what bronze holds."""
        of = {"merge": merged, "scd2": versions, "partitions": daily}[self.kind]
        return of(self._events(), self._factor)

    def _noted(self, table: str, expected: Rows | None = None) -> None:
        """Compare a table that was written with the model, and remember what its unit holds."""
        content = self._read(table)
        if table == EVENTS:
            events = [event for events in self._landed for event in events]
            said: Rows = tuple(sorted((e.id, e.at, e.seq, e.amount, e.op) for e in events))
            assert content[EVENTS] == said, "events are not each there once"
            kept = content.get(f"{QUARANTINE}.events", ())
            assert kept == tuple((name,) for name in sorted(self._damaged)), "quarantine"
        else:
            assert content[TARGET] == (self._computed() if expected is None else expected)
            self._judge_companion(content)
        head = self._head(table)
        self._past[table].append(head)
        self._held[head] = content

    def _judge_companion(self, content: Content) -> None:
        beside = content.get(tombstones_of(TARGET), ())
        if self.kind == "scd2":
            assert beside == absorbed(self._events())
        if self.kind == "merge":
            deletes = {(e.id, e.at, e.seq) for e in self._events() if e.op == "d"}
            newest = {(e.id, e.at, e.seq) for e in last_of_each(self._events()) if e.op == "d"}
            assert newest <= set(beside) <= deletes, "tombstones"

    def _compare(self) -> None:
        """Each table and its companions hold what they held at that snapshot, on every name."""
        for table in (EVENTS, TARGET):
            if self._past[table]:
                self._same(table, "main", self._head(table))
        for (table, name), at in self._names.items():
            self._same(table, name, at)
        if self._env is not None:
            self._same(TARGET, "env-dev", self._env[1])
        if self._past[TARGET] and not self.house.plan().steps:
            assert self._read(TARGET)[TARGET] == self._computed(), "said to be fresh, and is not"

    def _same(self, table: str, ref: str, at: int) -> None:
        assert self._head(table, ref) == at, f"{table} is not where {ref} is"
        if at not in self._held and self.house.lake.state(table).snapshot(at).parent is None:
            self._held[at] = {}  # as it was created
            self._past[table].append(at)
        found, held = self._read(table, ref), self._held[at]
        for name in {*found, *held}:
            same = found.get(name, ()) == held.get(name, ())
            assert same, f"{name} on {ref}: {found.get(name)} and not {held.get(name)}"

    def _head(self, table: str, ref: str = "main") -> int:
        head = self.house.lake.state(table).head(ref)
        assert head is not None, f"{table} has no {ref}"
        return head

    def _read(self, table: str, ref: str = "main") -> Content:
        """What a unit holds on a ref; a companion that came later is left out."""
        beside = f"{QUARANTINE}.events" if table == EVENTS else tombstones_of(TARGET)
        there = self.house.lake.states({table, beside})
        heads = {name: state.head(ref) for name, state in there.items()}
        return {name: self._rows(name, head) for name, head in heads.items() if head is not None}

    def _rows(self, table: str, snapshot: int) -> Rows:
        """A table's rows at a snapshot, which never change."""
        if snapshot not in self._seen:
            columns = {
                EVENTS: ["id", "at", "seq", "amount", "op"],
                f"{QUARANTINE}.events": ["file"],
                TARGET: COLUMNS[self.kind],
                tombstones_of(TARGET): COMPANION_COLUMNS.get(self.kind),
            }[table]
            found = read_rows(self.house.lake.iceberg(table), snapshot).select(columns)
            self._seen[snapshot] = tuples(found.to_pylist())
        return self._seen[snapshot]


COLUMNS = {
    "merge": ["id", "at", "seq", "amount"],
    "scd2": ["id", "at", "seq", "amount", "_valid_to"],
    "partitions": ["day", "total"],
}
COMPANION_COLUMNS = {"merge": ["id", "at", "seq"], "scd2": ["id", "at", "_kind"]}


def tuples(found: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows in an order of their own, with times in UTC."""
    made = [tuple(map(_utc, row.values())) for row in found]
    return tuple(sorted(made, key=lambda row: tuple((v is not None, v) for v in row)))


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _place(event: Event) -> tuple[Any, ...]:
    return (event.id, event.at, event.seq)


def last_of_each(events: Iterable[Event]) -> list[Event]:
    """Of each id the newest event."""
    return list({event.id: event for event in sorted(events, key=_place)}.values())


def merged(events: Iterable[Event], factor: int) -> Rows:
    """The model of merge: of each id the newest event, unless that is a delete."""
    alive = [e for e in last_of_each(events) if e.op != "d"]
    return tuple(sorted((e.id, e.at, e.seq, e.amount * factor) for e in alive))


def _instants(events: Iterable[Event]) -> list[tuple[Event, str]]:
    """Of each id and instant the event that ranks highest, and how scd2 holds it."""
    found: list[tuple[Event, str]] = []
    for _, of_id in groupby(sorted(events, key=_place), lambda e: e.id):
        before: Event | None = None
        for _, same in groupby(of_id, lambda e: e.at):
            event = list(same)[-1]
            kind = "delete" if event.op == "d" else "version"
            if before is not None and (before.op, before.amount) == (event.op, event.amount):
                kind = "same" if kind == "version" else kind
            found.append((event, kind))
            before = event
    return found


def versions(events: Iterable[Event], factor: int) -> Rows:
    """The model of scd2: each version, and until when it was true."""
    found = []
    for _, of_id in groupby(_instants(events), lambda each: each[0].id):
        held = [each for each in of_id if each[1] != "same"]
        for number, (event, kind) in enumerate(held):
            until = held[number + 1][0].at if number + 1 < len(held) else None
            if kind == "version":
                found.append((event.id, event.at, event.seq, event.amount * factor, until))
    return tuple(sorted(found, key=lambda row: row[:3]))


def absorbed(events: Iterable[Event]) -> Rows:
    """What scd2 keeps in the companion: deletes, and events that repeat the version before."""
    return tuple(sorted((e.id, e.at, kind) for e, kind in _instants(events) if kind != "version"))


def daily(events: Iterable[Event], factor: int) -> Rows:
    """The model of the partitioned table: the sum of each day."""
    totals: dict[date, int] = {}
    for event in events:
        day = event.at.date()
        totals[day] = totals.get(day, 0) + event.amount * factor
    return tuple(sorted(totals.items()))

"""Merge and scd2 against a plain-Python model, over random histories.

Each example holds many independent keys, so that one Spark write tries many histories: late,
repeated, tied and deleted rows, cut into batches at random. After every batch the table must be
what the model makes of all events so far, however they were ordered and batched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count, cycle, groupby
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.integration.engines import ENGINES, Writer

from thermocline.contract import Contract
from thermocline.contract.definition import Column, UpdateMode, WriteMode
from thermocline.contract.types import Decimal as DecimalType
from thermocline.contract.types import Primitive
from thermocline.transform import tombstones

if TYPE_CHECKING:
    from thermocline.lake import Lake

KEYS = 40
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = count(1)
FEW_BUT_LARGE = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a smaller seed is no smaller history
    suppress_health_check=list(HealthCheck),
)


INPUT = pa.schema(
    {
        "id": pa.int64(),
        "updated_at": pa.timestamp("us", "UTC"),
        "lsn": pa.int64(),
        "name": pa.string(),
        "total": pa.string(),
        "_op": pa.string(),
    }
)


@dataclass(frozen=True)
class Event:
    """What a source said about a key at a time."""

    id: int
    minute: int | None
    lsn: int | None
    deleted: bool
    name: str | None
    amount: int | None

    @property
    def at(self) -> datetime | None:
        """The event's time; microseconds, so that nothing may be cut on the way."""
        if self.minute is None:
            return None
        return START + timedelta(minutes=self.minute, microseconds=self.id)

    @property
    def total(self) -> Decimal | None:
        """The amount as a decimal."""
        return None if self.amount is None else Decimal(self.amount).scaleb(-2)

    @property
    def payload(self) -> tuple[str | None, Decimal | None]:
        """What it says, apart from when."""
        return (self.name, self.total)

    @property
    def row(self) -> tuple[Any, ...]:
        """The row that it would be in a merged table."""
        return (self.id, self.at, self.lsn, *self.payload)

    def as_input(self) -> tuple[Any, ...]:
        """The row that a model gives for it; the amount as text, which the strategy casts."""
        total = None if self.total is None else str(self.total)
        return (self.id, self.at, self.lsn, self.name, total, "d" if self.deleted else "u")


@dataclass(frozen=True)
class History:
    """A random history, named by its seed: small to print, the same every time."""

    seed: int
    deletes: float
    repeats: float

    def batches(self, *, timeless: bool) -> list[list[Event]]:
        """Three batches of events in no order; some come again, in the same or a later batch."""
        dice = Random(self.seed)
        batches: list[list[Event]] = []
        for _ in range(3):
            fresh = [self._event(dice, timeless) for _ in range(100)]
            known = [event for batch in (*batches, fresh) for event in batch]
            again = dice.sample(known, int(len(fresh) * self.repeats))
            batches.append(dice.sample(fresh + again, len(fresh + again)))
        return batches

    def _event(self, dice: Random, timeless: bool) -> Event:
        return Event(
            id=dice.randrange(KEYS),
            minute=None if timeless and dice.random() < 0.05 else dice.randrange(8),
            lsn=dice.choice([None, 1, 2]),
            deleted=dice.random() < self.deletes,
            name=dice.choice([None, "Ada", "Æ"]),
            amount=dice.choice([None, 100, 250]),
        )


HISTORIES = st.builds(
    History,
    seed=st.integers(0, 2**32),
    deletes=st.sampled_from([0.0, 0.2, 0.5]),
    repeats=st.sampled_from([0.0, 0.3]),
)


def rank(event: Event) -> tuple[Any, ...]:
    """Newer is greater: order, then delete, then content; null below everything."""
    content = () if event.deleted else tuple(map(null_first, event.row))
    return (null_first(event.at), null_first(event.lsn), event.deleted, content)


def null_first(value: Any) -> tuple[Any, ...]:
    """A sort key in which None is the least."""
    return (value is not None, value) if value is not None else (False,)


def merged(history: Iterable[Event]) -> list[tuple[Any, ...]]:
    """The model of merge: of each key the newest event, unless that is a delete."""
    newest: dict[int, Event] = {}
    for event in history:
        known = newest.get(event.id)
        if known is None or rank(event) > rank(known):
            newest[event.id] = event
    return sorted(event.row for event in newest.values() if not event.deleted)


def versions(history: Iterable[Event]) -> list[tuple[Any, ...]]:
    """The model of scd2: fold each key's events in time, one an instant."""
    found: list[tuple[Any, ...]] = []
    for _, of_key in groupby(sorted(history, key=lambda e: e.id), lambda e: e.id):
        in_time = sorted(of_key, key=rank)
        instants = [list(same)[-1] for _, same in groupby(in_time, lambda e: e.at)]
        current: Event | None = None
        for event in instants:
            if current and not event.deleted and event.payload == current.payload:
                continue
            if current:
                found.append((*current.row, current.at, event.at, False))
            current = None if event.deleted else event
        if current:
            found.append((*current.row, current.at, None, True))
    return sorted(found, key=lambda row: (row[0], row[5]))


def contract(write: WriteMode, updates: UpdateMode) -> Contract:
    """Customers as they are, or as they ever were."""
    return Contract(
        table=f"silver.customers_{next(NAMES)}",
        columns=(
            Column("id", Primitive("long"), required=True),
            Column("updated_at", Primitive("timestamptz")),
            Column("lsn", Primitive("long")),
            Column("name", Primitive("string")),
            Column("total", DecimalType(10, 2)),
        ),
        key=("id",),
        write=write,
        order_by=("updated_at", "lsn"),
        delete_when="_op = 'd'",
        updates=updates,
    )


def write(writer: Writer, wanted: Contract, batch: Sequence[Event]) -> None:
    """Write one batch in a draft of its own and publish it."""
    lake, columns = writer.lake, zip(*(event.as_input() for event in batch), strict=True)
    rows = pa.table(list(map(pa.array, columns, INPUT.types)), schema=INPUT)
    draft = lake.draft(f"t{next(NAMES)}")
    companion = tombstones.derive_companion(wanted)
    assert companion is not None
    draft.begin(companion.table, wanted.table)
    writer.write(rows, wanted, draft, bookmark={"batch": len(batch)})
    draft.publish()


def create(lake: Lake, wanted: Contract) -> Contract:
    """Make the table and its companion."""
    companion = tombstones.derive_companion(wanted)
    assert companion is not None
    lake.ensure(companion)
    lake.ensure(wanted)
    return wanted


def content(lake: Lake, wanted: Contract) -> list[tuple[Any, ...]]:
    """The table's rows in the model's order, with Python's own values."""
    state = lake.state(wanted.table)
    lake.duck.view("t", state.metadata_location, state.head() or 0)
    rows = lake.duck.connection.execute("select * from t").fetchall()
    found = [tuple(_utc(value) for value in row) for row in rows]
    return sorted(found, key=lambda row: (row[0], row[5] if len(row) > 5 else None))


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


WRITES = [("spark",), ("duckdb",), ENGINES]
"""On one engine or the other, and on both by turns: they must agree on what stays."""


@pytest.mark.parametrize("engines", WRITES, ids="-".join)
@pytest.mark.parametrize("updates", list(UpdateMode))
def test_merge_depends_only_on_the_events(
    lake: Lake, updates: UpdateMode, engines: tuple[str, ...]
) -> None:
    by_turns = cycle(Writer(lake, engine) for engine in engines)

    @FEW_BUT_LARGE
    @given(HISTORIES)
    def holds(history: History) -> None:
        wanted = create(lake, contract(WriteMode.MERGE, updates))
        seen: list[Event] = []
        for batch in history.batches(timeless=True):
            write(next(by_turns), wanted, batch)
            seen += batch
            assert content(lake, wanted) == merged(seen)

    holds()


@pytest.mark.parametrize("engines", WRITES, ids="-".join)
@pytest.mark.parametrize("updates", list(UpdateMode))
def test_scd2_depends_only_on_the_events(
    lake: Lake, updates: UpdateMode, engines: tuple[str, ...]
) -> None:
    by_turns = cycle([Writer(lake, engine) for engine in engines])

    @FEW_BUT_LARGE
    @given(HISTORIES)
    def holds(history: History) -> None:
        wanted = create(lake, contract(WriteMode.SCD2, updates))
        seen: list[Event] = []
        for batch in history.batches(timeless=False):
            write(next(by_turns), wanted, batch)
            seen += batch
            assert content(lake, wanted) == versions(seen)

    holds()

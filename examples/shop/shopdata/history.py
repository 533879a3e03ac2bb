"""What happened: the first load of each table, and each later batch of change.

Every function yields Arrow tables with a `role` column that says what each row is: an ordinary
row, a duplicate, a late one, a bad one and why. Roles are counted and never written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shopdata import clicks, world
from shopdata.draws import Ints, integers, spread, uniform
from shopdata.landing import MALFORMED, ROLE
from shopdata.world import DAY, HOUR, World

PIECE = 50_000
BAD = (
    MALFORMED, "missing_key", "negative_amount", "unknown_status", "bad_email", "unknown_segment",
    "negative_price", "unknown_type", "missing_user",
)  # fmt: skip
_RETURNS = 30 * DAY  # an order that old is not touched any more
_TARDY = 7 * DAY  # so late a profile's change may come
# Orders and customers that may be deleted one day; they are never updated, so nothing revives them.
_DOOMED_ORDER, _DOOMED_CUSTOMER = (97, 13), (53, 7)


@dataclass(frozen=True)
class Span:
    """A run of order numbers and the time in which they were placed."""

    first: int
    count: int
    low: int
    high: int


@dataclass(frozen=True)
class State:
    """How far the story has come after a batch; the next batch goes on from here."""

    spans: tuple[Span, ...]
    customers: int
    events: int
    deleted_orders: int
    deleted_customers: int

    def as_dict(self) -> dict[str, Any]:
        """For the notes beside the landing files."""
        return asdict(self)

    @classmethod
    def from_dict(cls, notes: dict[str, Any]) -> State:
        """From those notes."""
        return cls(**{**notes, "spans": tuple(Span(**span) for span in notes["spans"])})

    @property
    def orders(self) -> int:
        """The number of order numbers given out."""
        return self.spans[-1].first + self.spans[-1].count


def begin(shop: World) -> State:
    """The state after the first load."""
    first = Span(0, shop.orders, shop.start, shop.end)
    return State((first,), shop.customers, shop.events, _share(shop.orders, 0.0024), 0)


def advance(shop: World, state: State, batch: int, share: float) -> State:
    """The state after one more batch."""
    low, high = _day(shop, batch)
    count, last = _share(shop.orders, share, 1), state.orders
    new, late = _share(count, 0.25), _share(count, 0.05, 1)
    spans = (Span(last, new, low, high), Span(last + new, late, low - 21 * DAY, low - DAY))
    return replace(
        state,
        spans=(*state.spans, *spans),
        customers=state.customers + _share(shop.customers, share * 0.2, 1),
        events=state.events + _share(shop.events, share, 1),
        deleted_orders=state.deleted_orders + _share(count, 0.03, 1),
        deleted_customers=state.deleted_customers + _share(shop.customers, share * 0.1, 1),
    )


# first load


def first_customers(shop: World) -> Iterator[pa.Table]:
    """Every profile, its update where it has one, a few duplicates and bad rows."""
    moved, when = _moved(shop)
    for low in range(0, shop.customers, PIECE):
        index = np.arange(low, min(low + PIECE, shop.customers), dtype=np.int64)
        whole = world.customers(shop, index, np.zeros_like(index), shop.joined[index], "r")
        here = (moved >= low) & (moved < low + len(index))
        fresh = world.customers(shop, moved[here], np.ones_like(moved[here]), when[here], "u")
        again = spread(shop.seed, "customer twice", len(index), _share(len(index), 0.005))
        bad = _bad_customers(shop, 0, low, _share(len(index), 0.001, 1), int(when.max(initial=0)))
        parts = [_as(whole, "row"), _as(fresh, "update"), _as(whole.take(again), "duplicate"), *bad]
        yield _mixed(shop, "customers", parts)


def first_products(shop: World) -> Iterator[pa.Table]:
    """The whole list, a few duplicates and bad rows."""
    index = np.arange(shop.products, dtype=np.int64)
    whole = world.products(shop, index, 0, np.zeros_like(index))
    again = spread(shop.seed, "product twice", shop.products, _share(shop.products, 0.004))
    yield _mixed(
        shop,
        "products",
        [_as(whole, "row"), _as(whole.take(again), "duplicate"), *_bad_products(shop, 0)],
    )


def first_orders(shop: World, low: int, high: int, parsed: bool) -> Iterator[pa.Table]:
    """Orders low … high−1 as they stand at the end of the last day, and what disturbs them.

    `parsed` says that the format cannot hold a line that does not parse.
    """
    total = shop.orders
    doomed = _doomed_orders(shop)[: _share(total, 0.0024)]
    # Orders of the last days may still be as they began; an old version needs a newer one.
    old = spread(shop.seed, "order late", total * 9 // 10, _share(total, 0.01))
    again = spread(shop.seed, "order twice", total, _share(total, 0.005))
    beside, bad = _order_faults(shop, 0, total, (shop.start, shop.end), parsed)
    faults = pa.concat_tables(bad)
    for begins in range(low, high, PIECE):
        ends = min(begins + PIECE, high)
        index = np.arange(begins, ends, dtype=np.int64)
        placed = shop.moments("placed", index, 0, total, (shop.start, shop.end))
        whole = world.orders(shop, index, placed, shop.end - 1, "r")
        gone, stale = (_inside(chosen, begins, ends) - begins for chosen in (doomed, old))
        first = world.orders(shop, index[stale], placed[stale], placed[stale], "c")
        parts = [
            _as(whole, "row"),
            _as(_deleted(shop, index[gone], placed[gone], shop.end), "delete"),
            _as(first, "out_of_order"),
            _as(whole.take(_inside(again, begins, ends) - begins), "duplicate"),
            faults.filter((beside >= begins) & (beside < ends)),
        ]
        yield _mixed(shop, f"orders {begins}", parts)


def first_events(shop: World) -> Iterator[pa.Table]:
    """Every click, a few sent twice, a few bad."""
    faults = _bad_events(shop, 0, _share(shop.events, 0.00005, 1))
    for table in clicks.events(shop, 0, shop.events, (shop.start, shop.end), PIECE):
        again = spread(shop.seed, "event twice", table.num_rows, _share(table.num_rows, 0.003))
        parts = [_as(table, "row"), _as(table.take(again), "duplicate"), *faults]
        yield _mixed(shop, "events", parts)
        faults = []


# change


def next_orders(
    shop: World, before: State, after: State, batch: int, share: float, parsed: bool
) -> pa.Table:
    """One batch: new orders, old ones that come late, progress and corrections, deletes."""
    low, high = _day(shop, batch)
    count, at, seed = _share(shop.orders, share, 1), high - 1, shop.seed
    parts: list[pa.Table] = []
    for role, span in zip(("new", "late"), after.spans[-2:], strict=True):
        index = np.arange(span.first, span.first + span.count, dtype=np.int64)
        parts.append(_as(world.orders(shop, index, _placed(shop, after, index), at, "c"), role))
    others = after.orders - before.orders + after.deleted_orders - before.deleted_orders
    index = _recent(shop, before, batch, max(count - others, 0))
    placed = _placed(shop, before, index)
    _, since, _ = world.state(shop, index, placed, at)
    moved = since >= low  # it went on by itself today; otherwise somebody corrected it
    hand = low + integers(seed, "hand", index, 0, DAY, batch)
    changed, revision = np.where(moved, since, hand), np.where(moved, 0, batch)
    parts.append(_as(world.orders(shop, index, placed, at, "u", changed, revision), "update"))
    stale = spread(seed, f"stale {batch}", len(index), _share(len(index), 0.08, 1))
    first = world.orders(shop, index[stale], placed[stale], placed[stale], "c")
    parts.append(_as(first, "out_of_order"))
    doomed = _doomed_orders(shop)
    gone = doomed[before.deleted_orders : after.deleted_orders]
    parts.append(_as(_deleted(shop, gone, _placed(shop, before, gone), high), "delete"))
    again = spread(seed, f"again {batch}", count // 2, _share(count, 0.05, 1))
    whole = pa.concat_tables(parts[:3])
    parts.append(_as(whole.drop_columns([ROLE]).take(again), "duplicate"))
    parts += _order_faults(shop, batch, count, (low, high), parsed)[1]
    return _mixed(shop, f"orders batch {batch}", parts)


def next_customers(shop: World, before: State, after: State, batch: int, share: float) -> pa.Table:
    """One batch: profiles changed today, changes of past days that come late, joins, leaves."""
    low, _ = _day(shop, batch)
    seed, version = shop.seed, batch + 1
    chosen = spread(seed, f"profile {batch}", shop.customers, _share(shop.customers, share, 2))
    chosen = chosen[chosen % _DOOMED_CUSTOMER[0] != _DOOMED_CUSTOMER[1]]
    today = low + integers(seed, "profile at", chosen, 0, DAY, batch)
    moved, when = _moved(shop)
    late = _share(shop.customers, share * 0.2, 1)
    newest = np.argsort(-when, kind="stable")[: 4 * late]
    some = newest[spread(seed, f"profile late {batch}", len(newest), min(late, len(newest)))]
    # Shortly before the update we already have: history must be split there.
    since = np.maximum(shop.joined[moved[some]], when[some] - _TARDY)
    past = since + ((when[some] - since) * uniform(seed, "past", moved[some], batch)).astype(
        np.int64
    )
    joins = np.arange(before.customers, after.customers, dtype=np.int64)
    joined = low + integers(seed, "joins", joins, 0, DAY)
    doomed = _doomed(shop, "customer", shop.customers, _DOOMED_CUSTOMER)
    gone = doomed[before.deleted_customers : after.deleted_customers]
    left = low + integers(seed, "leaves", gone, 0, DAY)

    def records(index: Ints, number: int, at: Ints, op: str, role: str) -> pa.Table:
        return _as(world.customers(shop, index, np.full_like(index, number), at, op), role)

    parts = [
        records(chosen, version, today, "u", "update"),
        records(moved[some], 1000 + batch, past, "u", "late"),
        records(joins, 0, joined, "c", "new"),
        records(gone, 0, left, "d", "delete"),
        records(chosen[:1], version, today[:1], "u", "duplicate"),
        *_bad_customers(shop, batch, 0, 1, low),
    ]
    return _mixed(shop, f"customers batch {batch}", parts)


def next_products(shop: World, batch: int, share: float) -> pa.Table:
    """One batch: new prices, one of them sent twice, and bad rows."""
    low, _ = _day(shop, batch)
    index = spread(shop.seed, f"prices {batch}", shop.products, _share(shop.products, share, 2))
    changed = low + integers(shop.seed, "price at", index, 0, DAY, batch)
    priced = world.products(shop, index, batch, changed)
    parts = [_as(priced, "update"), _as(priced.slice(0, 1), "duplicate")]
    return _mixed(shop, f"products batch {batch}", [*parts, *_bad_products(shop, batch)])


def next_events(shop: World, before: State, after: State, batch: int) -> pa.Table:
    """One batch: the day's clicks, a tenth of them days late, some sent twice, some bad."""
    low, high = _day(shop, batch)
    count = after.events - before.events
    late = count // 10
    parts = [_as(t, "new") for t in clicks.events(shop, before.events, count - late, (low, high))]
    tardy = clicks.events(shop, after.events - late, late, (low - 3 * DAY, low))
    parts += [_as(table, "late") for table in tardy]
    again = spread(shop.seed, f"clicks {batch}", parts[0].num_rows, _share(count, 0.01, 1))
    parts.append(_as(parts[0].drop_columns([ROLE]).take(again), "duplicate"))
    return _mixed(shop, f"events batch {batch}", [*parts, *_bad_events(shop, batch, 1)])


# bad rows: made from rows of their own, so that a mended one is a new row and loses nothing


def _order_faults(
    shop: World, batch: int, total: int, span: tuple[int, int], parsed: bool
) -> tuple[Ints, list[pa.Table]]:
    """Bad orders, a table a reason, and beside which order each row lies, table after table."""
    shares = {MALFORMED: 0.0006, "missing_key": 0.0004, "negative_amount": 0.0004,
              "unknown_status": 0.0004}  # fmt: skip
    beside, tables, first = [], [], 900_000_000 + batch * 100_000
    for reason, part in shares.items():
        if parsed and reason == MALFORMED:
            continue
        beside.append(spread(shop.seed, reason, total, _share(total, part, 1)))
        index = first + np.arange(len(beside[-1]), dtype=np.int64)
        placed = span[0] + integers(shop.seed, "bad", index, 0, span[1] - span[0])
        tables.append(_as(_break(world.orders(shop, index, placed, placed, "c"), reason), reason))
        first += len(index)
    return np.concatenate(beside), tables


def _bad_customers(shop: World, batch: int, low: int, count: int, at: int) -> list[pa.Table]:
    tables = []
    for number, reason in enumerate((MALFORMED, "missing_key", "bad_email", "unknown_segment")):
        index = 90_000_000 + batch * 100_000 + low + number * count + np.arange(count)
        table = world.customers(shop, index, np.zeros_like(index), np.full_like(index, at), "c")
        tables.append(_as(_break(table, reason), reason))
    return tables


def _bad_products(shop: World, batch: int) -> list[pa.Table]:
    tables = []
    for number, reason in enumerate((MALFORMED, "missing_key", "negative_price")):
        index = np.array([900_000 + batch * 10 + number], dtype=np.int64)
        table = world.products(shop, index, 0, np.zeros_like(index))
        tables.append(_as(_break(table, reason), reason))
    return tables


def _bad_events(shop: World, batch: int, count: int) -> list[pa.Table]:
    first = 900_000_000_000 + batch * 1_000_000
    span = (shop.end - DAY, shop.end)
    table = pa.concat_tables(clicks.events(shop, first, 3 * count, span))
    return [
        _as(_break(table.slice(number * count, count), reason), reason)
        for number, reason in enumerate(("missing_key", "unknown_type", "missing_user"))
    ]


def _break(table: pa.Table, reason: str) -> pa.Table:
    key = next(name for name in table.column_names if name.endswith("_id"))
    name, value = {
        "missing_key": (key, None),
        "unknown_status": ("order_status", "lost"),
        "bad_email": ("email", "not an address"),
        "unknown_segment": ("segment", "galactic"),
        "unknown_type": ("event_type", "teleport"),
        "missing_user": ("user_id", None),
    }.get(reason, (None, None))
    if reason in {"negative_amount", "negative_price"}:
        name = "total_amount" if reason == "negative_amount" else "price"
        kind = table[name].type
        return _with(table, name, pc.negate(table[name]).cast(kind))
    if name is None:
        return table
    return _with(table, name, pa.repeat(pa.scalar(value, pa.string()), table.num_rows))


# small pieces


def _share(total: int, part: float, least: int = 0) -> int:
    return min(max(round(total * part), least), total)


def _day(shop: World, batch: int) -> tuple[int, int]:
    return shop.end + (batch - 1) * DAY, shop.end + batch * DAY


def _inside(chosen: Ints, low: int, high: int) -> Ints:
    return chosen[(chosen >= low) & (chosen < high)]


def _doomed(shop: World, name: str, total: int, every: tuple[int, int]) -> Ints:
    found = np.arange(every[1], total, every[0], dtype=np.int64)
    return found[np.argsort(uniform(shop.seed, f"doomed {name}", found), kind="stable")]


def _doomed_orders(shop: World) -> Ints:
    """In the order in which they go: some from all times in the first load, then the newest."""
    doomed = _doomed(shop, "order", shop.orders, _DOOMED_ORDER)
    first = _share(shop.orders, 0.0024)
    return np.concatenate([doomed[:first], np.sort(doomed[first:])[::-1]])


def _deleted(shop: World, index: Ints, placed: Ints, at: int) -> pa.Table:
    return world.orders(shop, index, placed, at - 1, "d", at - HOUR + index % HOUR)


def _moved(shop: World) -> tuple[Ints, Ints]:
    """Customers whose profile changed before the first load, and when."""
    moved = spread(shop.seed, "moved", shop.customers, _share(shop.customers, 0.041))
    since = np.maximum(shop.joined[moved], shop.start) + HOUR
    part = uniform(shop.seed, "moved at", moved)
    return moved, since + ((shop.end - 1 - since) * part).astype(np.int64)


def _placed(shop: World, state: State, index: Ints) -> Ints:
    """When orders were placed: each number belongs to one span of the story."""
    placed = np.zeros_like(index)
    for span in state.spans:
        here = (index >= span.first) & (index < span.first + span.count)
        moments = shop.moments("placed", index[here], span.first, span.count, (span.low, span.high))
        placed[here] = moments
    return placed


def _recent(shop: World, state: State, batch: int, count: int) -> Ints:
    """Distinct existing orders, the newer the likelier."""
    drawn = uniform(shop.seed, "recent", np.arange(count * 3, dtype=np.int64), batch) ** 3.0
    open_ = state.orders * min(_RETURNS / (shop.end - shop.start), 1.0)
    index = state.orders - 1 - np.floor(drawn * open_).astype(np.int64)
    index = index[index % _DOOMED_ORDER[0] != _DOOMED_ORDER[1]]
    _, where = np.unique(index, return_index=True)
    return index[np.sort(where)][:count]


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def _as(table: pa.Table, role: str) -> pa.Table:
    return table.append_column(ROLE, pa.repeat(role, table.num_rows))


def _mixed(shop: World, name: str, parts: list[pa.Table]) -> pa.Table:
    """The first part in its order, the rows of the others strewn among it."""
    whole = pa.concat_tables(parts)
    first, rest = parts[0].num_rows, whole.num_rows - parts[0].num_rows
    strewn = uniform(shop.seed, f"mix {name}", np.arange(rest, dtype=np.int64)) * max(first, 1)
    keys = np.concatenate([np.arange(first, dtype=np.float64), strewn])
    return whole.take(np.argsort(keys, kind="stable")).combine_chunks()

"""Random SQL models that write partitions by day, and random histories of the tables they read.

A model is drawn from a grammar: sources, plain, in a CTE or derived; a join or none; conditions;
rows, groups or windows; a union of two such branches, or none. Most of what it gives can be
computed by the days that a change touches; some of it cannot, and must then not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

EVENTS, KEYS = "bronze.events", "bronze.keys"
SOURCES = {
    EVENTS: {
        "id": "long", "at": "timestamptz", "day": "date", "k": "int", "n": "long",
        "amount": "decimal(10,2)", "kind": "string",
    },
    KEYS: {
        "k": "int", "segment": "int", "rate": "decimal(6,2)", "since": "date", "until": "date",
    },
}  # fmt: skip
"""The tables that models read: columns with their types."""
ARROW = {
    "long": pa.int64(), "int": pa.int32(), "date": pa.date32(), "string": pa.string(),
    "timestamptz": pa.timestamp("us", "UTC"), "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(6,2)": pa.decimal128(6, 2),
}  # fmt: skip
FIRST = date(2026, 1, 30)
"""The first of the days; a month ends soon after it."""
LONG, MONEY, TEXT = "long", "decimal(38,4)", "string"


# Histories


@dataclass(frozen=True)
class Change:
    """Rows of a source that go, by values of a column, and rows that come."""

    table: str
    rows: tuple[tuple[Any, ...], ...] = ()
    column: str = ""
    values: tuple[Any, ...] = ()

    @property
    def arrow(self) -> pa.Table:
        """The rows that come."""
        columns = SOURCES[self.table]
        schema = pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])
        return pa.Table.from_pylist(
            [dict(zip(columns, row, strict=True)) for row in self.rows], schema=schema
        )


Batch = tuple[Change, ...]
"""What happens to the sources between two runs: nothing at all, sometimes."""

_days = st.integers(0, 7).map(lambda n: FIRST + timedelta(days=n))
_cents = st.integers(-300, 300).map(lambda n: Decimal(n).scaleb(-2))
_few = st.integers(0, 3)


def _or_null(some: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.one_of(some, some, some, some, st.none())


@st.composite
def _event(draw: DrawFn) -> tuple[Any, ...]:
    day = draw(_days)
    # The moment is of another day than the row says now and then, and at a day's very borders.
    hours = draw(st.sampled_from([0, 0, 9, 15, 23, 24, -1]))
    at = datetime.combine(day, time(), UTC) + timedelta(hours=hours)
    return (
        draw(st.integers(0, 12)), at, draw(_or_null(st.just(day))), draw(_or_null(_few)),
        draw(_or_null(st.integers(-1, 3))), draw(_or_null(_cents)),
        draw(_or_null(st.sampled_from("abc"))),
    )  # fmt: skip


_key = st.tuples(_or_null(_few), _or_null(_few), _or_null(_cents), _or_null(_days), _or_null(_days))
_ROWS = {EVENTS: _event(), KEYS: _key}
_TOLD_BY = {EVENTS: ("day", "day", "id", "k"), KEYS: ("k", "segment")}


@st.composite
def _change(draw: DrawFn) -> Change:
    """Rows come, late or not; or go; or others take their place."""
    table = draw(st.sampled_from([EVENTS, EVENTS, KEYS]))
    comes, goes = draw(st.sampled_from([(1, 0)] * 3 + [(0, 1)] * 2 + [(1, 1)] * 2 + [(0, 0)]))
    most = 5 if table == EVENTS else 2
    rows = draw(st.lists(_ROWS[table], min_size=1, max_size=most)) if comes else []
    if not goes:
        return Change(table, tuple(rows))
    column = draw(st.sampled_from(_TOLD_BY[table]))
    some = _days if column == "day" else st.integers(0, 4)
    values = draw(st.sets(some, min_size=1, max_size=3))
    return Change(table, tuple(rows), column, tuple(sorted(values)))


def histories(most: int) -> SearchStrategy[list[Batch]]:
    """Batches: the first fills both tables, up to `most` follow it."""
    first = st.tuples(
        st.lists(_ROWS[EVENTS], min_size=6, max_size=16).map(lambda r: Change(EVENTS, tuple(r))),
        st.lists(_ROWS[KEYS], max_size=5).map(lambda r: Change(KEYS, tuple(r))),
    )
    some = st.lists(_change(), min_size=1, max_size=2).map(tuple)
    later = st.one_of(*[some] * 6, st.just(()))
    following = st.lists(later, min_size=2, max_size=most)
    return st.tuples(first, following).map(lambda both: [both[0], *both[1]])


# Models


@dataclass(frozen=True)
class RandomModel:
    """A query and what its table promises: columns with their types, the first one by day."""

    sql: str
    columns: tuple[tuple[str, str], ...]
    transform: str

    @property
    def contract(self) -> str:
        """The properties and settings of its contract, to follow odcs.HEAD."""
        (first, kind), *others = self.columns
        how = f"customProperties: [{{property: transform, value: {self.transform}}}]"
        lines = [f"{{name: {first}, physicalType: {kind}, partitioned: true, {how}}}"]
        lines += [f'{{name: {name}, physicalType: "{kind}"}}' for name, kind in others]
        listed = "".join(f"      - {line}\n" for line in lines)
        return f"{listed}customProperties:\n  - {{property: write, value: partitions}}\n"


@dataclass(frozen=True)
class _Frame:
    """What a SELECT reads, and what can be said over it."""

    source: str
    ctes: tuple[str, ...]
    days: tuple[str, ...]
    moments: tuple[str, ...]
    values: dict[str, tuple[str, ...]]
    conditions: tuple[str, ...]
    order: str
    """All columns: rows that are alike in them are alike in everything."""


_EVENT_CONDITIONS = (
    "e.n > 0", "e.n between 0 and 2", "e.kind = 'a'", "e.kind in ('a', 'b')", "e.k is not null",
    "e.day >= date '2026-02-02'", "e.amount < 1.50", "not (e.n = 1)", "coalesce(e.n, 0) <> 2",
)  # fmt: skip
_KEY_CONDITIONS = (
    "c.segment is null", "c.segment <> 1", "coalesce(c.segment, 9) > 1", "e.amount > c.rate",
    "c.k is null",
)  # fmt: skip
_ACROSS = (
    f"e.k in (select k from {KEYS})",
    f"exists (select 1 from {KEYS} as x where x.k = e.k)",
    f"e.n >= (select min(n) from {EVENTS})",
)
"""Conditions that look beyond the row: such a model is computed in full."""
_EVENT_VALUES = {
    LONG: (
        "e.n", "e.id", "coalesce(e.n, 7)", "e.n * 2 + 1", "e.k",
        "case when e.kind = 'a' then e.n when e.n > 1 then -1 else e.id end",
    ),
    MONEY: (
        "e.amount", "e.amount * e.n", "coalesce(e.amount, 0.5)",
        "case when e.n > 0 then e.amount else -e.amount end",
    ),
    TEXT: ("e.kind", "coalesce(e.kind, '?')", "e.kind || cast(e.id as varchar)", "upper(e.kind)"),
}  # fmt: skip
_KEY_VALUES = {
    LONG: ("c.segment", "coalesce(c.segment, -1)", "c.segment + e.n"),
    MONEY: ("c.rate", "e.amount * c.rate", "e.amount - coalesce(c.rate, 0)"),
    TEXT: ("case when c.k is null then 'none' when c.segment = 1 then 'one' else e.kind end",),
}
_TYPES = {LONG: "bigint", MONEY: "decimal(38,4)", TEXT: "varchar"}


@st.composite
def _events(draw: DrawFn, alias: str, mark: str) -> tuple[str, tuple[str, ...]]:
    """The events under an alias: as they are, or through a CTE or a derived table."""
    shape = draw(st.sampled_from(["stored", "stored", "stored", "cte", "derived", "newest"]))
    if shape == "stored":
        return f"{EVENTS} as {alias}", ()
    day = draw(st.sampled_from(["e.day", "e.day", "cast(e.at as date)"]))
    columns = f"e.id, e.at, {day} as day, e.k, e.n, e.amount, e.kind"
    where = draw(st.sampled_from(["", f" where {draw(st.sampled_from(_EVENT_CONDITIONS))}"]))
    inner = f"select {columns} from {EVENTS} as e{where}"
    if shape == "newest":
        # One row of each id and day, as models do that clean what was sent twice.
        order = "e.at desc, e.n, e.amount, e.kind, e.k, e.day"
        place = f"row_number() over (partition by {day}, e.id order by {order}) as place"
        numbered = f"select {columns}, {place} from {EVENTS} as e{where}"
        kept = ", ".join(f"p.{name}" for name in SOURCES[EVENTS])
        inner = f"select {kept} from ({numbered}) as p where p.place = 1"
    if shape == "derived":
        return f"({inner}) as {alias}", ()
    return f"kept{mark} as {alias}", (f"kept{mark} as ({inner})",)


_AGGREGATED = (
    f"select k, count(*) as segment, max(rate) as rate, min(since) as since, max(until) as until "
    f"from {KEYS} group by k",
    f"select k, max(n) as segment, sum(amount) as rate, min(day) as since, max(day) as until "
    f"from {EVENTS} group by k",
    f"select k, segment, rate, since, until from {KEYS} where segment > 0",
)


@st.composite
def _keys(draw: DrawFn, mark: str) -> tuple[str, tuple[str, ...]]:
    """What is joined, as `c`: the keys, some of them, or groups of keys or of events."""
    inner = draw(st.sampled_from([None] * 6 + [*_AGGREGATED]))
    if inner is None:
        return f"{KEYS} as c", ()
    if draw(st.booleans()):
        return f"({inner}) as c", ()
    return f"found{mark} as c", (f"found{mark} as ({inner})",)


_ON = (
    "c.k = e.k",
    "c.k = e.k",
    "c.k = e.k and e.day >= c.since and (c.until is null or e.day < c.until)",
    "c.k = e.k and c.segment > 0",
    "c.since = e.day",
)


_JOINS = ("", "", "", "join", "join", "left join", "left join", "left join", "right join", "self",
          "self", "full join")  # fmt: skip


@st.composite
def _frame(draw: DrawFn, mark: str) -> _Frame:
    """Events, alone or joined."""
    events, ctes = draw(_events("e", mark))
    days = ["e.day", "e.day", "cast(e.at as date)", "cast(e.at as date)", "e.day + 1",
            "coalesce(e.day, cast(e.at as date))", "cast(date_trunc('month', e.day) as date)",
            "case when e.kind = 'a' then e.day else cast(e.at as date) end"]  # fmt: skip
    order = [f"e.{name}" for name in SOURCES[EVENTS]]
    values, conditions = dict(_EVENT_VALUES), list(_EVENT_CONDITIONS)
    join = draw(st.sampled_from(_JOINS))
    if join == "self":
        others, more = draw(_events("o", f"{mark}o"))
        on = draw(
            st.sampled_from(["o.k = e.k", "o.k = e.k and o.day = e.day", "o.day = e.day - 1"])
        )
        kind = draw(st.sampled_from(["join", "left join"]))
        source, ctes = f"{events} {kind} {others} on {on}", (*ctes, *more)
        order += [f"o.{name}" for name in SOURCES[EVENTS]]
        values = {LONG: (*values[LONG], "o.n"), MONEY: (*values[MONEY], "o.amount"),
                  TEXT: (*values[TEXT], "o.kind")}  # fmt: skip
    elif join:
        keys, more = draw(_keys(mark))
        left, right = (keys, events) if join == "right join" else (events, keys)
        source = f"{left} {join} {right} on {draw(st.sampled_from(_ON))}"
        ctes = (*ctes, *more)
        days += ["coalesce(c.since, e.day)"]
        order += [f"c.{name}" for name in SOURCES[KEYS]]
        values = {kind: values[kind] + _KEY_VALUES[kind] * 2 for kind in values}
        conditions += _KEY_CONDITIONS * 2
    else:
        source = events
    moments = ("e.at", "e.at", "e.at", "date_trunc('hour', e.at)")
    return _Frame(source, ctes, tuple(days), moments, values, tuple(conditions), ", ".join(order))


@st.composite
def _where(draw: DrawFn, frame: _Frame) -> str:
    chosen = draw(st.lists(st.sampled_from(frame.conditions), max_size=2))
    if draw(st.integers(0, 24)) == 7:
        chosen.append(draw(st.sampled_from(_ACROSS)))
    return f" where {draw(st.sampled_from([' and ', ' or '])).join(chosen)}" if chosen else ""


def _named(first: str, values: Sequence[str], kinds: Sequence[str]) -> str:
    """The list of a SELECT: the day's column, then each value in its type."""
    cast = [
        f"cast({value} as {_TYPES[kind]}) as v{number}"
        for number, (value, kind) in enumerate(zip(values, kinds, strict=True))
    ]
    return ", ".join([f"{first} as day", *cast])


@st.composite
def _rows(draw: DrawFn, frame: _Frame, first: str, kinds: Sequence[str]) -> str:
    """Row by row, or each row once."""
    values = [draw(st.sampled_from(frame.values[kind])) for kind in kinds]
    distinct = draw(st.sampled_from(["", "", "distinct "]))
    where = draw(_where(frame))
    return f"select {distinct}{_named(first, values, kinds)} from {frame.source}{where}"


@st.composite
def _aggregate(draw: DrawFn, frame: _Frame, kind: str) -> str:
    value = draw(st.sampled_from(frame.values[kind]))
    if kind == TEXT:
        return f"{draw(st.sampled_from(['min', 'max']))}({value})"
    condition = draw(st.sampled_from(frame.conditions))
    forms = ["sum({v})", "min({v})", "max({v})", "sum(case when {c} then {v} else 0 end)"]
    if kind == LONG:
        forms += ["count(*)", "count(*)", "count({v})", "count(distinct {v})",
                  "count(*) filter (where {c})"]  # fmt: skip
    return draw(st.sampled_from(forms)).format(v=value, c=condition)


@st.composite
def _groups(draw: DrawFn, frame: _Frame, first: str, kinds: Sequence[str]) -> str:
    """Groups of a day, or of a day and something else."""
    by = [first]
    values = []
    for kind in kinds:
        if len(by) == 1 and draw(st.integers(0, 2)) == 0:
            values.append(draw(st.sampled_from(frame.values[kind])))
            by.append(values[-1])
        else:
            values.append(draw(_aggregate(frame, kind)))
    having = draw(st.sampled_from(["", "", " having count(*) > 1", " having max(e.n) < 3"]))
    where = draw(_where(frame))
    grouped = f" group by {', '.join(by)}{having}"
    return f"select {_named(first, values, kinds)} from {frame.source}{where}{grouped}"


@st.composite
def _window(draw: DrawFn, frame: _Frame, kind: str, part: str) -> str:
    value = draw(st.sampled_from(frame.values[kind]))
    forms = ["max({v}) over (partition by {p})", "lag({v}) over (partition by {p} order by {o})",
             "first_value({v}) over (partition by {p} order by {o})"]  # fmt: skip
    if kind != TEXT:
        forms += ["sum({v}) over (partition by {p})",
                  "sum({v}) over (partition by {p} order by {o} "
                  "rows between unbounded preceding and current row)"]  # fmt: skip
    if kind == LONG:
        forms += ["row_number() over (partition by {p} order by {o})",
                  "rank() over (partition by {p} order by {v} desc nulls last)",
                  "count(*) over (partition by {p})"]  # fmt: skip
    return draw(st.sampled_from(forms)).format(v=value, p=part, o=frame.order)


@st.composite
def _windowed(draw: DrawFn, frame: _Frame, first: str, kinds: Sequence[str]) -> str:
    """Each row with what it is among those of its day, or of its day and key; or the first one."""
    within = draw(st.sampled_from(["{d}", "{d}", "{d}", "{d}, e.k", "e.kind, {d}", "e.k"]))
    day = first if first in frame.days else f"cast({first} as date)"
    if draw(st.integers(0, 7)) == 5:
        day = draw(st.sampled_from(["e.day", "cast(e.at as date)"]))  # perhaps not the target's
    part = within.format(d=day)
    values = [
        draw(_window(frame, kind, part))
        if draw(st.booleans())
        else draw(st.sampled_from(frame.values[kind]))
        for kind in kinds
    ]
    where = draw(_where(frame))
    place = f"row_number() over (partition by {part} order by {frame.order})"
    plain = f"select {_named(first, values, kinds)} from {frame.source}{where}"
    match draw(st.sampled_from(["all", "qualify", "filtered"])):
        case "qualify":
            return f"{plain} qualify {place} = 1"
        case "filtered":
            listed = ", ".join(["day", *(f"v{number}" for number in range(len(kinds)))])
            numbered = f"select {_named(first, values, kinds)}, {place} as place"
            return (
                f"select {listed} from ({numbered} from {frame.source}{where}) as w where place = 1"
            )
    return plain


def _renamed(branch: str, kinds: Sequence[str]) -> str:
    """The same through a derived table, in which everything has another name."""
    names = [f"v{number}" for number in range(len(kinds))]
    inner = ", ".join(["day as d", *(f"{name} as w{name}" for name in names)])
    outer = ", ".join(["r.d as day", *(f"r.w{name} as {name}" for name in names)])
    return f"select {outer} from (select {inner} from ({branch}) as b) as r"


@st.composite
def models(draw: DrawFn) -> RandomModel:
    """A model with a column by day and one to three others."""
    kinds = draw(st.lists(st.sampled_from([LONG, LONG, MONEY, TEXT]), min_size=1, max_size=3))
    kind, transform = draw(
        st.sampled_from([("date", "identity"), ("date", "identity"), ("date", "day"),
                         ("timestamptz", "day")])
    )  # fmt: skip
    branches, ctes = [], []
    for mark in draw(st.sampled_from([["1"], ["1"], ["1"], ["1", "2"]])):
        frame = draw(_frame(mark))
        first = draw(st.sampled_from(frame.days if kind == "date" else frame.moments))
        shape = draw(st.sampled_from([_rows, _groups, _groups, _windowed]))
        branch = draw(shape(frame, first, kinds))
        branches.append(_renamed(branch, kinds) if draw(st.integers(0, 5)) == 3 else branch)
        ctes += frame.ctes
    with_ = f"with {', '.join(ctes)} " if ctes else ""
    columns = (("day", kind), *((f"v{number}", each) for number, each in enumerate(kinds)))
    return RandomModel(with_ + " union all ".join(branches), columns, transform)

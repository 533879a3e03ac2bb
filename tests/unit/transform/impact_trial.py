"""One query, its sources before and after a change: which parts differ, and which are named.

All in DuckDB and without a lake, so that thousands of cases take a minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp
from tests.random_chains import DAY, MOMENT, MONEY, NUMBER, TEXT, Chain, Relation, chain

from thermocline.transform import impact
from thermocline.transform.models import parse_query
from thermocline.transform.target_parts import CHANGED, EITHER, OLD

EVENTS = Relation(
    "s.events",
    (("id", NUMBER), ("at", MOMENT), ("day", DAY), ("k", NUMBER), ("n", NUMBER),
     ("amount", MONEY), ("kind", TEXT)),
)  # fmt: skip
KEYS = Relation("s.keys", (("k", NUMBER), ("segment", NUMBER), ("since", DAY), ("name", TEXT)))
STORED = (EVENTS, KEYS)
COLUMNS = {relation.name: dict(relation.columns) for relation in STORED}
_ARROW = {
    NUMBER: pa.int64(), MOMENT: pa.timestamp("us", "UTC"), DAY: pa.date32(), TEXT: pa.string(),
    MONEY: pa.decimal128(38, 4),
}  # fmt: skip
FIRST = date(2026, 1, 30)

Rows = list[tuple[Any, ...]]
Tables = Mapping[str, Rows]


def some_rows(random: Random, relation: Relation, count: int) -> Rows:
    """Rows with few different values, so that they meet each other; and with nulls."""
    return [tuple(_cell(random, kind) for _, kind in relation.columns) for _ in range(count)]


def _cell(random: Random, kind: str) -> Any:
    if random.random() < 0.12:
        return None
    day = FIRST + timedelta(days=random.randint(0, 5))
    return {
        NUMBER: random.randint(-1, 3),
        MONEY: Decimal(random.randint(-300, 300)).scaleb(-2),
        TEXT: random.choice("abc"),
        DAY: day,
        MOMENT: datetime(day.year, day.month, day.day, random.choice([0, 9, 23]), tzinfo=UTC),
    }[kind]


def some_change(random: Random, tables: Tables) -> dict[str, Rows]:
    """Rows come, go and change, in one table or in both."""
    after = {}
    for relation in STORED:
        rows = list(tables[relation.name])
        if random.random() < 0.3:
            after[relation.name] = rows
            continue
        for _ in range(random.choice([0, 0, 1, 1, 2])):
            if rows:
                rows.pop(random.randrange(len(rows)))
        for _ in range(random.choice([0, 0, 1])):
            if rows:
                place = random.randrange(len(rows))
                column = random.randrange(len(relation.columns))
                row = list(rows[place])
                row[column] = _cell(random, relation.columns[column][1])
                rows[place] = tuple(row)
        rows += some_rows(random, relation, random.choice([0, 1, 1, 2]))
        after[relation.name] = rows
    return after


def analyze_query(asked: Chain) -> impact.Impact:
    """The analysis of a chain."""
    name, kind = asked.columns[0]
    return impact.analyze_query(
        parse_query(asked.sql), COLUMNS, {name: kind}, [name] if asked.by_day else []
    )


class Trial:
    """A connection with the tables of one case at a time."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("set TimeZone = 'UTC'")
        for schema in ("s", CHANGED, EITHER):
            self.connection.execute(f"create schema {schema}")

    def parts(self, asked: Chain, tables: Tables) -> Counter[tuple[Any, ...]]:
        """The query's rows, the part of each in its first place."""
        self._fill("s", tables, {})
        first = f'"{asked.columns[0][0]}"'
        part = f"cast({first} as date)" if asked.by_day else first
        rows = self.connection.execute(f"select {part}, * from ({asked.sql})").fetchall()
        return Counter(rows)

    def named(self, asked: Chain, found: impact.Impact, before: Tables, after: Tables) -> set[Any]:
        """The parts that the analysis names for a change."""
        changed = {name: _changes(before[name], after[name]) for name in COLUMNS}
        either = {
            name: [*after[name], *(r[:-1] for r in changed[name] if r[-1])] for name in COLUMNS
        }
        self._fill("s", after, {})
        self._fill(CHANGED, changed, {OLD: pa.bool_()})
        self._fill(EITHER, either, {})
        named: set[Any] = set()
        for touch in found.touches:
            if not changed[touch.table]:
                continue
            if touch.column:
                at = list(COLUMNS[touch.table]).index(touch.column)
                values = {row[at] for row in changed[touch.table]}
                days = touch.day or asked.by_day
                named |= {v.date() if days and isinstance(v, datetime) else v for v in values}
                continue
            named |= {
                row[0] for row in self.connection.execute(touch.query.sql("duckdb")).fetchall()
            }
        return named

    def pruned(
        self, asked: Chain, found: impact.Impact, tables: Tables, wanted: set[Any]
    ) -> Counter[tuple[Any, ...]]:
        """The rows of some parts, from those rows of the sources that can reach them."""
        self._fill("s", tables, {})
        query = parse_query(asked.sql)
        mentions = impact.find_stored_tables(query)
        for number, each in enumerate(found.filters):
            at = list(COLUMNS[each.table]).index(each.column)
            day = each.day or asked.by_day
            rows = [
                row for row in tables[each.table]
                if (row[at].date() if day and isinstance(row[at], datetime) else row[at]) in wanted
            ]  # fmt: skip
            self._put("s", f"few{number}", COLUMNS[each.table], rows, {})
            reference = mentions[each.position]
            alias = reference.alias_or_name
            reference.replace(exp.to_table(f"s.few{number}", alias=alias))
        for column in query.find_all(exp.Column):
            column.set("db", None)
        whole = self.parts(Chain(query.sql("duckdb"), asked.columns, asked.by_day), tables)
        return Counter({row: n for row, n in whole.items() if row[0] in wanted})

    def _fill(self, schema: str, tables: Tables, extra: Mapping[str, pa.DataType]) -> None:
        for name, rows in tables.items():
            table = name if schema != "s" else name.partition(".")[2]
            self._put(schema, table, COLUMNS[name], rows, extra)

    def _put(
        self,
        schema: str,
        table: str,
        columns: Mapping[str, str],
        rows: Sequence[tuple[Any, ...]],
        extra: Mapping[str, pa.DataType],
    ) -> None:
        kinds = {**{name: _ARROW[kind] for name, kind in columns.items()}, **extra}
        held = pa.table(
            [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(kinds.values())],
            names=list(kinds),
        )
        self.connection.register("held", held)
        self.connection.execute(f'create or replace table "{schema}"."{table}" as from held')
        self.connection.unregister("held")


def _changes(before: Rows, after: Rows) -> Rows:
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    return [(*r, True) for r in gone.elements()] + [(*r, False) for r in come.elements()]


def verdict(trial: Trial, seed: int, asked: Chain | None = None, *, changes: int = 4) -> str:
    """What came of the query of a seed: the reason why it is whole, `incremental`, or a failure.

    Of another query when one is given; the seed then stands for the tables and their changes.
    """
    random = Random(seed)
    asked = asked or chain(seed, STORED)
    tables = {r.name: some_rows(random, r, random.randint(3, 9)) for r in STORED}
    try:
        rows = trial.parts(asked, tables)
    except duckdb.Error as error:
        return f"no query: {error}"
    try:
        found = analyze_query(asked)
    except impact.Unsafe as unsafe:
        return f"whole: {unsafe.reason}"
    for _ in range(changes):
        after = some_change(random, tables)
        then = trial.parts(asked, after)
        differ = rows.copy()
        differ.subtract(then)
        really = {row[0] for row, count in differ.items() if count}
        try:
            named = trial.named(asked, found, tables, after)
        except duckdb.Error as error:
            return f"REFUSED {error}: {asked.sql}"
        if not really <= named:
            return f"MISSED {really - named}: {asked.sql}\nbefore {tables}\nafter {after}"
        wanted = {row[0] for row in list(then)[:2]} - {None}
        expected = Counter({row: n for row, n in then.items() if row[0] in wanted})
        if wanted and trial.pruned(asked, found, after, wanted) != expected:
            return f"PRUNED {wanted}: {asked.sql}\ntables {after}"
        tables, rows = after, then
    return "incremental"


def failed(found: str) -> bool:
    """Whether a verdict says that the analysis was wrong."""
    return found.startswith(("MISSED", "PRUNED", "REFUSED"))

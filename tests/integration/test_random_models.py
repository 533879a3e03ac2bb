"""Random models and random late changes: by partitions comes what a full refresh would give.

Models and histories are drawn from a grammar (random_models.py). After every batch the tables must
hold what plain DuckDB gives for the same query over the same rows, and after the last one what a
full refresh makes of them, row by row. No Spark, no JVM.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyiceberg.expressions import In
from tests.conftest import clean_environment
from tests.integration.odcs import HEAD
from tests.integration.random_models import (
    EVENTS,
    KEYS,
    SOURCES,
    Batch,
    Change,
    RandomModel,
    histories,
    models,
)

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.lake.changes import read_rows
from thermocline.lake.naming import new_run_id
from thermocline.transform.runner import StepResult

WAYS: Mapping[str, Mapping[str, Any]] = {"in this process": {}}
"""The ways to run, with what Lakehouse.run is told for each."""
SETTINGS = """\
[lake]
name = "random"
[engine.duckdb]
threads = 1
[transform]
engine = "duckdb"
"""
EXAMPLES, ROUNDS = 25, 4
SEEN = Counter({"touched": 30, "some of the days": 20, "days that went": 1, "nothing touched": 1})
"""How often each way of computing a step must have been taken."""
MODELS = 3
"""How many models share a history."""
BATCHES = 3
"""How many follow the first one, at most."""

Rows = Counter[tuple[Any, ...]]


def _event(number: int, day: int, key: int | None, kind: str | None = "a") -> tuple[Any, ...]:
    at = datetime(2026, 2, day, 9, tzinfo=UTC)
    return (number, at, at.date(), key, 1, Decimal("1.00"), kind)


def _key(key: int, since: int) -> tuple[Any, ...]:
    return (key, 1, Decimal("1.00"), date(2026, 2, since), None)


EVENTS_FIRST = Change(EVENTS, (_event(1, 1, 1), _event(2, 2, 2), _event(3, 3, 3)))
KEYS_FIRST = Change(KEYS, (_key(1, 1),))
NEW_EVENT, NEW_KEY = Change(EVENTS, (_event(9, 5, 1),)), Change(KEYS, (_key(2, 8),))
ASTRAY = {
    "the day is an aggregate": (
        f"select max(day) as day, count(*) as v from {EVENTS} group by k", NEW_EVENT,
    ),
    "the day of a cohort": (
        f"with firsts as (select k, max(day) as joined from {EVENTS} group by k) "
        "select joined as day, count(*) as v from firsts group by joined", NEW_EVENT,
    ),
    "an outer join's day under another name": (
        "select j.d as day, j.id as v from (select e.id, c.since as d "
        f"from {EVENTS} as e left join {KEYS} as c on c.k = e.k) as j", NEW_KEY,
    ),
    "an anti join": (
        f"select e.day, e.id as v from {EVENTS} as e anti join {KEYS} as c on c.k = e.k", NEW_KEY,
    ),
    "distinct on": (
        f"select distinct on (k) day, id as v from {EVENTS} order by k, id desc", NEW_EVENT,
    ),
    "a total beside the days": (
        f"select day, count(*) as v from {EVENTS} group by rollup (day)", NEW_EVENT,
    ),
    "fetch first": (
        f"select day, id as v from {EVENTS} order by id desc fetch first 2 rows only", NEW_EVENT,
    ),
}  # fmt: skip
"""Queries, and a change that alters a day which none of its rows, nor their partners, name."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
def test_partitions_are_what_a_full_refresh_makes_of_them(tmp_path: Path, way: str) -> None:
    numbers, taken = count(), Counter[str]()

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(asked=st.lists(models(), min_size=MODELS, max_size=MODELS), history=histories(BATCHES))
    def holds(asked: list[RandomModel], history: list[Batch]) -> None:
        named = {f"gold.m{number}": model for number, model in enumerate(asked)}
        with opened(tmp_path / str(next(numbers)), named) as house:
            taken.update(play(house, named, history, WAYS[way]))

    # Which examples a seed stands for follows from all constants of the code that is loaded, too:
    # where they happen to have few examples of a rare way, there are more.
    for number in range(ROUNDS):
        seed(number)(holds)()
        if taken >= SEEN:
            break
    # Not by computing everything every time, nor by never having anything to do.
    assert taken >= SEEN and taken["touched"] > taken["full"], taken
    assert taken["some of the days"] > taken["touched"] // 8, taken


@pytest.mark.parametrize("name", ASTRAY)
def test_queries_whose_rows_go_to_other_days_than_they_came_from(tmp_path: Path, name: str) -> None:
    sql, change = ASTRAY[name]
    named = {"gold.m": RandomModel(sql, (("day", "date"), ("v", "long")), "identity")}
    with opened(tmp_path / "lake", named) as house:
        list(play(house, named, [(EVENTS_FIRST, KEYS_FIRST), (change,)], {}))


def test_a_change_whose_rows_find_no_partner(tmp_path: Path) -> None:
    sql = (
        f"select e.day + 1 as day, e.n as v from {EVENTS} as e join "
        f"(select k from {EVENTS} where kind in ('a', 'b')) as o on o.k = e.k where e.k is not null"
    )
    named = {"gold.m": RandomModel(sql, (("day", "date"), ("v", "long")), "day")}
    nobody = [(2, None), (2, "c"), (None, "a"), (None, "a"), (1, None), (1, None), (None, None),
              (None, "b")]  # fmt: skip
    batches = [
        (Change(EVENTS, tuple(_event(9, 1, key, kind) for key, kind in rows)),)
        for rows in (nobody, [(2, "c"), (1, "c")])
    ]
    with opened(tmp_path / "lake", named) as house:
        list(play(house, named, batches, {}))


def play(
    house: Lakehouse,
    named: Mapping[str, RandomModel],
    history: Sequence[Batch],
    options: Mapping[str, Any],
) -> Iterator[str]:
    """Run after every batch and hold the tables against what they should be; gives the ways."""
    found: dict[str, Rows] = {}
    for number, batch in enumerate(history):
        for change in batch:
            apply(house, change)
        before, steps = found, house.run(**options).steps
        assert {step.engine for step in steps} <= {"duckdb"}
        found = {table: content(house, table) for table in named}
        expected = answers(house, named)
        for table, model in named.items():
            assert found[table] == expected[table], f"{model.sql}\nafter {history[: number + 1]}"
        for step in steps if before else ():
            yield from ways(step, before[step.table], found[step.table])
    refreshed = house.run(full_refresh=True, **options)
    assert {step.refresh_mode for step in refreshed.steps} == {"full"}
    for table, model in named.items():
        assert content(house, table) == found[table], f"{model.sql}\nafter {history}"


def ways(step: StepResult, before: Rows, after: Rows) -> Iterator[str]:
    """How a step was computed, in words to be counted."""
    yield step.refresh_mode
    old, new = ({_day(row[0]) for row in rows} for rows in (before, after))
    if step.detail == "nothing touched":
        yield step.detail
    elif step.refresh_mode == "touched":
        if int(step.detail.split()[0]) < len(old):
            yield "some of the days"
        if old - new:
            yield "days that went"


def _day(value: date | datetime | None) -> date | None:
    return value.date() if isinstance(value, datetime) else value


def answers(house: Lakehouse, named: Mapping[str, RandomModel]) -> dict[str, Rows]:
    """What plain DuckDB gives for each query over the same rows."""
    with duckdb.connect(config={"threads": 1}) as plain:
        plain.execute("set TimeZone = 'UTC'")
        plain.execute("create schema bronze")
        for source in SOURCES:
            plain.register("held", head(house, source))
            plain.execute(f"create table {source} as from held")
        return {
            table: Counter(plain.execute(model.sql).fetchall()) for table, model in named.items()
        }


def content(house: Lakehouse, table: str) -> Rows:
    """What a reader of main sees, as a bag of rows."""
    return Counter(tuple(row.values()) for row in head(house, table).to_pylist())


def head(house: Lakehouse, table: str) -> pa.Table:
    """The same as Arrow."""
    snapshot = house.lake.state(table).head()
    assert snapshot is not None
    return read_rows(house.lake.iceberg(table), snapshot)


def apply(house: Lakehouse, change: Change) -> None:
    """Put a change into its source, in one or two commits."""
    table = house.lake.iceberg(change.table)
    gone = In(change.column, change.values) if change.values else None
    if gone is not None and change.rows:
        table.overwrite(change.arrow, gone)
    elif gone is not None:
        table.delete(gone)
    else:
        draft = house.lake.draft(new_run_id())
        draft.append(change.table, change.arrow, bookmark={}, operation="append")
        draft.publish()


@contextmanager
def opened(folder: Path, named: Mapping[str, RandomModel]) -> Iterator[Lakehouse]:
    """A project with the sources, empty, and the models; removed afterwards."""
    folder.mkdir()
    (folder / "thermocline.toml").write_text(SETTINGS)
    for source, columns in SOURCES.items():
        listed = "".join(
            f'      - {{name: {name}, physicalType: "{kind}"}}\n' for name, kind in columns.items()
        )
        write = "customProperties:\n  - {property: write, value: append}\n"
        put(folder / "contracts", source, ".odcs.yaml", head_of(source) + listed + write)
    for table, model in named.items():
        put(folder / "contracts", table, ".odcs.yaml", head_of(table) + model.contract)
        put(folder / "models", table, ".sql", model.sql)
    house = Lakehouse(load_settings(folder, environ=clean_environment()))
    try:
        for source in SOURCES:
            house.lake.ensure(house.contracts[source])
        yield house
    finally:
        house.lake.duck.stop()
        shutil.rmtree(folder)


def head_of(table: str) -> str:
    """A contract up to its columns."""
    return HEAD.format(name=table.partition(".")[2])


def put(folder: Path, table: str, suffix: str, text: str) -> None:
    """Write a table's contract or model."""
    path = folder / (table.replace(".", "/") + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

"""Models of several CTEs: incremental equals full, on DuckDB and on Spark; and what says so.

Random chains of filters, cases, groups, windows, joins and unions (tests/random_chains.py) live
through histories of changes. `make soak` runs thousands of them.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.chain_lake import append, contract_of, opened, play, put
from tests.integration.random_models import ARROW, EVENTS, KEYS, SOURCES
from tests.random_chains import DAY, NUMBER, Chain

from thermocline.api import Lakehouse
from thermocline.errors import BadInput, ThermoclineError
from thermocline.lake.changes import read_rows
from thermocline.transform.part_verification import NotReproduced

DUCK_SEEDS = (0, 9)
"""Each stands for a lake with eight models and four batches."""

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


@pytest.mark.parametrize("seed", DUCK_SEEDS)
def test_chains_are_what_a_full_refresh_makes_of_them(tmp_path: Path, seed: int) -> None:
    taken = play(tmp_path / "lake", seed, engine="duckdb", count=8, batches=4)
    assert taken["incremental"] > taken["whole"] and taken["touched"] > 1, taken


def test_chains_on_spark(tmp_path: Path) -> None:
    taken = play(tmp_path / "lake", 0, engine="spark", count=5, batches=3)
    assert taken["incremental"] > taken["whole"] and taken["touched"] > 1, taken


# Where filters, windows and conversions stand beyond the operator that computes ------------------

TOTALS = f"with a as (select k, cast(sum(n) as bigint) as total from {EVENTS} group by k)"
BEYOND = {
    "a filter on a sum, a CTE further": Chain(
        f"{TOTALS}, b as (select k, total from a) select coalesce(k, -9) as key, total as v0 "
        "from b where total > 100", (("key", NUMBER), ("v0", NUMBER)), keyed=True,
    ),
    "the second row of a window, a CTE further": Chain(
        f"with a as (select day, n, row_number() over (partition by day order by n, id) as rn "
        f"from {EVENTS}), b as (select day, n, rn from a) "
        "select day, n as v0 from b where rn = 2", (("day", DAY), ("v0", NUMBER)),
    ),
    "a case on a count": Chain(
        f"with a as (select day, k, count(*) as c from {EVENTS} group by day, k), "
        "b as (select day, case when c > 1 then 'many' end as size from a) "
        "select day, count(*) as v0 from b where size = 'many' group by day",
        (("day", DAY), ("v0", NUMBER)),
    ),
    "a day that the write makes of a time": Chain(
        f"select date_trunc('day', \"at\") as day, count(*) as v0 from {EVENTS} group by 1",
        (("day", DAY), ("v0", NUMBER)),
    ),
    "a join on a renamed sum": Chain(
        f"{TOTALS}, b as (select k, total as t from a) select e.day, count(*) as v0 "
        f"from {EVENTS} as e join b on b.t = e.id group by e.day", (("day", DAY), ("v0", NUMBER)),
    ),
}  # fmt: skip


def _event(number: int, day: int, key: int, n: int) -> tuple[Any, ...]:
    at = datetime(2026, 2, day, 9, tzinfo=UTC)
    return (number, at, at.date(), key, n, Decimal("1.00"), "a")


def _come(house: Lakehouse, table: str, *come: tuple[Any, ...]) -> None:
    schema = pa.schema([(name, ARROW[kind]) for name, kind in SOURCES[table].items()])
    listed = [dict(zip(SOURCES[table], row, strict=True)) for row in come]
    append(house, table, pa.Table.from_pylist(listed, schema=schema))


def _content(house: Lakehouse, table: str) -> Counter[tuple[Any, ...]]:
    head = house.lake.state(table).head()
    assert head is not None
    found = read_rows(house.lake.iceberg(table), head).to_pylist()
    return Counter(tuple(row.values()) for row in found)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_what_a_computed_value_lets_through_later(tmp_path: Path, engine: str) -> None:
    asked = {f"gold.m{number}": each for number, each in enumerate(BEYOND.values())}
    house = opened(tmp_path / "lake", asked, engine)
    _come(house, EVENTS, _event(1, 1, 1, 90), _event(2, 1, 2, 200), _event(110, 3, 9, 0))
    _come(house, KEYS, (1, 1, Decimal("1.00"), date(2026, 2, 1), None))
    house.run()
    before = _content(house, "gold.m0")
    _come(house, EVENTS, _event(3, 1, 1, 20))
    house.run()
    found = {table: _content(house, table) for table in asked}
    house.run(full_refresh=True)
    assert found == {table: _content(house, table) for table in asked}
    assert found["gold.m0"] - before == Counter({(1, 110): 1})
    house.lake.duck.stop()


# What says that a model is computed whole, and what notices that a part is not what it would be ---

WHOLE = Chain(
    f"select day, any_value(n) as v0 from {EVENTS} group by day", (("day", DAY), ("v0", NUMBER))
)
PLAIN = Chain(
    f"select day, sum(n) as v0 from {EVENTS} group by day", (("day", DAY), ("v0", NUMBER))
)


def test_the_plan_says_why_a_model_is_computed_whole(tmp_path: Path) -> None:
    house = opened(tmp_path / "lake", {"gold.whole": WHOLE, "gold.plain": PLAIN}, "duckdb")
    _come(house, EVENTS, _event(1, 1, 1, 90))
    _come(house, KEYS)
    house.run()
    _come(house, EVENTS, _event(2, 2, 1, 20))
    steps = {step.table: step for step in house.plan().steps}
    assert str(steps["gold.plain"].refresh_mode) == "touched"
    assert not any("in full" in why for why in steps["gold.plain"].why)
    assert str(steps["gold.whole"].refresh_mode) == "full"
    assert any("computed in full: any_value()" in why for why in steps["gold.whole"].why)
    house.lake.duck.stop()


def test_a_strict_contract_refuses_to_be_computed_whole(tmp_path: Path) -> None:
    house = opened(tmp_path / "lake", {"gold.whole": WHOLE, "gold.plain": PLAIN}, "duckdb")
    strict = "  - {property: incremental, value: strict}\n"
    for table, each in {"gold.whole": WHOLE, "gold.plain": PLAIN}.items():
        put(tmp_path / "lake" / "contracts", table, ".odcs.yaml", contract_of(each) + strict)
    house = Lakehouse(house.settings)
    _come(house, EVENTS, _event(1, 1, 1, 90))
    _come(house, KEYS)
    with pytest.raises(BadInput, match=r"gold\.whole cannot be computed incrementally: any_value"):
        house.plan()
    house.run(["gold.plain"])
    assert _content(house, "gold.plain") == Counter({(date(2026, 2, 1), 90): 1})
    house.lake.duck.stop()


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_part_that_is_not_what_its_model_gives_stops_the_publish(
    tmp_path: Path, engine: str, keyed: bool
) -> None:
    by_key = f"select coalesce(k, 0) as key, sum(n) as v0 from {EVENTS} group by coalesce(k, 0)"
    asked = Chain(by_key, (("key", "int"), ("v0", NUMBER)), keyed=True) if keyed else PLAIN
    house = opened(tmp_path / "lake", {"gold.m": asked}, engine, share=1)
    _come(house, EVENTS, _event(1, 1, 1, 90), _event(2, 2, 2, 7), _event(3, 3, 3, 8))
    _come(house, KEYS)
    house.run()
    _come(house, EVENTS, _event(4, 1, 1, 20))
    house.run()  # all is as it should be
    table = house.lake.iceberg("gold.m")
    right = _content(house, "gold.m")
    table.delete("key = 3" if keyed else "day = '2026-02-03'")
    _come(house, EVENTS, _event(5, 1, 1, 1))
    held = house.lake.state("gold.m").head()
    with pytest.raises(NotReproduced, match=r"gold\.m: 1 of 2 recomputed parts") as failure:
        house.run()
    assert house.lake.state("gold.m").head() == held
    assert isinstance(failure.value, ThermoclineError)
    assert "--full-refresh" in failure.value.next_step
    house.run(full_refresh=True)
    assert sum(_content(house, "gold.m").values()) == sum(right.values())
    house.lake.duck.stop()

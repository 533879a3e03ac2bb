"""Many at once on one catalog: nobody's work is lost, and nobody sees an error for it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.conftest import clean_environment
from tests.contract.catalog_tables import (
    ORDERS,
    STRING,
    add_orders,
    ids,
    order,
    orders,
    rows,
    wanted_by,
)

from thermocline.contract import Column
from thermocline.errors import CommitConflict
from thermocline.lake import Draft, Lake, MainMoved, atomic_commit, refs, retries, table_setup

TABLE = "silver.orders"
THREE = ("gold.a", "gold.b", "gold.c")
Opener = Callable[[], Lake]
T = TypeVar("T")


def at_once(work: Callable[[int], T], workers: int) -> list[T]:
    """What each of the workers gives; raises what one of them raised."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


def test_eight_threads_make_and_evolve_one_table(open_lake: Opener) -> None:
    def ensure(worker: int) -> list[str]:
        return open_lake().ensure(wanted_by(worker))

    said = at_once(ensure, 8)

    lake = open_lake()
    assert lake.tables() == [TABLE]
    assert sum("created" in each for each in said) == 1
    fields = lake.state(TABLE).schema["fields"]
    assert {f["name"] for f in fields} == {c.name for c in ORDERS.columns} | {
        f"by_{worker}" for worker in range(8)
    }
    assert len({f["id"] for f in fields}) == len(fields)
    add_orders(lake, TABLE, 1)
    assert ids(lake, TABLE) == [1]


PROCESS = """
import sys, time
from pathlib import Path
from tests.contract.catalog_tables import wanted_by
from thermocline.config import load_settings
from thermocline.lake import Lake
import pyiceberg.catalog.sql

worker, start = int(sys.argv[2]), Path(sys.argv[1], "go")
lake = Lake(load_settings(Path(sys.argv[1])))
Path(sys.argv[1], f"ready-{worker}").touch()
while not start.exists():
    time.sleep(0.005)
print(*lake.ensure(wanted_by(worker)))
"""


def test_four_processes_make_and_evolve_one_table(
    open_lake: Opener, project: Path, catalog_environ: dict[str, str]
) -> None:
    environ = {**clean_environment(), **catalog_environ}
    environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, project, str(worker)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for worker in range(4)
    ]
    deadline = time.monotonic() + 120
    while len(list(project.glob("ready-*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    (project / "go").touch()
    said = [process.communicate(timeout=120) for process in running]

    assert [process.returncode for process in running] == [0, 0, 0, 0], said
    assert [out.strip() for out, _ in said].count("created") == 1
    lake = open_lake()
    assert lake.tables() == [TABLE]
    names = [field["name"] for field in lake.state(TABLE).schema["fields"]]
    assert sorted(names[len(ORDERS.columns) :]) == ["by_0", "by_1", "by_2", "by_3"]


def test_every_tag_of_many_taggers_is_there(open_lake: Opener) -> None:
    """Each sets its own names on one table, so all can win, one after the other."""
    first = open_lake()
    first.ensure(ORDERS)
    snapshot = add_orders(first, TABLE, 1)

    def tag(worker: int) -> None:
        lake = open_lake()
        for number in range(3):
            name = f"tag-{worker}-{number}"
            lake.commit([refs.new_ref(lake.state(TABLE), name, snapshot, tag=True)])

    at_once(tag, 6)

    found = {name: ref.snapshot for name, ref in first.state(TABLE).refs.items()}
    wanted = {f"tag-{w}-{n}": snapshot for w in range(6) for n in range(3)}
    assert found == {"main": snapshot, **wanted}


def test_drafts_over_the_same_tables_are_published_whole_or_not(open_lake: Opener) -> None:
    """Each starts from the same state: one wins in all tables, the others in none."""
    first = open_lake()
    for table in THREE:
        first.ensure(orders(table))
    drafts = []
    for worker in range(4):
        draft = open_lake().draft(f"W{worker}")
        # Begun in different orders, as plans are: publishing must not deadlock for it.
        draft.begin(*(THREE if worker % 2 else reversed(THREE)))
        for table in THREE:
            add_orders(draft.lake, table, worker, branch=draft.branch)
        drafts.append(draft)

    def publish(worker: int) -> bool:
        try:
            drafts[worker].publish()
        except MainMoved:
            return False
        return True

    won = at_once(publish, 4)

    assert won.count(True) == 1
    assert [ids(first, table) for table in THREE] == [[won.index(True)]] * 3
    losers = {f"run-W{worker}" for worker in range(4) if not won[worker]}
    assert all(set(first.state(table).refs) == {"main", *losers} for table in THREE)


def test_a_publish_between_looking_and_committing_is_not_overwritten(open_lake: Opener) -> None:
    """Whenever the other publishes while ours looks at the tables, ours takes nothing from it."""
    first = open_lake()
    for table in THREE:
        first.ensure(orders(table))
    for number, looks in enumerate((1, 2, 3)):
        ours, theirs = open_lake().draft(f"A{number}"), open_lake().draft(f"B{number}")
        for draft, key in ((ours, 1000 + number), (theirs, number)):
            draft.begin(*THREE)
            for table in THREE:
                add_orders(draft.lake, table, key, branch=draft.branch)
        publish_after(ours.lake, looks, theirs)

        with pytest.raises(MainMoved):
            ours.publish()

        assert [ids(first, table) for table in THREE] == [list(range(number + 1))] * 3


def publish_after(lake: Lake, looks: int, other: Draft) -> None:
    """Have the other draft published as soon as this lake has looked at tables so many times."""
    look, seen = lake.state, 0

    def look_and_lose(table: str) -> Any:
        nonlocal seen
        state = look(table)
        seen += 1
        if seen == looks:
            other.publish()
        return state

    lake.state = look_and_lose  # type: ignore[method-assign]


def test_appends_tags_and_evolution_do_not_disturb_each_other(open_lake: Opener) -> None:
    lake = open_lake()
    lake.ensure(ORDERS)
    base = lake.state(TABLE).head()

    def evolve(mine: Lake, number: int) -> None:
        columns = tuple(Column(f"extra_{n}", STRING) for n in range(number + 1))
        mine.ensure(orders(columns=(*ORDERS.columns, *columns), version=f"1.{number}"))

    def append(mine: Lake, number: int) -> None:
        draft = mine.draft(f"R{number}")
        draft.begin(TABLE)
        add_orders(mine, TABLE, number, branch=draft.branch)
        draft.publish()

    def tag(mine: Lake, number: int) -> None:
        mine.commit([refs.new_ref(mine.state(TABLE), f"t{number}", base, tag=True)])

    acts = (evolve, append, tag)

    def work(worker: int) -> None:
        mine = open_lake()
        for number in range(4):
            acts[worker](mine, number)

    at_once(work, len(acts))

    state = lake.state(TABLE)
    assert set(state.refs) == {"main", "t0", "t1", "t2", "t3"}
    extra = {f"extra_{number}": None for number in range(4)}
    assert rows(lake, TABLE) == [{**order(number), **extra} for number in range(4)]


def test_giving_up_says_who_was_in_the_way() -> None:
    tried: list[float] = []
    with pytest.raises(CommitConflict) as caught:
        for attempt in retries.retry_on(atomic_commit.PointerMoved, 0.5):
            with attempt:
                tried.append(time.monotonic())
                raise atomic_commit.PointerMoved(
                    "silver.orders was changed while committing.", "Wait."
                )
    assert len(tried) >= 3
    assert str(caught.value) == "silver.orders was changed while committing.\n  Wait."


def test_a_table_that_others_never_leave_alone_is_a_conflict(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else commits whenever we have looked: evolving gives up with an error of ours."""
    lake.ensure(ORDERS)
    monkeypatch.setattr(retries, "COMMIT_RETRY_SECONDS", 0.5)
    look = lake.state

    def look_and_lose(table: str) -> Any:
        seen = look(table)
        count = int(seen.properties.get("count", 0)) + 1
        with lake.iceberg(table).transaction() as theirs:
            theirs.set_properties({"count": str(count)})
        return seen

    monkeypatch.setattr(lake, "state", look_and_lose)
    with pytest.raises(CommitConflict) as caught:
        table_setup.ensure_table(lake, wanted_by(1))
    assert TABLE in caught.value.cause
    assert len(str(caught.value).splitlines()) == 2
    assert "by_1" not in str(look(TABLE).schema)

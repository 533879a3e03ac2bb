"""Looking at the catalog costs what is asked for and has moved, whatever else the lake holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from tests.conftest import clean_environment
from tests.contract.catalog_tables import ORDERS, add_orders
from tests.servers import relay as relays

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.contract import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.errors import NotFound
from thermocline.lake import Lake, refs
from thermocline.lake.metadata import TableState, location_path
from thermocline.transform.model_decorator import Read
from thermocline.transform.models import Model
from thermocline.transform.run_plan import plan

TABLES = [f"silver.t{number:02}" for number in range(12)]
ADDRESS = "THERMOCLINE_LAKE__CATALOG__URI"


@contextmanager
def behind_relay(project: Path, environ: Mapping[str, str]) -> Iterator[tuple[Lake, relays.Relay]]:
    """The same lake, its catalog reached over a relay that counts."""
    address = urlsplit(environ[ADDRESS])
    assert address.port is not None
    with relays.serve(address.port) as relay:
        uri = environ[ADDRESS].replace(f":{address.port}", f":{relay.port}")
        lake = Lake(
            load_settings(project, environ={**clean_environment(), **environ, ADDRESS: uri})
        )
        try:
            yield lake, relay
        finally:
            lake.close()


def made(lake: Lake) -> None:
    for table in TABLES:
        lake.ensure(Contract(table, ORDERS.columns))


def test_states_are_those_of_the_tables_that_are_there(lake: Lake) -> None:
    assert lake.states() == {}
    assert lake.states(["silver.t00"]) == {}
    made(lake)
    everything = {table: lake.state(table) for table in TABLES}
    assert lake.states() == everything
    assert list(lake.states()) == TABLES
    some = ["silver.t07", "silver.none", "none.t07", "t07", "silver.t01"]
    assert lake.states(some) == {t: everything[t] for t in ("silver.t01", "silver.t07")}
    assert lake.states([]) == {}
    assert lake.exists("silver.t03") and not lake.exists("silver.none")
    with pytest.raises(NotFound, match=r"There is no table silver\.none"):
        lake.state("silver.none")


def test_more_tables_can_be_named_than_one_query_takes(lake: Lake) -> None:
    made(lake)
    named = [*(f"silver.none{number}" for number in range(1200)), *TABLES]
    assert list(lake.states(named)) == TABLES


def test_commits_and_drops_of_others_are_seen(lake: Lake, open_lake: Callable[[], Lake]) -> None:
    made(lake)
    other = open_lake()
    before = lake.states()
    head = add_orders(other, "silver.t03", 1)
    other.catalog.drop_table("silver.t05")
    after = lake.states()
    assert after.keys() == before.keys() - {"silver.t05"}
    assert after["silver.t03"].head() == head == lake.state("silver.t03").head()
    assert {t for t, state in after.items() if state is not before[t]} == {"silver.t03"}
    assert lake.state("silver.t04") is before["silver.t04"], "it was read again"
    with pytest.raises(NotFound):
        lake.state("silver.t05")
    other.ensure(Contract("silver.t05", ORDERS.columns))
    assert lake.state("silver.t05").uuid != before["silver.t05"].uuid


def test_what_is_made_of_metadata_is_kept_until_a_table_moves(
    lake: Lake, open_lake: Callable[[], Lake]
) -> None:
    made(lake)
    other, known, read = open_lake(), {}, []

    def head(state: TableState) -> int | None:
        read.append(state.table)
        return state.head()

    assert lake.summarize(head, known) == {t: s.head() for t, s in other.states().items()}
    assert read == TABLES
    lake.summarize(head, known)
    assert read == TABLES, "nothing had moved"
    add_orders(other, "silver.t03", 1)
    other.catalog.drop_table("silver.t05")
    other.ensure(Contract("silver.t99", ORDERS.columns))
    read.clear()
    assert lake.summarize(head, known) == {t: s.head() for t, s in other.states().items()}
    assert read == ["silver.t03", "silver.t99"]


def test_metadata_that_is_removed_meanwhile_is_looked_for_again(
    lake: Lake, open_lake: Callable[[], Lake]
) -> None:
    """A writer that keeps no old metadata file at all, beside readers that never stop."""
    made(lake)
    pair, writer, ended = TABLES[:2], open_lake(), threading.Event()
    heads = {table: writer.state(table).head() for table in pair}

    def look() -> int:
        reader, looks = open_lake(), 0
        while not ended.is_set():
            assert [s.head() for s in reader.states(pair).values()] == list(heads.values())
            assert reader.state(pair[0]).head() == heads[pair[0]]
            looks += 1
        return looks

    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        for number in range(25):
            old = [location_path(writer.state(table).metadata_location) for table in pair]
            changes = [
                refs.set_ref(table, f"tag-{number}", heads[table] or 0, was=None, tag=True)
                for table in pair
            ]
            writer.commit(changes)
            for path in old:
                path.unlink()
        ended.set()
        assert all(each.result() for each in looking)


def test_a_plan_reads_nothing_of_tables_that_are_not_selected(lake: Lake) -> None:
    """A table whose metadata is gone stops what needs it, and nothing else."""
    columns = (Column("id", Primitive("long")),)
    models = {}
    for number in (1, 2):
        source = Contract(f"bronze.s{number}", columns)
        target = Contract(f"gold.m{number}", columns)
        lake.ensure(source)
        read = {source.table: Read(source.table)}
        query = f"select id from {source.table}"
        models[target.table] = Model(
            target.table, Path(f"{target.table}.sql"), read, "f", target, text=query,
            columns={source.table: {"id": "long"}},
        )  # fmt: skip
    damaged = lake.iceberg("bronze.s2")
    damaged.append(pa.table({"id": pa.array([1], pa.int64())}))
    location_path(damaged.metadata_location).unlink()
    assert [step.table for step in plan(lake, models, select=["gold.m1"]).steps] == ["gold.m1"]
    with pytest.raises(NotFound, match=r"bronze\.s2: .*which is not there"):
        plan(lake, models)


def test_a_broken_table_does_not_stop_a_check_of_another(project: Path) -> None:
    house = Lakehouse(load_settings(project, environ=clean_environment()))
    for name in ("one", "two"):
        contract = Contract(f"silver.{name}", ORDERS.columns)
        house.contracts[contract.table] = replace(contract, rules=())
        house.lake.ensure(contract)
    location_path(house.lake.catalog.load_table("silver.two").metadata_location).unlink()
    assert [report.table for report in house.check(["silver.one"])] == ["silver.one"]


@pytest.mark.parametrize("catalog_environ", ["postgres"], indirect=True)
def test_postgres_is_connected_to_once(
    lake: Lake, project: Path, catalog_environ: dict[str, str]
) -> None:
    made(lake)
    with behind_relay(project, catalog_environ) as (counted, relay):
        for _ in range(10):
            assert len(counted.states()) == len(TABLES)
            counted.state("silver.t00")
            counted.exists("silver.none")
        assert relay.connections == 1
        relay.break_off()
        assert len(counted.states()) == len(TABLES), "a kept connection that broke was not replaced"
        assert relay.connections == 2


@pytest.mark.parametrize("catalog_environ", ["postgres", "rest"], indirect=True)
def test_threads_share_a_reader(lake: Lake, project: Path, catalog_environ: dict[str, str]) -> None:
    made(lake)
    with behind_relay(project, catalog_environ) as (counted, relay):

        def look(number: int) -> list[str]:
            asked = [TABLES[(number + step) % len(TABLES)] for step in range(15)]
            assert [counted.state(table).table for table in asked] == asked
            return list(counted.states())

        for _ in range(3):
            with ThreadPoolExecutor(6) as pool:
                assert list(pool.map(look, range(6))) == [TABLES] * 6
            relay.break_off()


@pytest.mark.parametrize("catalog_environ", ["rest"], indirect=True)
def test_a_rest_catalog_is_asked_for_what_is_needed(
    lake: Lake, project: Path, catalog_environ: dict[str, str]
) -> None:
    made(lake)
    with behind_relay(project, catalog_environ) as (counted, relay):
        assert len(counted.states()) == len(TABLES)
        assert relay.connections <= 8, "connections are kept for the next request"
        relay.reset()
        assert len(counted.states()) == len(TABLES)
        assert relay.requests <= len(TABLES) + 3, "nothing moved: one round, and the list of tables"
        assert relay.connections == 0
        relay.reset()
        assert counted.exists("silver.t03")
        state = counted.state("silver.t03")
        assert relay.requests == 2
        assert relay.sent.count(b"snapshots=all") == 0, "it has not moved"
        relay.reset()
        relay.break_off()
        assert counted.state("silver.t03") is state

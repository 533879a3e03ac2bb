"""A lake whose tables lie elsewhere is refused on every way in; by another path it is the same."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.contract.catalog_tables import ORDERS, add_orders, duck_rows, ids, order, orders
from tests.contract.commit_entries import entry
from tests.contract.random_rows import photo

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.errors import TablesElsewhere
from thermocline.lake import Lake
from thermocline.lake import catalog as catalogs
from thermocline.lake.orphans import find_orphans
from thermocline.recover import relocate
from thermocline.serve.assembly import assemble
from thermocline.serve.engines.direct import DirectWorker

TABLE = ORDERS.table


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lake of one table, which no test may change."""
    folder = tmp_path_factory.mktemp("original") / "city"
    folder.mkdir()
    (folder / "thermocline.toml").write_text(SETTINGS)
    lake = Lake(load_settings(folder, environ=clean_environment()))
    lake.ensure(ORDERS)
    add_orders(lake, TABLE, 1, 2)
    lake.close()
    before = photo(folder)
    yield folder
    assert photo(folder) == before


def opened(folder: Path) -> Lake:
    return Lake(load_settings(folder, environ=clean_environment()))


WAYS: dict[str, Callable[[Lake], object]] = {
    "list tables": lambda lake: lake.tables(),
    "look for a table": lambda lake: lake.exists(TABLE),
    "look for a new table": lambda lake: lake.exists("silver.new"),
    "read metadata": lambda lake: lake.state(TABLE),
    "read all metadata": lambda lake: lake.states(),
    "load a table": lambda lake: lake.iceberg(TABLE),
    "the catalog": lambda lake: lake.catalog,
    "make a table": lambda lake: lake.ensure(orders("silver.new")),
    "change a table": lambda lake: lake.ensure(orders(version="2.0.0")),
    "commit": lambda lake: lake.commit([]),
    "group commit": lambda lake: lake.group_commit,
    "rows beside": lambda lake: lake.consumption_store,
    "mend times": lambda lake: lake.repair_commit_times(TABLE),
    "a run's branch": lambda lake: lake.draft("RUN").begin(TABLE),
    "Spark": lambda lake: lake.spark,
    "DuckDB": lambda lake: lake.duck.connection,
    "what a server looks at": lambda lake: catalogs.open_reader(lake.settings).pointers(),
    "a server": lambda lake: assemble(lake.settings),
    "a server's worker": lambda lake: DirectWorker(lake.settings),
    "a query": lambda lake: Lakehouse(lake.settings).query(f"select * from {TABLE}"),
    "an ingestion": lambda lake: Lakehouse(lake.settings).lake.ensure(ORDERS),
    "a plan": lambda lake: Lakehouse(lake.settings).plan(),
    "a check": lambda lake: Lakehouse(lake.settings).check(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_refused_on_every_way_in(original: Path, tmp_path: Path, way: str) -> None:
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    before = {path: each for path, each in photo(copy / "lake").items() if "db-" not in path}
    lake = opened(copy)
    with pytest.raises(TablesElsewhere, match=r"silver\.orders"):
        WAYS[way](lake)
    lake.close()
    after = {path: each for path, each in photo(copy / "lake").items() if "db-" not in path}
    assert after == before


def test_doctor_says_it_once_and_goes_on(original: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    found = Lakehouse(load_settings(copy, environ=clean_environment())).doctor()
    failed = [finding for finding in found if finding.status == "fail"]
    assert [finding.what for finding in failed] == ["catalog"]
    assert "thermo relocate" in failed[0].next_step


@pytest.mark.parametrize("made", ["city", "link", "straight"])
@pytest.mark.parametrize("used", ["city", "link", "straight"])
def test_a_project_by_another_path_is_the_same_project(
    tmp_path: Path, made: str, used: str
) -> None:
    """A project, a link to it, and a project that has a link in the place of its lake."""
    city = tmp_path / "city"
    city.mkdir()
    (city / "thermocline.toml").write_text(SETTINGS)
    (tmp_path / "link").symlink_to(city)
    (tmp_path / "straight").mkdir()
    (city / "lake").mkdir()
    (tmp_path / "straight" / "lake").symlink_to(city / "lake")
    shutil.copy(city / "thermocline.toml", tmp_path / "straight")
    first = opened(tmp_path / made)
    first.ensure(ORDERS)
    add_orders(first, TABLE, 1, 2)
    then = opened(tmp_path / used)
    assert ids(then, TABLE) == [1, 2]
    add_orders(then, TABLE, 3)
    then.group_commit.commit(entry(then, "more", 4))
    then.ensure(orders("silver.new"))
    for lake in (opened(tmp_path / used), opened(tmp_path / made)):
        assert duck_rows(lake, TABLE) == [order(number) for number in (1, 2, 3, 4)]
        assert duck_rows(lake, "silver.new") == []
        assert find_orphans(lake.iceberg(TABLE)) == []
        worker = DirectWorker(lake.settings)
        state = lake.state(TABLE)
        place = {"metadata": state.metadata_location, "snapshot": state.head()}
        assert "iceberg_scan" in worker._view_statement(TABLE, place)
        lake.duck.stop()


def test_a_layer_that_sends_new_tables_elsewhere_is_refused(original: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "thermocline.toml").write_text(SETTINGS)
    lake = opened(empty)
    lake.catalog.create_namespace("own", {"location": f"file://{original}/lake/own"})
    with pytest.raises(TablesElsewhere, match="own"):
        opened(empty).ensure(orders("own.orders"))
    lake.catalog.update_namespace_properties("own", updates={"location": f"{empty}/lake/own"})
    opened(empty).ensure(orders("own.orders"))
    assert opened(empty).tables() == ["own.orders"]


def test_a_lake_is_asked_once(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lake of any size one query says where all tables are; later looks cost what they did."""
    asked: list[str] = []
    connect = sqlite3.connect

    def listening(*args: object, **more: object) -> sqlite3.Connection:
        made = connect(*args, **more)  # type: ignore[arg-type, call-overload]
        made.set_trace_callback(asked.append)
        return made  # type: ignore[no-any-return]

    monkeypatch.setattr(sqlite3, "connect", listening)
    copy = tmp_path / "own"
    copy.mkdir()
    (copy / "thermocline.toml").write_text(SETTINGS)
    (copy / "lake").mkdir()
    with closing(connect(copy / "lake" / "catalog.db")) as db:
        db.execute("create table iceberg_tables (catalog_name, table_namespace, table_name,"
                   " metadata_location)")  # fmt: skip
        db.executemany(
            "insert into iceberg_tables values ('lake', 'silver', ?, ?)",
            [(f"t{n}", f"file:{copy}/lake/silver/t{n}/metadata/1.json") for n in range(300)],
        )
        db.commit()
    lake = opened(copy)
    lake.exists("silver.t1")
    first = len([each for each in asked if each.startswith("SELECT")])
    lake.exists("silver.t1")
    lake.exists("silver.t2")
    assert first <= 3
    assert len([each for each in asked if each.startswith("SELECT")]) == first + 2


def apart(warehouse: str) -> str:
    """Settings of a project that has its catalog, and its files somewhere else."""
    own = f'warehouse = "{warehouse}"\ncatalog.uri = "catalog.db"\n'
    return SETTINGS.replace("[lake]\n", f"[lake]\n{own}")


def test_a_copied_catalog_of_one_warehouse_is_refused_while_the_other_is_there(
    tmp_path: Path,
) -> None:
    """The warehouse is not in the project, as on S3: both catalogs would remove each other's."""
    city = tmp_path / "city"
    city.mkdir()
    (city / "thermocline.toml").write_text(apart(f"{tmp_path}/files"))
    first = opened(city)
    first.ensure(ORDERS)
    add_orders(first, TABLE, 1)
    first.close()
    copy = Path(shutil.copytree(city, tmp_path / "copy"))
    before = photo(tmp_path / "files"), photo(city)
    for way in ("list tables", "the catalog", "Spark", "DuckDB", "a query"):
        with pytest.raises(TablesElsewhere, match=r"is a copy of .*city/catalog\.db"):
            WAYS[way](opened(copy))
    (copy / "thermocline.toml").write_text(apart(f"{copy}/files"))
    assert relocate(load_settings(copy, environ=clean_environment())).tables
    here = opened(copy)
    add_orders(here, TABLE, 2)
    assert ids(here, TABLE) == [1, 2]
    assert (photo(tmp_path / "files"), photo(city)) == before
    assert ids(opened(city), TABLE) == [1]


def test_a_catalog_that_was_moved_stays_the_same(tmp_path: Path) -> None:
    city, moved = tmp_path / "city", tmp_path / "moved"
    city.mkdir()
    (city / "thermocline.toml").write_text(apart(f"{tmp_path}/files"))
    first = opened(city)
    first.ensure(ORDERS)
    first.close()
    city.rename(moved)
    (tmp_path / "link").symlink_to(moved)
    for number, folder in enumerate((moved, tmp_path / "link", moved)):
        lake = opened(folder)
        add_orders(lake, TABLE, number)
        assert lake.tables() == [TABLE]
        lake.close()
    shutil.copytree(moved, city)
    with pytest.raises(TablesElsewhere, match=r"is a copy of .*moved/catalog\.db"):
        opened(city).tables()
    shutil.rmtree(moved)
    assert opened(city).tables() == [TABLE]

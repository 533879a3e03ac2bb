"""A model reads columns, not names: another column under an old name is computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.integration.odcs import HEAD

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.lake.naming import new_run_id

BRONZE = """\
      - {name: id, logicalType: integer, physicalType: long}
      - {name: amount, logicalType: integer, physicalType: int}
      - {name: note, logicalType: string, physicalType: string}
      - name: place
        logicalType: object
        physicalType: "struct<city: string, lot: int>"
customProperties:
  - {property: write, value: append}
"""
SILVER = """\
      - {name: id, logicalType: integer, physicalType: long, required: true, primaryKey: true}
      - {name: amount, logicalType: integer, physicalType: long}
customProperties:
  - {property: write, value: merge}
"""
WRITES = {
    "merge": SILVER,
    "append": SILVER.replace("merge", "append").replace(", primaryKey: true", ""),
    "replace": SILVER.replace("merge", "replace").replace(", primaryKey: true", ""),
}
MODELS = {
    "top": "select id, cast(amount as bigint) as amount from bronze.t",
    "nested": "select id, cast(place.lot as bigint) as amount from bronze.t",
    "star": "select id, cast(amount as bigint) as amount from (select * from bronze.t) as every",
    "cte": "with a as (select id, amount as x from bronze.t) "
    "select id, cast(x as bigint) as amount from a",
}


class Project:
    """bronze.t and a model of silver.t over it."""

    def __init__(self, folder: Path, model: str, write: str = "merge", engine: str = "duckdb"):
        files = {
            "thermocline.toml": f'{SETTINGS}[transform]\nengine = "{engine}"\n',
            "contracts/bronze/t.odcs.yaml": HEAD.format(name="t") + BRONZE,
            "contracts/silver/t.odcs.yaml": HEAD.format(name="t") + WRITES[write],
            model.partition("\n")[0] if model.startswith("models/") else "models/silver/t.sql":
                model.partition("\n")[2] if model.startswith("models/") else model,
        }  # fmt: skip
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.house = Lakehouse(load_settings(folder, environ=clean_environment()))
        self.house.lake.ensure(self.house.contracts["bronze.t"])

    def land(self, *rows: dict[str, Any]) -> None:
        schema = self.house.lake.iceberg("bronze.t").schema().as_arrow()
        names = [field.name for field in schema]
        full = [{name: row.get(name) for name in names} for row in rows]
        draft = self.house.lake.draft(new_run_id())
        draft.append(
            "bronze.t", pa.Table.from_pylist(full, schema), bookmark={}, operation="append"
        )
        draft.publish()

    def evolve(self, change: Callable[[Any], Any]) -> None:
        with self.house.lake.iceberg("bronze.t").update_schema() as update:
            change(update)

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.house.query("select id, amount from silver.t order by id").to_arrow()
        return [tuple(row.values()) for row in found.to_pylist()]

    def run(self) -> list[str]:
        return [step.refresh_mode for step in self.house.run(["silver.t"]).steps]

    def why(self) -> str:
        return "; ".join(why for step in self.house.plan(["silver.t"]).steps for why in step.why)


@pytest.fixture
def begun(project: Path) -> Iterator[Callable[..., Project]]:
    made: list[Project] = []

    def begin(*how: str) -> Project:
        one = Project(project, *how)
        made.append(one)
        one.land(
            {"id": 1, "amount": 10, "note": "a", "place": {"city": "Oslo", "lot": 10}},
            {"id": 2, "amount": 20, "note": "b", "place": {"city": "Rome", "lot": 20}},
        )
        one.run()
        assert one.rows() == [(1, 10), (2, 20)]
        return one

    yield begin
    for one in made:
        one.house.lake.duck.stop()


def another(update: Any) -> None:
    update.rename_column("amount", "amount_old")


def added(update: Any) -> None:
    from pyiceberg.types import IntegerType

    update.add_column("amount", IntegerType())


@pytest.mark.parametrize("write", sorted(WRITES))
@pytest.mark.parametrize("model", ["top", "star", "cte"])
def test_another_column_under_the_old_name(
    begun: Callable[..., Project], model: str, write: str
) -> None:
    one = begun(MODELS[model], write)
    one.evolve(another)
    one.evolve(added)
    one.land({"id": 3, "amount": 30})
    assert "bronze.t.amount is another column than before" in one.why()
    assert one.run() == ["full"]
    assert one.rows() == [(1, None), (2, None), (3, 30)]
    one.land({"id": 4, "amount": 40})
    assert "another column" not in one.why()
    one.run()
    assert one.rows() == [(1, None), (2, None), (3, 30), (4, 40)]


def test_on_spark(begun: Callable[..., Project]) -> None:
    one = begun(MODELS["top"], "merge", "spark")
    one.evolve(another)
    one.evolve(added)
    one.land({"id": 3, "amount": 30})
    assert one.run() == ["full"]
    assert one.rows() == [(1, None), (2, None), (3, 30)]


def test_a_field_of_a_struct(begun: Callable[..., Project]) -> None:
    from pyiceberg.types import IntegerType

    one = begun(MODELS["nested"])
    one.evolve(lambda update: update.rename_column("place.lot", "lot_old"))
    one.evolve(lambda update: update.add_column(("place", "lot"), IntegerType()))
    one.land({"id": 3, "place": {"city": "Bonn", "lot_old": 1, "lot": 30}})
    assert "bronze.t.place.lot is another column than before" in one.why()
    assert one.run() == ["full"]
    assert one.rows() == [(1, None), (2, None), (3, 30)]


def test_dropped_and_added_again(begun: Callable[..., Project]) -> None:
    one = begun(MODELS["top"])
    one.evolve(lambda update: update.delete_column("amount"))
    one.evolve(added)
    one.land({"id": 3, "amount": 30})
    assert one.run() == ["full"]
    assert one.rows() == [(1, None), (2, None), (3, 30)]


def test_a_promotion(begun: Callable[..., Project]) -> None:
    from pyiceberg.types import LongType

    one = begun(MODELS["top"])
    one.evolve(lambda update: update.update_column("amount", LongType()))
    one.land({"id": 3, "amount": 30})
    assert "bronze.t.amount is another column than before" in one.why()
    assert one.run() == ["full"]


def test_what_is_not_read_may_change(begun: Callable[..., Project]) -> None:
    from pyiceberg.types import StringType

    one = begun(MODELS["top"])
    one.evolve(lambda update: update.rename_column("note", "remark"))
    one.evolve(lambda update: update.add_column("note", StringType()))
    one.evolve(lambda update: update.rename_column("place.lot", "plot"))
    assert one.why() == ""
    one.land({"id": 3, "amount": 30})
    assert "another column" not in one.why()
    assert one.run() == ["touched"]
    assert one.rows() == [(1, 10), (2, 20), (3, 30)]


def test_maintenance_alone_makes_the_new_column_the_one_that_is_read(
    begun: Callable[..., Project],
) -> None:
    one = begun(MODELS["top"])
    one.evolve(another)
    one.evolve(added)
    assert one.why() == ""  # the newest snapshot is still of the old schema
    one.house.lake.spark.session.sql(
        "call lake.system.rewrite_data_files(table => 'bronze.t', "
        "options => map('rewrite-all', 'true'))"
    )
    assert "bronze.t.amount is another column than before" in one.why()
    assert one.run() == ["full"]
    assert one.rows() == [(1, None), (2, None)]


def test_a_python_model(begun: Callable[..., Project]) -> None:
    one = begun(
        "models/silver/t.py\n"
        "from thermocline.transform import changes, model\n\n\n"
        '@model(reads={"t": changes("bronze.t")}, engine="polars")\n'
        "def t(t):\n"
        '    return t.select("id", "amount")\n',
        "append",
    )
    one.evolve(another)
    one.evolve(added)
    one.land({"id": 3, "amount": 30})
    assert one.run() == ["full"]
    assert one.rows() == [(1, None), (2, None), (3, 30)]


def test_a_column_that_the_same_run_makes_another(begun: Callable[..., Project]) -> None:
    """Gold is planned before silver's contract makes amount another column."""
    one = begun(MODELS["top"])
    folder = one.house.settings.project

    def declare(layer: str, columns: str, model: str) -> None:
        for name, text in {
            f"contracts/{layer}/t.odcs.yaml": HEAD.format(name="t") + columns,
            f"models/{layer}/t.sql": model,
        }.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        one.house.close()
        one.house = Lakehouse(load_settings(folder, environ=clean_environment()))

    declare("gold", SILVER, "select id, amount from silver.t")
    one.house.run()
    gross = "{name: gross, logicalType: integer, physicalType: long"
    renamed = "customProperties: [{property: renamedFrom, value: amount}]}"
    amount = "{name: amount, logicalType: integer, physicalType: long}"
    first = SILVER.replace(amount, f"{gross}, {renamed}")
    declare("silver", first, "select id, cast(amount as bigint) as gross from bronze.t")
    one.house.run(["silver.t"])
    declare(
        "silver",
        SILVER.replace(amount, f"{gross}}}\n      - {amount}"),
        "select id, cast(amount as bigint) as gross, "
        "case when id = 1 then cast(7 as bigint) end as amount from bronze.t",
    )
    one.house.run()
    found = one.house.query("select id, amount from gold.t order by id").to_arrow().to_pylist()
    assert [tuple(row.values()) for row in found] == [(1, 7), (2, None)]

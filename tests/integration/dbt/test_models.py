"""What dbt can ask of a lake: sources, views, incremental models, snapshots, changing columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from thermocline.api import Lakehouse
from thermocline.errors import BadInput, CheckFailed, ContractError, NotFound
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.naming import new_run_id

pytest.importorskip("dbt.adapters.duckdb", reason="the extra `dbt` is not installed")

from tests.integration.dbt.lakehouse import (
    SETTINGS,
    dbt,
    load,
    opened,
    pointers,
    replace,
    rows,
    write,
)

PROJECT = {
    "thermocline.toml": SETTINGS,
    "shop/dbt_project.yml": "name: shop\nprofile: none_of_ours\nmodels: {+materialized: table}\n",
    "shop/models/sources.yml": "sources: [{name: raw, database: warehouse, "
    "tables: [{name: sales, identifier: sales_2026}]}]\n",
    "shop/models/staged.sql": "{{ config(materialized='view') }} "
    "select id, cents / 100.0 as paid, sold from {{ source('raw', 'sales') }}\n",
    "shop/models/total.sql": "select count(*) as sales, sum(id) as ids from {{ ref('staged') }}\n",
    "shop/models/kept.sql": """
{{ config(materialized='incremental', unique_key='id', incremental_strategy='delete+insert') }}
select id, paid, sold, {{ is_incremental() }} as later from {{ ref('staged') }}
{% if is_incremental() %} where sold >= (select max(sold) from {{ this }}) {% endif %}
""",
}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Lakehouse]:
    """A lake that ingested two sales, and a dbt project that nothing was made of yet."""
    with opened(write(tmp_path / "house", PROJECT)) as made:
        sales(made, (1, 500, 1), (2, 700, 2))
        yield made


def sales(house: Lakehouse, *given: tuple[int, int, int]) -> int:
    """Sales as (id, cents, day)."""
    ids, cents, days = zip(*given, strict=True)
    sold = [datetime(2026, 1, day, tzinfo=UTC) for day in days]
    data = {
        "id": ("long", list(ids)),
        "cents": ("long", list(cents)),
        "sold": ("timestamptz", sold),
    }
    return load(house, "raw.sales_2026", data)


def head(house: Lakehouse, table: str) -> int:
    found = house.lake.state(table).head()
    assert found is not None
    return found


def test_an_incremental_model_adds_what_is_new_to_the_rows_it_left(house: Lakehouse) -> None:
    dbt(house, "run")
    first = house.lake.iceberg("shop.kept").scan().plan_files()
    old = {task.file.file_path for task in first}
    assert rows(house, "select id, later from shop.kept order by id") == [(1, False), (2, False)]
    sales(house, (3, 900, 3))
    report = dbt(house, "run", "--select", "kept")
    (kept,) = report.tables
    # The newest sale is read again, and is another row now, for it comes later.
    assert (kept.added, kept.removed) == (2, 1)
    expected = [(1, False), (2, True), (3, True)]
    assert rows(house, "select id, later from shop.kept order by id") == expected
    sales(house, (4, 100, 4))
    before = {task.file.file_path for task in house.lake.iceberg("shop.kept").scan().plan_files()}
    dbt(house, "run", "--select", "kept", "--vars", "{unused: 1}")
    after = {task.file.file_path for task in house.lake.iceberg("shop.kept").scan().plan_files()}
    assert (len(before & after), old & after) == (1, set())
    assert rows(house, "select count(*) from shop.kept") == [(4,)]
    dbt(house, "run", "--select", "kept", "--full-refresh")
    assert rows(house, "select count(*), bool_or(later) from shop.kept") == [(4, False)]


def test_a_view_that_was_not_selected_shows_its_source_as_it_is_now(house: Lakehouse) -> None:
    dbt(house, "run")
    snapshot = sales(house, (3, 900, 3))
    report = dbt(house, "run", "--select", "total")
    assert rows(house, "select sales, ids from shop.total") == [(3, Decimal(6))]
    assert [each.table for each in report.tables] == ["shop.total"]
    assert bookmarks.read(house.lake.state("shop.total")) == {
        "raw.sales_2026": snapshot,
        "@dbt": "model.shop.total",
    }
    assert rows(house, "select count(*) from shop.staged") == [(2,)]  # it did not land anew


def test_a_column_may_come_and_goes_only_when_all_is_made_anew(house: Lakehouse) -> None:
    model = house.settings.project / "shop" / "models" / "total.sql"
    dbt(house, "run", "-s", "total")
    replace(model, "count(*) as sales", "count(*) as sales, 'x' as note")
    dbt(house, "run", "-s", "total")
    assert rows(house, "select sales, note from shop.total") == [(2, "x")]
    replace(model, "count(*) as sales, 'x' as note, sum(id) as ids", "'two' as sales, 1 as note")
    before = pointers(house)
    with pytest.raises(ContractError, match="ids: is in the table, and dbt no longer creates it"):
        dbt(house, "run", "-s", "total")
    assert pointers(house) == before
    dbt(house, "run", "-s", "total", "--full-refresh")
    assert rows(house, "select * from shop.total") == [("two", 1), ("two", 1)]
    earlier = house.lake.state("shop.total").snapshot(head(house, "shop.total")).parent
    assert house.query("select sales, note from shop.total", at=earlier).rows == [(2, "x")]


def test_a_column_that_is_wider_already_stays_so(house: Lakehouse) -> None:
    model = house.settings.project / "shop" / "models" / "total.sql"
    dbt(house, "run", "-s", "total")
    replace(model, "count(*) as sales", "2::integer as sales")
    report = dbt(house, "run", "-s", "total")
    assert [each.changed for each in report.tables] == [False]


def test_a_snapshot_keeps_history(house: Lakehouse) -> None:
    project = house.settings.project / "shop"
    write(project, {"snapshots/history.yml": """
snapshots:
  - name: history
    relation: ref('staged')
    config: {unique_key: id, strategy: check, check_cols: [paid]}
"""})  # fmt: skip
    dbt(house, "snapshot")
    replace(
        project / "models" / "staged.sql",
        "cents / 100.0",
        "case id when 2 then 9 else cents / 100.0 end",
    )
    report = dbt(house, "snapshot")
    assert [(each.added, each.removed) for each in report.tables] == [(2, 1)]
    history = "select id, paid, dbt_valid_to is null from shop.history order by id, 3"
    assert rows(house, history) == [(1, 5.0, True), (2, 7.0, False), (2, 9.0, True)]


def test_all_of_duckdbs_types_that_have_a_place_in_iceberg_land(house: Lakehouse) -> None:
    model = house.settings.project / "shop" / "models" / "total.sql"
    model.write_text("""
select 1::utinyint as small, 2::hugeint as huge, 'x'::varchar as word, 1.50::decimal(9,2) as price,
  date '2026-01-01' as day, timestamptz '2026-01-01 12:00:00+02' as moment, 1.5::double as share,
  '1e5348f2-72e3-41a3-9706-f35639ebd9cb'::uuid as ident, 'ab'::blob as bytes,
  [{'n': 1, 'ids': ['1e5348f2-72e3-41a3-9706-f35639ebd9cb'::uuid]}, null] as parts,
  map {'a': 1} as counts, null as nothing, true as yes
""")
    dbt(house, "run", "-s", "total")
    (row,) = house.lake.iceberg("shop.total").scan().to_arrow().to_pylist()
    ident = "1e5348f2-72e3-41a3-9706-f35639ebd9cb"
    assert str(row.pop("ident")) == ident
    assert str(row["parts"][0].pop("ids")[0]) == ident
    assert row == {
        "small": 1, "huge": Decimal(2), "word": "x", "price": Decimal("1.50"),
        "day": date(2026, 1, 1), "moment": datetime(2026, 1, 1, 10, tzinfo=UTC), "share": 1.5,
        "bytes": b"ab", "parts": [{"n": 1}, None], "counts": [("a", 1)], "nothing": None,
        "yes": True,
    }  # fmt: skip
    report = dbt(house, "run", "-s", "total")
    assert [each.changed for each in report.tables] == [False]
    model.write_text("select interval 1 day as span")
    with pytest.raises(BadInput, match="no type for DuckDB's INTERVAL"):
        dbt(house, "run", "-s", "total", "--full-refresh")


def test_a_contract_of_the_project_is_kept_to(house: Lakehouse) -> None:
    write(house.settings.project, {"contracts/shop/total.odcs.yaml": """
apiVersion: v3.1.0
kind: DataContract
id: total
version: 1.0.0
status: active
schema:
  - name: total
    properties:
      - name: sales
        physicalType: int
        quality: [{metric: invalidValues, arguments: {validValues: [3]}, mustBe: 0}]
      - {name: ids, physicalType: long}
"""})  # fmt: skip
    with pytest.raises(CheckFailed, match=r"shop.total breaks 1 rule"):
        dbt(house, "run", "-s", "total")
    assert rows(house, "select count(*) from shop.total") == [(0,)]
    sales(house, (3, 900, 3))
    report = dbt(house, "run", "-s", "total")
    assert [check.passed for check in report.checks] == [True]
    result = house.query("select sales, ids from shop.total")
    assert (result.rows, [str(f.type) for f in result.to_arrow().schema]) == (
        [(3, 6)], ["int32", "int64"],
    )  # fmt: skip
    model = house.settings.project / "shop" / "models" / "total.sql"
    replace(model, "sum(id) as ids", "sum(id) as sum_ids")
    with pytest.raises(ContractError, match="sum_ids: is not in the contract"):
        dbt(house, "run", "-s", "total")


def test_an_environment_is_built_and_read_apart_from_main(house: Lakehouse) -> None:
    dbt(house, "run", "-s", "total")
    sales(house, (3, 900, 3))
    dbt(house, "run", "-s", "total", env="trial")
    assert rows(house, "select sales from shop.total") == [(2,)]
    house.publish("trial")
    assert rows(house, "select sales from shop.total") == [(3,)]


class During:
    """Progress that does something when a step begins."""

    def __init__(self, step: str, act: Callable[[], Any]) -> None:
        self._step, self._act = step, act

    def step(self, name: str, total: int | None = None) -> None:
        if name == self._step:
            self._act()

    def advance(self, by: int = 1, detail: str = "") -> None: ...

    def done(self, detail: str = "") -> None: ...


def test_who_writes_to_a_table_meanwhile_is_not_overwritten(house: Lakehouse) -> None:
    dbt(house, "run", "-s", "total")

    def meanwhile() -> None:
        draft = house.lake.draft(new_run_id())
        given = house.lake.iceberg("shop.total").scan().to_arrow()
        draft.append("shop.total", given, bookmark=None, operation="test")
        draft.publish()

    sales(house, (3, 900, 3))
    with pytest.raises(MainMoved, match=r"shop.total"):
        dbt(house, "run", "-s", "total", progress=During("land shop.total", meanwhile))
    assert rows(house, "select sales from shop.total") == [(2,), (2,)]


def test_what_cannot_be_done_is_said_before_dbt_runs(house: Lakehouse) -> None:
    project = house.settings.project
    before = pointers(house)
    with pytest.raises(BadInput, match="--empty creates incomplete tables"):
        dbt(house, "run", "--empty")
    with pytest.raises(BadInput, match="--profiles-dir cannot be passed to dbt here"):
        dbt(house, "run", "--profiles-dir", "elsewhere")
    with pytest.raises(BadInput, match="No such option"):
        dbt(house, "run", "--no-such-thing")
    replace(project / "shop" / "models" / "sources.yml", "sales_2026", "sales_2027")
    with pytest.raises(NotFound, match=r"raw.sales is raw.sales_2027, which the lake does not"):
        dbt(house, "run", "-s", "total")
    replace(project / "shop" / "models" / "sources.yml", "sales_2027", "sales_2026")
    with pytest.raises(BadInput, match=r"bronze is reserved for ingested data"):
        dbt(house, "run", "-s", "total", schema="bronze")
    assert pointers(house) == before

"""Seeds that a project reads as sources, by the names of the tables that they make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from thermocline.api import Lakehouse
from thermocline.errors import NotFound

pytest.importorskip("dbt.adapters.duckdb", reason="the extra `dbt` is not installed")

from tests.integration.dbt.lakehouse import (
    SETTINGS,
    dbt,
    opened,
    pointers,
    rows,
    write,
)

PROJECT = {
    "thermocline.toml": SETTINGS,
    "cafe/dbt_project.yml": """
name: cafe
version: "1.0"
config-version: 2
profile: cafe
models:
  cafe:
    +materialized: table
""",
    "cafe/seeds/raw_sales.csv": "id,cents\n1,500\n2,700\n",
    "cafe/models/sources.yml": """
version: 2
sources:
  - name: raw
    schema: cafe
    tables:
      - name: raw_sales
        columns: [{name: id, data_tests: [unique, not_null]}]
""",
    "cafe/models/shown.sql": (
        "{{ config(materialized='view') }} select id, cents from {{ source('raw', 'raw_sales') }}"
    ),
    "cafe/models/total.sql": "select sum(cents) as cents from {{ ref('shown') }}",
}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Lakehouse]:
    with opened(write(tmp_path / "house", PROJECT)) as made:
        yield made


def test_a_source_may_be_a_seed_of_the_same_build(house: Lakehouse) -> None:
    with pytest.raises(NotFound, match=r"cafe\.raw_sales, which the lake does not have") as refused:
        dbt(house, "run")
    assert "seed.cafe.raw_sales" in str(refused.value.next_step)

    report = dbt(house, "build")
    assert rows(house, "select cents from cafe.total") == [(1200,)]
    assert {(test.name, test.status) for test in report.tests} == {
        ("source_unique_raw_raw_sales_id", "pass"),
        ("source_not_null_raw_raw_sales_id", "pass"),
    }
    reads = {landed.table: dict(landed.reads) for landed in report.tables}
    assert reads["cafe.shown"] == {"cafe.raw_sales": house.lake.state("cafe.raw_sales").head()}

    # Built again from a changed seed, where the source's table is already in the lake.
    seed = house.settings.project / "cafe" / "seeds" / "raw_sales.csv"
    seed.write_text("id,cents\n1,500\n2,700\n3,100\n")
    report = dbt(house, "build")
    assert rows(house, "select cents from cafe.total") == [(1300,)]
    landed = {each.table: each for each in report.tables}
    assert (landed["cafe.raw_sales"].added, landed["cafe.raw_sales"].removed) == (1, 0)
    assert dict(landed["cafe.shown"].reads) == {
        "cafe.raw_sales": house.lake.state("cafe.raw_sales").head()
    }

    # Without the seed the source is what the lake holds, and nothing has changed.
    before = pointers(house)
    seed.write_text("id,cents\n9,900\n")
    dbt(house, "run")
    assert pointers(house) == before

"""A model that cannot be computed: the next step fits the cause. Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import clean_environment
from tests.integration.odcs import HEAD
from tests.integration.worker_project import land, make, many

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.errors import ThermoclineError

GOLD = "gold.daily"
TYPOS = {
    "column": ("sum(amount)", "sum(amout)", 'column "amout" not found'),
    "table": ("from silver.clean", "from silvr_clean", "silvr_clean"),
    "alias": ("sum(amount)", "sum(c.amount)", 'table "c" not found'),
    "type": ("decimal(38,2)", "decimel", "Type with name"),
}


@pytest.fixture
def house(project: Path) -> Iterator[Lakehouse]:
    made = make(project)
    land(made, many(range(2)))
    yield made
    assert not made.lake.spark.started
    made.close()


def edited(house: Lakehouse, old: str, new: str, engine: str) -> Lakehouse:
    model = house.settings.project / "models/gold/daily.sql"
    assert old in model.read_text()
    model.write_text(model.read_text().replace(old, new))
    environ = {**clean_environment(), "THERMOCLINE_TRANSFORM__ENGINE": engine}
    return Lakehouse(load_settings(house.settings.project, environ=environ))


@pytest.mark.parametrize("typo", TYPOS)
def test_a_typo_is_no_reason_for_another_engine(house: Lakehouse, typo: str) -> None:
    old, new, said = TYPOS[typo]
    with pytest.raises(ThermoclineError) as refused:
        edited(house, old, new, "duckdb").run()
    assert said in refused.value.cause
    assert "transform.engine" not in refused.value.next_step
    assert "model" in refused.value.next_step
    if typo == "column":
        assert '"amount"' in refused.value.cause  # what is there instead


def test_a_function_of_spark_is_computed_by_spark(house: Lakehouse) -> None:
    house.run(select=["silver.clean"])
    changed = edited(house, "count(*)", "cast(pmod(count(*), 7) as bigint)", "duckdb")
    with pytest.raises(ThermoclineError, match="pmod") as refused:
        changed.run()
    assert "set transform.engine = auto" in refused.value.next_step


BLOBS = """\
      - {name: tag, physicalType: binary, partitioned: true}
      - {name: events, logicalType: integer, physicalType: long}
customProperties:
  - {property: write, value: partitions}
"""


@pytest.mark.parametrize("engine", ["duckdb", "auto"])
def test_what_workers_cannot_do_is_computed_as_a_whole(house: Lakehouse, engine: str) -> None:
    project = house.settings.project
    (project / "contracts/gold/blobs.odcs.yaml").write_text(HEAD.format(name="blobs") + BLOBS)
    (project / "models/gold/blobs.sql").write_text(
        "select cast(kind as blob) as tag, count(*) as events from bronze.raw "
        "group by cast(kind as blob)"
    )
    environ = {**clean_environment(), "THERMOCLINE_TRANSFORM__ENGINE": engine}
    changed = Lakehouse(load_settings(project, environ=environ))
    with pytest.raises(ThermoclineError) as refused:
        changed.backfill("gold.blobs")
    assert "thermo run --full-refresh --select gold.blobs" in refused.value.next_step
    assert ("engine = auto" in refused.value.next_step) is (engine == "duckdb")

"""Commit times and Spark: what it refuses is found and mended, and it reads the table after."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import clean_environment
from tests.contract.test_commit_times import rewrite, set_clock_back

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.contract.definition import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.errors import Transient
from thermocline.lake.commit_times import backward_ms

TABLE = "silver.t"
HOUR = 3_600_000


@pytest.fixture
def house(project: Path) -> Iterator[Lakehouse]:
    opened = Lakehouse(load_settings(project, environ=clean_environment()))
    opened.lake.ensure(Contract(TABLE, (Column("id", Primitive("long")),)))
    yield opened
    opened.lake.duck.stop()


def add(house: Lakehouse, number: int) -> None:
    """Publish a row by PyIceberg."""
    draft = house.lake.draft(f"R{number}")
    draft.append(TABLE, pa.table({"id": [number]}), bookmark={}, operation="append")
    draft.publish()


def add_by_spark(house: Lakehouse, number: int) -> None:
    """Publish a row by Spark."""
    draft = house.lake.draft(f"S{number}")
    rows = house.lake.spark.session.createDataFrame([(number,)], "id long")
    draft.commit(
        TABLE, lambda target: rows.writeTo(target).append(), bookmark={}, operation="append"
    )
    draft.publish()


def read_by_spark(house: Lakehouse) -> list[int]:
    session = house.lake.spark.session
    session.sql(f"refresh table lake.{TABLE}")
    return sorted(row.id for row in session.table(f"lake.{TABLE}").collect())


def parse_by_spark(house: Lakehouse) -> None:
    """Parse the metadata file as Spark's catalog does, which retries for 90 seconds on failure."""
    location = house.lake.state(TABLE).metadata_location
    text = Path(location.removeprefix("file://")).read_text()
    jvm: Any = house.lake.spark.session._jvm
    jvm.org.apache.iceberg.TableMetadataParser.fromJson(text)


def findings(house: Lakehouse, *, fix: bool = False) -> list[tuple[str, str]]:
    found = house.doctor(fix=fix)
    # How many minutes it is by now depends on how fast the test runs.
    shown = [(f, re.sub(r"\d+ minutes", "… minutes", f.detail)) for f in found]
    return [(f.status, detail) for f, detail in shown if f.what in {"commit times", "repaired"}]


def test_spark_reads_and_writes_after_the_clock_was_set_back_for_a_commit(
    house: Lakehouse,
) -> None:
    add(house, 1)
    set_clock_back(house.lake, HOUR, TABLE)
    add(house, 2)
    assert read_by_spark(house) == [1, 2]
    assert findings(house) == [
        ("fail", f"{TABLE}: its last commit is … minutes ahead of the clock, "
         "and Spark cannot commit to it"),
    ]  # fmt: skip
    with pytest.raises(Transient, match=r"\d+ minutes ahead of this machine's clock") as refused:
        add_by_spark(house, 3)
    assert "thermo doctor --fix" in refused.value.next_step
    house.lake.draft("S3").drop()
    assert findings(house, fix=True) == [
        ("ok", f"{TABLE}: commit times are in order"), ("ok", "in order")
    ]  # fmt: skip
    add_by_spark(house, 4)
    add(house, 5)
    assert read_by_spark(house) == [1, 2, 4, 5]


def test_a_table_that_spark_cannot_read_is_found_and_mended(house: Lakehouse) -> None:
    for number in (1, 2, 3):
        add(house, number)
    state = house.lake.state(TABLE)
    raw = dict(state.raw)
    for log in ("snapshot-log", "metadata-log"):
        late = {**raw[log][-1], "timestamp-ms": raw[log][-1]["timestamp-ms"] - HOUR}
        raw[log] = [*raw[log][:-1], late]
    rewrite(state, raw)
    with pytest.raises(Exception, match="Expected sorted snapshot log entries"):
        parse_by_spark(house)
    (found,) = findings(house)
    assert found[0] == "fail" and "commit times go back by 3,600 s" in found[1]
    history = [entry.snapshot for entry in house.table(TABLE).history()]
    assert findings(house, fix=True)[-1] == ("ok", "in order")
    assert backward_ms(house.lake.state(TABLE).raw) == 0
    assert [entry.snapshot for entry in house.table(TABLE).history()] == history
    assert read_by_spark(house) == [1, 2, 3]
    add_by_spark(house, 4)
    assert read_by_spark(house) == [1, 2, 3, 4]
    assert findings(house) == [("ok", "in order")]

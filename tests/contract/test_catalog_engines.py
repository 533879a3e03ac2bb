"""Spark writes through a draft, and every other reader sees the same table, on each catalog."""

from __future__ import annotations

import pytest
from tests.contract.catalog_tables import EVERY_TYPE, ORDERS, duck_rows, evolved, order, rows

from thermocline.errors import NotFound
from thermocline.lake import Lake
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.schema import shape_of

TABLE = "silver.orders"


def test_what_spark_publishes_all_engines_read(lake: Lake) -> None:
    lake.ensure(ORDERS)
    lake.ensure(EVERY_TYPE)
    spark = lake.spark.session
    draft = lake.draft("SPARK")
    schema = spark.table(f"lake.{TABLE}").schema
    frame = spark.createDataFrame([tuple(order(n).values()) for n in (1, 2)], schema)

    written = draft.commit(
        TABLE,
        lambda target: frame.writeTo(target).append(),
        bookmark={"files": {"abc": "one.jsonl"}},
        operation="append",
    )
    assert rows(lake, TABLE) == []
    assert [row["id"] for row in rows(lake, TABLE, written)] == [1, 2]
    draft.publish()

    known = [order(1), order(2)]
    assert lake.state(TABLE).head() == written
    assert bookmarks.read(lake.state(TABLE)) == {"files": {"abc": "one.jsonl"}}
    assert rows(lake, TABLE) == known == duck_rows(lake, TABLE) == _spark_rows(lake)

    lake.ensure(evolved())
    spark.sql(f"delete from lake.{TABLE} where id = 1")
    spark.sql(
        f"insert into lake.{TABLE} values (3, 3.00, null, 'web', 9000000000, 0.5, date'2026-01-04')"
    )
    assert [row["title"] for row in rows(lake, TABLE)] == ["n2", None]
    assert rows(lake, TABLE) == duck_rows(lake, TABLE) == _spark_rows(lake)
    assert shape_of(lake.state(TABLE)).partition == evolved().partition
    listed = {
        f"{row.namespace}.{row.tableName}"
        for row in spark.sql("show tables in lake.silver").collect()
    }
    assert listed == set(lake.tables())


def _spark_rows(lake: Lake) -> list[dict[str, object]]:
    return list(lake.spark.query(f"select * from lake.{TABLE} order by id").to_pylist())


def test_a_table_that_spark_made_is_one_of_ours(lake: Lake) -> None:
    lake.ensure(ORDERS)
    spark = lake.spark.session
    spark.sql("create namespace if not exists lake.other")
    spark.sql("create table lake.other.made (id long not null, note string) using iceberg")
    spark.sql("insert into lake.other.made values (1, 'größer')")

    assert "other.made" in lake.tables()
    assert rows(lake, "other.made") == [{"id": 1, "note": "größer"}]
    assert duck_rows(lake, "other.made") == [{"id": 1, "note": "größer"}]

    spark.sql("drop table lake.other.made")
    assert lake.tables() == [TABLE]
    with pytest.raises(NotFound, match=r"There is no table other\.made"):
        lake.iceberg("other.made")

"""What group commit wrote is what Spark and DuckDB read, and Spark's deletes are respected."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.contract.catalog_tables import duck_rows, ids, order, orders
from tests.contract.commit_entries import TABLE, compacting, entry, overwriting

from thermocline.contract.definition import UpdateMode
from thermocline.engine.spark import CATALOG
from thermocline.errors import CommitConflict
from thermocline.lake import Lake

NAME = f"{CATALOG}.{TABLE}"


def spark_ids(spark: SparkSession) -> list[int]:
    return [row.id for row in spark.sql(f"SELECT id FROM {NAME} ORDER BY id").collect()]


def test_spark_and_duckdb_read_it_and_deleted_rows_stay_deleted(
    lake: Lake, spark: SparkSession
) -> None:
    lake.ensure(orders(updates=UpdateMode.MERGE_ON_READ))
    commit = lake.group_commit.commit
    commit(entry(lake, "a", 1, 2, 29, 57))
    commit(overwriting(lake, "b", 2, 30))
    assert spark_ids(spark) == ids(lake, TABLE) == [1, 2, 29, 30, 57]
    files = spark.sql(f"SELECT sum(record_count) AS rows FROM {NAME}.files").first()
    assert files is not None and files.rows == 5
    assert duck_rows(lake, TABLE) == [order(number) for number in (1, 2, 29, 30, 57)]

    read_before = compacting(lake, "before", 1, 2, 29, 30, 57)
    spark.sql(f"DELETE FROM {NAME} WHERE id = 29")
    assert lake.iceberg(TABLE).inspect.delete_files().num_rows == 1
    with pytest.raises(CommitConflict, match="were deleted meanwhile"):
        commit(read_before)
    assert spark_ids(spark) == [1, 2, 30, 57]
    commit(entry(lake, "c", 3))
    commit(compacting(lake, "after", 1, 2, 3, 30, 57))
    assert spark_ids(spark) == ids(lake, TABLE) == [1, 2, 3, 30, 57]
    spark.sql(f"INSERT INTO {NAME} SELECT * FROM {NAME} WHERE id = 3")
    commit(overwriting(lake, "d", 31))
    assert spark_ids(spark) == ids(lake, TABLE) == [1, 2, 30, 31, 57]

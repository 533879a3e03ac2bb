"""The shop on a real Spark cluster gives what it gives embedded."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.shop_project import Embedded, contents, copy_of, opened, thermo
from tests.integration.worker_project import content, land, make, many
from tests.servers.settings import cluster_settings
from tests.servers.spark_cluster import SparkCluster


def test_the_shop_on_a_cluster_equals_the_embedded_one(
    spark_cluster: SparkCluster, embedded_shop: Embedded, tmp_path: Path
) -> None:
    shop = copy_of(embedded_shop.project, tmp_path / "shop")
    before = len(spark_cluster.status()["completedapps"])

    ingested = thermo(shop, cluster_settings(spark_cluster), "ingest")
    ran = thermo(shop, cluster_settings(spark_cluster), "run")

    assert sum(target["files"] for target in ingested["targets"]) == embedded_shop.files
    assert {step["table"] for step in ran["steps"]} == embedded_shop.models
    applications = spark_cluster.status()["completedapps"][before:]
    assert [(app["name"], app["cores"], app["state"]) for app in applications] == [
        ("thermocline-shop", 2, "FINISHED")
    ] * 2
    for engine in ("duckdb", "pyiceberg"):
        assert contents(opened(shop, {}), engine) == embedded_shop.contents


def test_partition_workers_as_tasks_of_the_cluster(
    spark_cluster: SparkCluster, project: Path
) -> None:
    """Spark schedules the workers: DuckDB computes inside of its tasks."""
    house = make(project)
    land(house, many(range(6)))
    settings = {
        **cluster_settings(spark_cluster),
        "THERMOCLINE_WORKERS__ON": "spark",
        "THERMOCLINE_WORKERS__BATCH": "2",
    }
    before = len(spark_cluster.status()["completedapps"])
    ran = thermo(project, settings, "run", "--workers", "partition")
    assert len(spark_cluster.status()["completedapps"]) == before + 1
    said = {step["table"]: (step["engine"], step["detail"]) for step in ran["steps"]}
    assert said["silver.clean"] == ("duckdb", "all rows, by 3 tasks of Spark")
    by_tasks = content(house, "silver.clean")
    assert len(by_tasks) == 120
    house.run(workers="dag", full_refresh=True)
    assert content(house, "silver.clean") == by_tasks

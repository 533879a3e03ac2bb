"""The shop on a real Spark cluster gives what it gives embedded."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.shop_project import Embedded, contents, copy_of, opened, thermo
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

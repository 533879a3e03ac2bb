"""Fixtures of the servers: each starts at first use, once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers import kafka, postgres, rest_catalog, s3
from tests.servers import spark_cluster as cluster


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    """A PostgreSQL server with password authentication."""
    with postgres.serve() as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[rest_catalog.RestCatalog]:
    """Iceberg's reference REST catalog, on SQLite and a local folder."""
    with rest_catalog.serve(tmp_path_factory.mktemp("rest-catalog")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3]:
    """An S3 server that checks signatures, with one bucket."""
    with s3.serve(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def spark_cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[cluster.SparkCluster]:
    """A standalone Spark cluster of a master and two workers."""
    with cluster.serve(tmp_path_factory.mktemp("spark-cluster")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.Kafka]:
    """A Kafka broker. A test that stops it must restart it."""
    with kafka.serve(tmp_path_factory.mktemp("kafka")) as server:
        yield server

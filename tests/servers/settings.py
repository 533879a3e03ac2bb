"""Environment variables that put a lake on one of the servers.

Each function gives a place of its own to the lake, so that tests on one server don't meet.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.servers.postgres import Postgres
from tests.servers.rest_catalog import RestCatalog
from tests.servers.s3 import S3
from tests.servers.spark_cluster import SparkCluster


def postgres_lake_settings(server: Postgres, folder: Path) -> dict[str, str]:
    """Return a lake with its catalog in a new database and its files in `folder`."""
    return {
        "THERMOCLINE_LAKE__WAREHOUSE": str(folder / "warehouse"),
        "THERMOCLINE_LAKE__CATALOG__TYPE": "postgres",
        "THERMOCLINE_LAKE__CATALOG__URI": server.create_database(f"lake_{uuid.uuid4().hex}"),
        "THERMOCLINE_LAKE__CATALOG__USER": server.user,
        "THERMOCLINE_LAKE__CATALOG__PASSWORD": server.password,
    }


def rest_lake_settings(server: RestCatalog) -> dict[str, str]:
    """Return a lake on the REST catalog, which is emptied first: one lake at a time."""
    server.clear()
    return {
        "THERMOCLINE_LAKE__WAREHOUSE": str(server.warehouse),
        "THERMOCLINE_LAKE__CATALOG__TYPE": "rest",
        "THERMOCLINE_LAKE__CATALOG__URI": server.uri,
    }


def s3_lake_settings(server: S3, folder: Path) -> dict[str, str]:
    """Return a lake with its files under a new prefix of the bucket and a SQLite catalog."""
    return {
        "THERMOCLINE_LAKE__WAREHOUSE": f"s3://{server.bucket}/{uuid.uuid4().hex}",
        "THERMOCLINE_LAKE__CATALOG__TYPE": "sqlite",
        "THERMOCLINE_LAKE__CATALOG__URI": str(folder / "catalog.db"),
        **s3_access_settings(server),
    }


def team_lake_settings(postgres: Postgres, s3: S3, folder: Path) -> dict[str, str]:
    """Return a lake with its catalog in a new database and its files on S3."""
    catalog = postgres_lake_settings(postgres, folder)
    del catalog["THERMOCLINE_LAKE__WAREHOUSE"]
    return {**s3_lake_settings(s3, folder), **catalog}


def s3_access_settings(server: S3) -> dict[str, str]:
    """Return only the access to the bucket, for a landing folder on S3."""
    return {
        "THERMOCLINE_LAKE__S3__ENDPOINT": server.endpoint,
        "THERMOCLINE_LAKE__S3__REGION": server.region,
        "THERMOCLINE_LAKE__S3__PATH_STYLE": "true",
        "THERMOCLINE_LAKE__S3__ACCESS_KEY": server.access_key,
        "THERMOCLINE_LAKE__S3__SECRET_KEY": server.secret_key,
    }


def cluster_settings(cluster: SparkCluster) -> dict[str, str]:
    """Return Spark on the cluster, for a process other than pytest's, which has a session."""
    return {"THERMOCLINE_ENGINE__SPARK__MASTER": cluster.master}

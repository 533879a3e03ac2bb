"""Every setting there is: its place in the file, its type, its default, what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thermocline.config.values import Secret

ENVIRONMENT_PREFIX = "THERMOCLINE_"


def _spark_memory(value: str) -> str | None:
    ok = value[:-1].isdecimal() and value[-1:].lower() in {"k", "m", "g", "t"}
    return None if ok else 'must be a size such as "2g" or "512m"'


def _duckdb_memory(value: str) -> str | None:
    number = value.rstrip("KMGTiBkmgtb ")
    ok = number != value and number.replace(".", "", 1).isdecimal()
    return None if ok else 'must be a size such as "1GB" or "512MiB"'


def _spark_master(value: str) -> str | None:
    known = ("local", "local-cluster[", "spark://", "k8s://", "yarn")
    return None if value.startswith(known) else 'must be like "local[*]" or "spark://host:7077"'


def _catalog_type(value: str) -> str | None:
    return None if value in {"sqlite", "postgres", "rest"} else "must be sqlite, postgres or rest"


def _at_least_one(value: int) -> str | None:
    return None if value >= 1 else "must be at least 1"


def _filled(value: str) -> str | None:
    return None if value.strip() else "must not be empty"


def _http(value: str) -> str | None:
    return None if value.startswith(("http://", "https://")) else "must begin with http(s)://"


def _networks(value: list[str]) -> str | None:
    import ipaddress

    try:
        for each in value:
            ipaddress.ip_network(each)
    except ValueError:
        return 'must be networks such as "10.1.0.0/16"'
    return None


@dataclass(frozen=True)
class Setting:
    """One setting a project may give: its place in the file, its type, what it means."""

    key: str
    kind: type
    default: Any
    help: str
    check: Callable[[Any], str | None] | None = None

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.key.upper().replace(".", "__")


SETTINGS: tuple[Setting, ...] = (
    Setting("lake.name", str, "lake", "The lake's name in reports.", _filled),
    Setting(
        "lake.warehouse",
        str,
        "lake",
        "Where table files live: a folder (relative to the project) or s3://bucket/prefix.",
        _filled,
    ),
    Setting(
        "lake.catalog.type",
        str,
        "sqlite",
        "Which catalog holds the tables: sqlite, postgres or rest.",
        _catalog_type,
    ),
    Setting(
        "lake.catalog.uri",
        str,
        None,
        "sqlite: the database file (catalog.db in the warehouse unless given); "
        "postgres: postgresql://user@host:port/database; rest: http(s)://…",
        _filled,
    ),
    Setting("lake.catalog.user", str, None, "The user of a PostgreSQL catalog."),
    Setting("lake.catalog.password", Secret, None, "That user's password."),
    Setting("lake.catalog.token", Secret, None, "A bearer token for a REST catalog."),
    Setting("lake.catalog.credential", Secret, None, "client-id:client-secret for a REST catalog."),
    Setting("lake.catalog.properties", dict, {}, "Further properties handed to the catalog."),
    Setting("lake.s3.endpoint", str, None, "The address of an S3 server other than AWS.", _http),
    Setting("lake.s3.region", str, "us-east-1", "The region of the bucket."),
    Setting("lake.s3.access_key", Secret, None, "The access key of the bucket."),
    Setting("lake.s3.secret_key", Secret, None, "Its secret key."),
    Setting(
        "lake.s3.path_style", bool, False, "Put the bucket in the path, as most S3 servers want."
    ),
    Setting(
        "engine.spark.master",
        str,
        "local[*]",
        "Where Spark runs: local[*], or a cluster's master URL.",
        _spark_master,
    ),
    Setting("engine.spark.memory", str, "2g", "Memory of the Spark driver.", _spark_memory),
    Setting(
        "engine.spark.shuffle_partitions",
        int,
        8,
        "Into how many parts a shuffle splits its rows.",
        _at_least_one,
    ),
    Setting(
        "engine.spark.packages",
        tuple,
        (),
        "Further jars for Spark, as group:artifact:version.",
    ),
    Setting("engine.spark.conf", dict, {}, "Further Spark configuration."),
    Setting(
        "engine.duckdb.memory_limit",
        str,
        "1GB",
        "Memory of a DuckDB connection before it spills to disk.",
        _duckdb_memory,
    ),
    Setting(
        "engine.duckdb.threads",
        int,
        None,
        "Threads of a DuckDB connection; one a core unless given.",
        _at_least_one,
    ),
    Setting(
        "ingest.api.allow_private",
        bool,
        False,
        "Let API sources reach private, loopback and link-local addresses.",
    ),
    Setting(
        "ingest.api.allow_networks",
        tuple,
        (),
        "Networks that API sources may reach although they are not public.",
        _networks,
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}

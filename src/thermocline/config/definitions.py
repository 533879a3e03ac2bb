"""The definition of every setting: its key, type, default, help text and check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thermocline.config import setting_checks as checks
from thermocline.config.settings import Secret

ENVIRONMENT_PREFIX = "THERMOCLINE_"


@dataclass(frozen=True)
class Setting:
    """One setting of a project: its key in the file, its type, its default and its meaning."""

    key: str
    kind: type
    default: Any
    help: str
    check: Callable[[Any], str | None] | None = None

    @property
    def variable(self) -> str:
        """Name of the environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.key.upper().replace(".", "__")


SETTINGS: tuple[Setting, ...] = (
    Setting("lake.name", str, "lake", "The lake's name in reports.", checks.check_not_empty),
    Setting(
        "lake.warehouse",
        str,
        "lake",
        "Where table files live: a folder (relative to the project) or s3://bucket/prefix.",
        checks.check_not_empty,
    ),
    Setting(
        "lake.catalog.type",
        str,
        "sqlite",
        "Which catalog holds the tables: sqlite, postgres or rest.",
        checks.check_catalog_type,
    ),
    Setting(
        "lake.catalog.uri",
        str,
        None,
        "sqlite: the database file (by default catalog.db in the warehouse); "
        "postgres: postgresql://user@host:port/database; rest: http(s)://…",
        checks.check_not_empty,
    ),
    Setting("lake.catalog.user", str, None, "User of a PostgreSQL catalog."),
    Setting("lake.catalog.password", Secret, None, "Password of that user."),
    Setting("lake.catalog.token", Secret, None, "Bearer token for a REST catalog."),
    Setting("lake.catalog.credential", Secret, None, "client-id:client-secret for a REST catalog."),
    Setting("lake.catalog.properties", dict, {}, "Additional catalog properties."),
    Setting(
        "lake.s3.endpoint",
        str,
        None,
        "URL of an S3 server other than AWS.",
        checks.check_http_url,
    ),
    Setting("lake.s3.region", str, "us-east-1", "Region of the bucket."),
    Setting("lake.s3.access_key", Secret, None, "Access key of the bucket."),
    Setting("lake.s3.secret_key", Secret, None, "Secret key of the bucket."),
    Setting(
        "lake.s3.path_style",
        bool,
        False,
        "Use path-style URLs, which most S3 servers other than AWS need.",
    ),
    Setting(
        "lake.retention.snapshots",
        int,
        300,
        "Minimum number of snapshots that a table keeps; commits expire older ones.",
        checks.check_at_least_one,
    ),
    Setting(
        "lake.retention.age",
        str,
        "2m",
        "Minimum age before a snapshot may expire.",
        checks.check_duration,
    ),
    Setting(
        "lake.retention.hourly",
        int,
        24,
        "For how many hours with commits the last snapshot is kept, as a tag hourly-….",
        checks.check_not_negative,
    ),
    Setting(
        "lake.retention.daily",
        int,
        30,
        "For how many days with commits the last snapshot is kept, as a tag daily-….",
        checks.check_not_negative,
    ),
    Setting(
        "lake.retention.dead_after",
        str,
        "7d",
        "Age at which branches of dead runs, and snapshots held by stalled consumers, expire.",
        checks.check_duration,
    ),
    Setting(
        "maintain.target_size",
        str,
        "256MB",
        "The size that maintenance aims for when it joins data files.",
        checks.check_size,
    ),
    Setting(
        "maintain.min_files",
        int,
        5,
        "From how many small files in a partition on they are joined.",
        checks.check_at_least_two,
    ),
    Setting(
        "maintain.cool_down",
        str,
        "1m",
        "How old a file has to be before it is rewritten; 0s: any file.",
        checks.check_duration_or_zero,
    ),
    Setting(
        "maintain.delete_share",
        float,
        0.1,
        "The share of deleted rows from which on a file is rewritten, whatever its size.",
        checks.check_share,
    ),
    Setting(
        "maintain.budget",
        str,
        "10m",
        "CPU time that one pass plans for; what does not fit is left to the next pass.",
        checks.check_duration,
    ),
    Setting(
        "maintain.max_bytes",
        str,
        "20GB",
        "Data that one pass may rewrite; what does not fit is left to the next pass.",
        checks.check_size,
    ),
    Setting(
        "maintain.service",
        str,
        "auto",
        "Whether `thermo serve` and `thermo stream` maintain the tables in a process beside them. "
        "auto: on a SQLite catalog.",
        checks.check_switch,
    ),
    Setting(
        "maintain.every",
        str,
        "1m",
        "How often the maintenance service evaluates the tables.",
        checks.check_duration,
    ),
    Setting(
        "maintain.hourly_budget",
        str,
        "20m",
        "CPU time that the maintenance service may use in an hour.",
        checks.check_duration,
    ),
    Setting(
        "maintain.quiet_hours",
        str,
        "",
        "Hours of the day, in UTC, in which the maintenance service rests, such as 08:00-18:00.",
        checks.check_hours_or_none,
    ),
    Setting(
        "maintain.remove_after",
        str,
        "24h",
        "How long a file is kept after it was found unreferenced: longer than any query or write.",
        checks.check_duration,
    ),
    Setting(
        "maintain.remove_every",
        str,
        "24h",
        "How often the folder of a table is listed to find unreferenced files.",
        checks.check_duration,
    ),
    Setting(
        "maintain.sort_memory",
        str,
        "512MB",
        "Memory for sorting a table's rows; what does not fit is spilled to disk.",
        checks.check_size,
    ),
    Setting(
        "engine.spark.master",
        str,
        "local[*]",
        "Spark master: local[*], or the URL of a cluster.",
        checks.check_spark_master,
    ),
    Setting(
        "engine.spark.memory", str, "2g", "Memory of the Spark driver.", checks.check_spark_memory
    ),
    Setting(
        "engine.spark.shuffle_partitions",
        int,
        8,
        "Number of shuffle partitions.",
        checks.check_at_least_one,
    ),
    Setting(
        "engine.spark.packages",
        tuple,
        (),
        "Additional jars for Spark, as group:artifact:version.",
    ),
    Setting("engine.spark.conf", dict, {}, "Additional Spark configuration."),
    Setting(
        "engine.duckdb.memory_limit",
        str,
        "1GB",
        "Memory of a DuckDB connection; above it, DuckDB spills to disk.",
        checks.check_duckdb_memory,
    ),
    Setting(
        "engine.duckdb.threads",
        int,
        None,
        "Threads of a DuckDB connection; by default one per core.",
        checks.check_at_least_one,
    ),
    Setting(
        "transform.engine",
        str,
        "auto",
        "Engine that computes models: spark, duckdb, or auto (DuckDB for small inputs).",
        checks.check_engine,
    ),
    Setting(
        "transform.duckdb_bytes",
        str,
        "1GB",
        "Largest input of a step that auto gives to DuckDB.",
        checks.check_size,
    ),
    Setting(
        "transform.verify_share",
        float,
        0.0,
        "Share of unaffected partitions that is recomputed before publish, as a check; a "
        "difference stops the publish.",
        checks.check_share,
    ),
    Setting(
        "workers.mode",
        str,
        "auto",
        "How worker processes share DuckDB steps: dag (one process for all models), model (one "
        "process per model), partition (several processes per model), off (no workers), or auto.",
        checks.check_worker_mode,
    ),
    Setting(
        "workers.count",
        int,
        None,
        "Number of workers; by default one per core.",
        checks.check_at_least_one,
    ),
    Setting("workers.memory", str, "1GB", "Memory of each worker.", checks.check_size),
    Setting(
        "workers.batch",
        int,
        8,
        "Number of partitions that a worker computes at a time.",
        checks.check_at_least_one,
    ),
    Setting(
        "workers.on",
        str,
        "local",
        "Where workers run: as local processes (local), or as tasks of the Spark cluster (spark).",
        checks.check_worker_location,
    ),
    Setting(
        "ingest.quarantine.keep_replayed",
        str,
        "30d",
        "How long a row stays in quarantine after it was replayed; the next replay removes it.",
        checks.check_duration,
    ),
    Setting(
        "ingest.api.allow_private",
        bool,
        False,
        "Allow API sources to connect to private, loopback and link-local addresses.",
    ),
    Setting(
        "ingest.api.allow_networks",
        tuple,
        (),
        "Non-public networks that API sources may connect to.",
        checks.check_networks,
    ),
    Setting(
        "serve.host",
        str,
        "127.0.0.1",
        "Address that `thermo serve` listens on.",
        checks.check_not_empty,
    ),
    Setting(
        "serve.port", int, 8080, "Port of `thermo serve`; 0 means any free port.", checks.check_port
    ),
    Setting(
        "serve.hosts",
        tuple,
        (),
        "Additional host names under which clients reach the server.",
    ),
    Setting("serve.nodes", int, 2, "Number of hot nodes.", checks.check_at_least_one),
    Setting("serve.node_memory", str, "512MB", "Memory of each hot node.", checks.check_size),
    Setting(
        "serve.hot_window", str, "7d", "How far back tables are kept hot.", checks.check_duration
    ),
    Setting(
        "serve.replicas",
        int,
        2,
        "Number of nodes that hold each table, if memory allows.",
        checks.check_at_least_one,
    ),
    Setting(
        "serve.max_rows", int, 100_000, "Maximum rows of a query result.", checks.check_at_least_one
    ),
    Setting(
        "serve.max_seconds",
        int,
        30,
        "Maximum duration of a query in seconds.",
        checks.check_at_least_one,
    ),
    Setting(
        "serve.max_result_bytes", str, "64MB", "Maximum size of a query result.", checks.check_size
    ),
    Setting(
        "serve.concurrency",
        int,
        128,
        "Maximum concurrent queries of a caller.",
        checks.check_at_least_one,
    ),
    Setting(
        "serve.rate",
        int,
        None,
        "Maximum queries per second of a caller; unlimited by default.",
        checks.check_at_least_one,
    ),
    Setting(
        "serve.cache_memory",
        str,
        "64MB",
        "Memory of the result cache; 0 disables it.",
        checks.check_size_or_zero,
    ),
    Setting(
        "serve.sending_memory",
        str,
        "256MB",
        "Memory for responses in flight; one caller may use half of it.",
        checks.check_size,
    ),
    Setting(
        "serve.direct_limit", str, "256MB", "Larger scans run on Trino or Spark.", checks.check_size
    ),
    Setting(
        "serve.verify_share",
        float,
        0.01,
        "Share of hot results that is checked against a cold engine.",
        checks.check_share,
    ),
    Setting(
        "serve.tokens_required",
        bool,
        False,
        "Require a token from local clients too; remote clients always need one.",
    ),
    Setting(
        "serve.roles",
        tuple,
        (),
        "Known roles; a token with another role is refused. Empty allows any role.",
    ),
    Setting("serve.trino.url", str, None, "A Trino server for large scans.", checks.check_http_url),
    Setting(
        "serve.trino.user", str, "thermocline", "User of the Trino server.", checks.check_not_empty
    ),
    Setting("serve.trino.password", Secret, None, "Password of that user."),
    Setting(
        "serve.trino.catalog",
        str,
        "iceberg",
        "Name of this lake's catalog in Trino.",
        checks.check_not_empty,
    ),
    Setting(
        "serve.jwt.algorithm",
        str,
        None,
        "Signature algorithm of JWTs: HS256, RS256 or ES256.",
        checks.check_jwt_algorithm,
    ),
    Setting(
        "serve.jwt.issuer", str, None, "Required issuer (iss) of JWTs.", checks.check_not_empty
    ),
    Setting(
        "serve.jwt.audience", str, None, "Required audience (aud) of JWTs.", checks.check_not_empty
    ),
    Setting("serve.jwt.secret", Secret, None, "Shared secret of HS256, 32 bytes or more."),
    Setting(
        "serve.jwt.keys", dict, {}, "For RS256 and ES256: key id → file with the public key (PEM)."
    ),
    Setting(
        "serve.jwt.roles_claim",
        str,
        "roles",
        "Claim that lists a caller's roles.",
        checks.check_not_empty,
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}

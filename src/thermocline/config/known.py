"""Every setting there is: its place in the file, its type, its default, what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thermocline.config import amounts
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


def _engine(value: str) -> str | None:
    return None if value in {"auto", "spark", "duckdb"} else "must be auto, spark or duckdb"


def _workers_mode(value: str) -> str | None:
    known = {"auto", "off", "dag", "model", "partition"}
    return None if value in known else "must be auto, off, dag, model or partition"


def _workers_on(value: str) -> str | None:
    return None if value in {"local", "spark"} else "must be local or spark"


def _at_least_one(value: int) -> str | None:
    return None if value >= 1 else "must be at least 1"


def _not_negative(value: int) -> str | None:
    return None if value >= 0 else "must be 0 or more"


def _filled(value: str) -> str | None:
    return None if value.strip() else "must not be empty"


def _http(value: str) -> str | None:
    return None if value.startswith(("http://", "https://")) else "must begin with http(s)://"


def _port(value: int) -> str | None:
    return None if 0 <= value <= 65535 else "must be between 0 and 65535 (0: any free one)"


def _share(value: float) -> str | None:
    return None if 0 <= value <= 1 else "must be between 0 and 1"


def _size_or_none(value: str) -> str | None:
    return None if value == "0" else _size(value)


def _size(value: str) -> str | None:
    return _amount(amounts.size, value)


def _span(value: str) -> str | None:
    return _amount(amounts.seconds, value)


def _amount(read: Callable[[str], float], value: str) -> str | None:
    try:
        return None if read(value) > 0 else "must be more than nothing"
    except ValueError as error:
        return str(error)


def _algorithm(value: str) -> str | None:
    return None if value in {"HS256", "RS256", "ES256"} else "must be HS256, RS256 or ES256"


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
        "lake.retention.snapshots",
        int,
        300,
        "So many snapshots of a table are kept at least; commits let older ones go.",
        _at_least_one,
    ),
    Setting(
        "lake.retention.age", str, "2m", "Snapshots younger than this are kept as well.", _span
    ),
    Setting(
        "lake.retention.hourly",
        int,
        24,
        "Of so many hours with commits the last state is kept, as a tag hourly-….",
        _not_negative,
    ),
    Setting(
        "lake.retention.daily",
        int,
        30,
        "Of so many days with commits the last state is kept, as a tag daily-….",
        _not_negative,
    ),
    Setting(
        "lake.retention.dead_after",
        str,
        "7d",
        "When branches of runs that died, and what consumers that stand still hold, are let go.",
        _span,
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
        "transform.engine",
        str,
        "auto",
        "What computes models: spark, duckdb, or auto, which takes DuckDB for what is small.",
        _engine,
    ),
    Setting(
        "transform.duckdb_bytes",
        str,
        "1GB",
        "Up to so much to read, a step is small.",
        _size,
    ),
    Setting(
        "transform.verify_share",
        float,
        0.0,
        "Which share of the parts that no change touched is recomputed before publish; one that "
        "differs stops it.",
        _share,
    ),
    Setting(
        "workers.mode",
        str,
        "auto",
        "Who computes what DuckDB may compute: dag (one process for all), model (a process a "
        "model), partition (many processes a model), off (no worker), or auto.",
        _workers_mode,
    ),
    Setting(
        "workers.count", int, None, "How many workers; one a core unless given.", _at_least_one
    ),
    Setting("workers.memory", str, "1GB", "Memory of each worker.", _size),
    Setting(
        "workers.batch", int, 8, "How many partitions a worker computes at a time.", _at_least_one
    ),
    Setting(
        "workers.on",
        str,
        "local",
        "Where workers run: processes of this machine (local), or tasks of the Spark cluster.",
        _workers_on,
    ),
    Setting(
        "ingest.quarantine.keep_replayed",
        str,
        "30d",
        "How long a row stays in quarantine after it was replayed; the next replay removes it.",
        _span,
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
    Setting("serve.host", str, "127.0.0.1", "The address that `thermo serve` listens on.", _filled),
    Setting("serve.port", int, 8080, "Its port; 0 means any free one.", _port),
    Setting(
        "serve.hosts",
        tuple,
        (),
        "Names under which clients reach the server, beside those of this machine.",
    ),
    Setting("serve.nodes", int, 2, "How many hot nodes run.", _at_least_one),
    Setting("serve.node_memory", str, "512MB", "Memory of each hot node.", _size),
    Setting("serve.hot_window", str, "7d", "How far back tables are held hot.", _span),
    Setting(
        "serve.replicas",
        int,
        2,
        "On how many nodes a table is held, where there is room.",
        _at_least_one,
    ),
    Setting("serve.max_rows", int, 100_000, "The most rows of one answer.", _at_least_one),
    Setting("serve.max_seconds", int, 30, "The longest that a query may take.", _at_least_one),
    Setting("serve.max_result_bytes", str, "64MB", "The largest answer.", _size),
    Setting(
        "serve.concurrency", int, 128, "How many queries a caller may have running.", _at_least_one
    ),
    Setting(
        "serve.rate",
        int,
        None,
        "How many queries a second a caller may send; no limit unless given.",
        _at_least_one,
    ),
    Setting(
        "serve.cache_memory",
        str,
        "64MB",
        "Memory for answers that are kept; 0 keeps none.",
        _size_or_none,
    ),
    Setting(
        "serve.sending_memory",
        str,
        "256MB",
        "Memory for answers that are being sent; one caller has half of it.",
        _size,
    ),
    Setting("serve.direct_limit", str, "256MB", "Scans above this go to Trino or Spark.", _size),
    Setting(
        "serve.verify_share", float, 0.01, "Which share of hot answers is checked cold.", _share
    ),
    Setting(
        "serve.tokens_required",
        bool,
        False,
        "Ask for a token on this machine too; elsewhere one is always needed.",
    ),
    Setting(
        "serve.roles",
        tuple,
        (),
        "The roles there are; a token of another is refused. Any when empty.",
    ),
    Setting("serve.trino.url", str, None, "A Trino server for large scans.", _http),
    Setting("serve.trino.user", str, "thermocline", "Its user.", _filled),
    Setting("serve.trino.password", Secret, None, "That user's password."),
    Setting(
        "serve.trino.catalog", str, "iceberg", "The catalog under which it sees this lake.", _filled
    ),
    Setting(
        "serve.jwt.algorithm", str, None, "How JWTs are signed: HS256, RS256 or ES256.", _algorithm
    ),
    Setting("serve.jwt.issuer", str, None, "Who must have issued them.", _filled),
    Setting("serve.jwt.audience", str, None, "For whom they must be meant.", _filled),
    Setting("serve.jwt.secret", Secret, None, "The shared secret of HS256, 32 bytes or more."),
    Setting(
        "serve.jwt.keys", dict, {}, "For RS256 and ES256: key id → file with the public key (PEM)."
    ),
    Setting(
        "serve.jwt.roles_claim", str, "roles", "The claim that lists a caller's roles.", _filled
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}

"""The types of settings: frozen dataclasses, and secrets that never appear in output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from thermocline.config import quantities

CatalogType = Literal["sqlite", "postgres", "rest"]


class Secret:
    """A value that only `reveal()` returns; every other representation is ***."""

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        self.__value = value

    def reveal(self) -> str:
        """Return the value itself, for the one call that needs it."""
        return self.__value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.__value == other.__value

    def __hash__(self) -> int:
        return hash(self.__value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # A pickle is a file or a message to another process: a secret must not be in it.
        raise TypeError("a Secret cannot be pickled; pass what reveal() returns where it is needed")


@dataclass(frozen=True)
class CatalogSettings:
    """Which catalog holds the table pointers, and how to reach it."""

    type: CatalogType
    uri: str
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    credential: Secret | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class S3Settings:
    """The object store of an `s3://` warehouse or landing folder."""

    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: Secret | None = None
    secret_key: Secret | None = None
    path_style: bool = False


@dataclass(frozen=True)
class RetentionSettings:
    """How much history tables keep."""

    snapshots: int = 300
    age: str = "2m"
    hourly: int = 24
    daily: int = 30
    dead_after: str = "7d"

    @property
    def age_seconds(self) -> float:
        """The age below which every snapshot is kept."""
        return quantities.parse_duration(self.age)

    @property
    def abandoned_seconds(self) -> float:
        """The age at which branches of dead runs and abandoned consumers expire."""
        return quantities.parse_duration(self.dead_after)


@dataclass(frozen=True)
class MaintainSettings:
    """What table maintenance aims for, and what one pass may cost."""

    target_size: str = "256MB"
    min_files: int = 5
    cool_down: str = "1m"
    delete_share: float = 0.1
    budget: str = "10m"
    max_bytes: str = "20GB"
    service: str = "auto"
    every: str = "1m"
    hourly_budget: str = "20m"
    quiet_hours: str = ""
    remove_after: str = "24h"
    remove_every: str = "24h"
    sort_memory: str = "512MB"


@dataclass(frozen=True)
class SparkSettings:
    """The Spark session: a laptop's by default, a cluster's by its master URL."""

    master: str = "local[*]"
    memory: str = "2g"
    shuffle_partitions: int = 8
    packages: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DuckDBSettings:
    """The limits of a DuckDB connection."""

    memory_limit: str = "1GB"
    threads: int | None = None


@dataclass(frozen=True)
class TransformSettings:
    """Which engine computes a model's step."""

    engine: str = "auto"
    duckdb_bytes: str = "1GB"
    verify_share: float = 0.0

    @property
    def small_bytes(self) -> int:
        """The largest input that DuckDB computes in automatic mode."""
        return quantities.parse_size(self.duckdb_bytes)


@dataclass(frozen=True)
class WorkersSettings:
    """How many worker processes compute partitions in parallel, and what each may use."""

    mode: str = "auto"
    count: int | None = None
    memory: str = "1GB"
    batch: int = 8
    on: str = "local"

    @property
    def bytes(self) -> int:
        """Memory of a worker, in bytes."""
        return quantities.parse_size(self.memory)

    @property
    def processes(self) -> int:
        """The number of workers; one per core by default."""
        import os

        return self.count or os.cpu_count() or 1


@dataclass(frozen=True)
class QuarantineSettings:
    """How long quarantined rows are kept."""

    keep_replayed: str = "30d"

    @property
    def replayed_seconds(self) -> float:
        """How long a row stays after it was replayed."""
        return quantities.parse_duration(self.keep_replayed)


@dataclass(frozen=True)
class ApiSettings:
    """Which non-public addresses API sources may reach."""

    allow_private: bool = False
    allow_networks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServeSettings:
    """Where `thermo serve` listens, which data it keeps hot, and the limits of a caller."""

    host: str = "127.0.0.1"
    port: int = 8080
    hosts: tuple[str, ...] = ()
    nodes: int = 2
    node_memory: str = "512MB"
    hot_window: str = "7d"
    replicas: int = 2
    max_rows: int = 100_000
    max_seconds: int = 30
    max_result_bytes: str = "64MB"
    concurrency: int = 128
    rate: int | None = None
    cache_memory: str = "64MB"
    sending_memory: str = "256MB"
    direct_limit: str = "256MB"
    verify_share: float = 0.01
    tokens_required: bool = False
    roles: tuple[str, ...] = ()

    @property
    def node_bytes(self) -> int:
        """Memory of a hot node, in bytes."""
        return quantities.parse_size(self.node_memory)

    @property
    def result_bytes(self) -> int:
        """The largest result of a query, in bytes."""
        return quantities.parse_size(self.max_result_bytes)

    @property
    def cache_bytes(self) -> int:
        """Memory of the result cache, in bytes."""
        return quantities.parse_size(self.cache_memory)

    @property
    def sending_bytes(self) -> int:
        """Memory for responses in flight, in bytes."""
        return quantities.parse_size(self.sending_memory)

    @property
    def direct_bytes(self) -> int:
        """The largest scan that a direct worker runs, in bytes."""
        return quantities.parse_size(self.direct_limit)

    @property
    def hot_seconds(self) -> float:
        """How far back tables are kept hot."""
        return quantities.parse_duration(self.hot_window)


@dataclass(frozen=True)
class TrinoSettings:
    """An optional Trino server for large scans."""

    url: str | None = None
    user: str = "thermocline"
    password: Secret | None = None
    catalog: str = "iceberg"


@dataclass(frozen=True)
class JwtSettings:
    """Which JWTs are accepted, and the keys that verify them."""

    algorithm: str | None = None
    issuer: str | None = None
    audience: str | None = None
    secret: Secret | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    roles_claim: str = "roles"


@dataclass(frozen=True)
class Settings:
    """All settings of a project. `origins` names the layer of each dotted key."""

    project: Path
    profile: str | None
    name: str
    warehouse: str
    catalog: CatalogSettings
    s3: S3Settings = field(default_factory=S3Settings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    maintain: MaintainSettings = field(default_factory=MaintainSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    duckdb: DuckDBSettings = field(default_factory=DuckDBSettings)
    transform: TransformSettings = field(default_factory=TransformSettings)
    workers: WorkersSettings = field(default_factory=WorkersSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    quarantine: QuarantineSettings = field(default_factory=QuarantineSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    trino: TrinoSettings = field(default_factory=TrinoSettings)
    jwt: JwtSettings = field(default_factory=JwtSettings)
    origins: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def value(self, key: str) -> Any:
        """Return the effective value of a dotted key, such as lake.catalog.uri."""
        section, _, name = key.rpartition(".")
        owner: Any = self if section == "lake" else getattr(self, section.rpartition(".")[2])
        return getattr(owner, name)

    def secrets(self) -> tuple[Secret, ...]:
        """Return every secret that is set, so that output can be redacted."""
        sections = (self.catalog, self.s3, self.spark, self.duckdb, self.trino, self.jwt)
        values = [value for section in sections for value in vars(section).values()]
        return tuple(value for value in values if isinstance(value, Secret))

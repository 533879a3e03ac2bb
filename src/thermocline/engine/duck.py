"""DuckDB in this process: connections that can read only the files of the lake."""

from __future__ import annotations

import atexit
import errno
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.config import private_files
from thermocline.config.scratch import ScratchFolder
from thermocline.engine.duck_types import quote_identifier
from thermocline.engine.spark import uses_s3
from thermocline.errors import EngineUnavailable, Permanent

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from thermocline.config import Settings


SPARK_NEXT_STEP = "Set transform.engine = auto, and Spark computes it."
MAX_KNOWN_MANIFESTS = 10_000
_equality_deletes: dict[str, bool] = {}
"""Whether a manifest, which never changes, lists equality deletes."""


class UnsupportedByDuckDB(Permanent):
    """DuckDB cannot do something, or not with Spark's result; nothing was written yet.

    With `transform.engine = auto` a step falls back to Spark, so its next step is shown only with
    another setting.
    """

    code = "unable"

    def __init__(self, what: str, next_step: str = SPARK_NEXT_STEP) -> None:
        super().__init__(what, next_step)


_SPILL_FOLDERS: dict[Path, ScratchFolder] = {}
"""This process's spill folder of each project."""


class DuckEngine:
    """DuckDB for one lake: extensions from wheels, loaded offline; time zone UTC."""

    name = "duckdb"
    dialect = "duckdb"

    def __init__(
        self, settings: Settings, roots: Callable[[], Sequence[str]] | None = None
    ) -> None:
        self._settings = settings
        self._roots = roots or (lambda: [settings.warehouse.removeprefix("file://")])
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """Return the connection, which is opened on first use."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Open a separate connection that can read only the warehouse."""
        import duckdb

        settings = self._settings
        connection = duckdb.connect(config=build_options(settings))
        prepare_connection(connection, settings)
        # DuckDB compares paths as text, and a link to the warehouse is another path.
        roots = dict.fromkeys(f"{root.rstrip('/')}/" for root in self._roots())
        connection.execute(f"SET allowed_directories = [{', '.join(map(quote_literal, roots))}]")
        connection.execute("SET enable_external_access = false")
        return connection

    def view(self, name: str, metadata_location: str, snapshot: int) -> None:
        """Create a view of a table at one snapshot."""
        rows = build_snapshot_query(self.connection, metadata_location, snapshot)
        self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {quote_identifier(name)} AS {rows}")

    def read(self, metadata_location: str, snapshot: int) -> duckdb.DuckDBPyRelation:
        """Return a table at one snapshot as a lazy relation."""
        return self.connection.sql(
            build_snapshot_query(self.connection, metadata_location, snapshot)
        )

    def query(self, text: str) -> pa.Table:
        """Run a query and return its rows in canonical Arrow form."""
        from thermocline.engine.arrow import normalize

        return normalize(self.connection.execute(text).to_arrow_table())

    def stop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def build_options(settings: Settings) -> dict[str, str | bool | int | float | list[str]]:
    """Return the options of a database: memory limit, threads and spill folder."""
    limits: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": settings.duckdb.memory_limit,
        "temp_directory": str(_spill_folder(settings.project)),
    }
    if settings.duckdb.threads:
        limits["threads"] = settings.duckdb.threads
    return limits


def prepare_connection(connection: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    """Prepare a connection to read the lake's tables, in UTC."""
    names = ("avro", "iceberg", "httpfs") if uses_s3(settings) else ("avro", "iceberg")
    for name in names:
        connection.execute(f"LOAD {quote_literal(str(find_extension(name)))}")
    connection.execute("SET TimeZone = 'UTC'")
    if uses_s3(settings):
        _create_s3_secret(connection, settings)


def build_scan(metadata_location: str, snapshot: int) -> str:
    """Return the table function that reads an Iceberg table at one snapshot."""
    location = quote_literal(_strip_scheme(metadata_location))
    return f"iceberg_scan({location}, snapshot_from_id = {int(snapshot)})"


def _strip_scheme(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:")


def _require_readable(
    connection: duckdb.DuckDBPyConnection, metadata_location: str, snapshot: int
) -> None:
    """Raise an error for a snapshot that DuckDB 1.5 would not read, or not read right.

    A missing manifest would crash the process: FileNotFoundError. Manifests on S3 are not checked,
    because each would cost a request. Equality deletes delete too many rows where a key is null:
    UnsupportedByDuckDB.
    """
    location = _strip_scheme(metadata_location)
    lists = connection.execute(
        f"SELECT manifest_list FROM iceberg_snapshots({quote_literal(location)})"
        f" WHERE snapshot_id = {int(snapshot)}"
    ).fetchall()
    for (each,) in lists:
        listed = connection.sql(f"FROM read_avro({quote_literal(_strip_scheme(each))})")
        for row in listed.fetchall():
            manifest = dict(zip(listed.columns, row, strict=True))
            path = _strip_scheme(manifest["manifest_path"])
            if "://" not in path and not Path(path).exists():
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            # Format version 1 has no deletes, and no content.
            if manifest.get("content") and _has_equality_deletes(connection, path):
                table = ".".join(location.split("/metadata/")[0].split("/")[-2:])
                raise UnsupportedByDuckDB(
                    f"{table} has equality deletes, which DuckDB does not apply exactly.",
                    f"`thermo maintain {table}` applies them; Spark and Trino read them as they"
                    " are.",
                )


def _has_equality_deletes(connection: duckdb.DuckDBPyConnection, manifest: str) -> bool:
    known = _equality_deletes.get(manifest)
    if known is None:
        count = connection.execute(
            f"SELECT count(*) FROM read_avro({quote_literal(manifest)})"
            " WHERE status <> 2 AND data_file.content = 2"
        ).fetchall()[0][0]
        while len(_equality_deletes) >= MAX_KNOWN_MANIFESTS:
            del _equality_deletes[next(iter(_equality_deletes))]
        known = _equality_deletes[manifest] = count > 0
    return known


def build_snapshot_query(
    connection: duckdb.DuckDBPyConnection,
    metadata_location: str,
    snapshot: int,
    *,
    also: str = "",
    fractions: bool = True,
) -> str:
    """Return the query that reads an Iceberg table at one snapshot, including every NaN.

    `also` adds columns of the scan, such as the file of each row. If a table is known to have no
    `fractions` (floats), DuckDB is not asked for the types, which would read all manifests.

    DuckDB uses the minimum and maximum of each file to skip files and to answer min and max. NaN is
    greater than all numbers, but not part of these statistics. So floats are wrapped in an
    expression that may return NaN as far as the planner can tell.
    """
    _require_readable(connection, metadata_location, snapshot)
    source = build_scan(metadata_location, snapshot)
    if not fractions:
        return f"SELECT *{also} FROM {source}"
    found = connection.sql(f"SELECT * FROM {source}")
    columns = {
        quote_identifier(name): kind for name, kind in zip(found.columns, found.types, strict=True)
    }
    opaque = {column: _hide_statistics(column, kind) for column, kind in columns.items()}
    replaced = ", ".join(f"{it} AS {column}" for column, it in opaque.items() if it != column)
    return f"SELECT *{f' REPLACE ({replaced})' if replaced else ''}{also} FROM {source}"


def _hide_statistics(value: str, kind: Any) -> str:
    """A value of one of DuckDB's types, without what is known of the fractions in it.

    There is nothing known of those inside lists and maps.
    """
    if kind.id in {"float", "double"}:
        return f"CASE WHEN isnan({value}) THEN CAST('nan' AS {kind}) ELSE {value} END"
    if kind.id != "struct":
        return value
    members = {quote_identifier(name): child for name, child in kind.children}
    opaque = {name: _hide_statistics(f"{value}.{name}", child) for name, child in members.items()}
    if all(it == f"{value}.{name}" for name, it in opaque.items()):
        return value
    packed = ", ".join(f"{name} := {it}" for name, it in opaque.items())
    return f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({packed}) END"


def find_extension(name: str) -> Path:
    """The file of an extension that came as a wheel."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    folders = spec.submodule_search_locations if spec else None
    found = [p for folder in folders or () for p in Path(folder).rglob("*.duckdb_extension")]
    if not found:
        raise EngineUnavailable(
            f"DuckDB's extension {name} is not installed.",
            f"Install the wheel duckdb-extension-{name} of DuckDB's own version.",
        )
    return found[0]


def _spill_folder(project: Path) -> Path:
    """A folder of its own for what does not fit in memory.

    DuckDB makes it when it needs it and removes it in the end, but neither makes the folders above
    it nor tells its files from those of another connection.
    """
    above = project / private_files.FOLDER / "duckdb"
    try:
        private_files.ensure_folder(project)
        above.mkdir(exist_ok=True)
        if above not in _SPILL_FOLDERS:
            _SPILL_FOLDERS[above] = ScratchFolder(above, "p-")
            atexit.register(_SPILL_FOLDERS[above].close)
        above = _SPILL_FOLDERS[above].path
    except OSError:  # where nothing can be written, memory has to do
        pass
    return above / uuid4().hex


def _create_s3_secret(connection: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    s3 = settings.s3
    terms = {"TYPE": "s3", "URL_STYLE": quote_literal("path" if s3.path_style else "vhost")}
    if s3.region:
        terms["REGION"] = quote_literal(s3.region)
    if s3.endpoint:
        scheme, _, host = s3.endpoint.rpartition("://")
        terms["ENDPOINT"] = quote_literal(host)
        terms["USE_SSL"] = "false" if scheme == "http" else "true"
    if s3.access_key is not None and s3.secret_key is not None:
        terms["KEY_ID"] = quote_literal(s3.access_key.reveal())
        terms["SECRET"] = quote_literal(s3.secret_key.reveal())
    body = ", ".join(f"{key} {value}" for key, value in terms.items())
    connection.execute(f"CREATE OR REPLACE SECRET lake ({body})")


def quote_literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"

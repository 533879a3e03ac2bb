"""DuckDB in this process: a connection that sees the lake's files and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.engine.spark import uses_s3
from thermocline.errors import EngineUnavailable

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from thermocline.config import Settings


class DuckEngine:
    """DuckDB for one lake: extensions from wheels, loaded offline; time zone UTC."""

    name = "duckdb"
    dialect = "duckdb"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, opened when first asked for."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Open a connection of its own that can read the warehouse, and no other files."""
        import duckdb

        settings = self._settings
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": settings.duckdb.memory_limit
        }
        if settings.duckdb.threads:
            config["threads"] = settings.duckdb.threads
        connection = duckdb.connect(config=config)
        names = ("avro", "iceberg", "httpfs") if uses_s3(settings) else ("avro", "iceberg")
        for name in names:
            connection.execute(f"LOAD {_literal(str(extension(name)))}")
        connection.execute("SET TimeZone = 'UTC'")
        if uses_s3(settings):
            _s3_secret(connection, settings)
        warehouse = settings.warehouse.removeprefix("file://").rstrip("/") + "/"
        spill = settings.project / ".thermocline" / "duckdb"
        connection.execute(f"SET temp_directory = {_literal(str(spill))}")
        connection.execute(f"SET allowed_directories = [{_literal(warehouse)}]")
        connection.execute("SET enable_external_access = false")
        return connection

    def view(self, name: str, metadata_location: str, snapshot: int) -> None:
        """Make a view of a table at one snapshot."""
        self.connection.execute(
            f"CREATE OR REPLACE TEMP VIEW {_identifier(name)} AS "
            f"SELECT * FROM {scan(metadata_location, snapshot)}"
        )

    def query(self, text: str) -> pa.Table:
        """Run a query and give its rows in the canonical Arrow form."""
        from thermocline.engine.arrow import normalise

        return normalise(self.connection.execute(text).to_arrow_table())

    def stop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def scan(metadata_location: str, snapshot: int) -> str:
    """The table function that reads an Iceberg table at one snapshot."""
    path = metadata_location.removeprefix("file://")
    if path.startswith("file:"):
        path = path.removeprefix("file:")
    return f"iceberg_scan({_literal(path)}, snapshot_from_id = {int(snapshot)})"


def extension(name: str) -> Path:
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


def _s3_secret(connection: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    s3 = settings.s3
    options = {"TYPE": "s3", "URL_STYLE": _literal("path" if s3.path_style else "vhost")}
    if s3.region:
        options["REGION"] = _literal(s3.region)
    if s3.endpoint:
        scheme, _, host = s3.endpoint.rpartition("://")
        options["ENDPOINT"] = _literal(host)
        options["USE_SSL"] = "false" if scheme == "http" else "true"
    if s3.access_key is not None and s3.secret_key is not None:
        options["KEY_ID"] = _literal(s3.access_key.reveal())
        options["SECRET"] = _literal(s3.secret_key.reveal())
    body = ", ".join(f"{key} {value}" for key, value in options.items())
    connection.execute(f"CREATE SECRET lake ({body})")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

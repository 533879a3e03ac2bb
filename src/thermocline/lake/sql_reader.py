"""Read a SQLite or PostgreSQL catalog with one query."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark import CATALOG
from thermocline.lake import catalog_identity
from thermocline.lake.catalog import (
    TIMEOUT,
    MetadataReader,
    catalog_errors,
    no_such_table_error,
    read_only_uri,
    require_no_lost_catalog,
)
from thermocline.lake.locations import Warehouse
from thermocline.lake.metadata import MetadataFileMissing, TableState

if TYPE_CHECKING:
    from psycopg2.extensions import connection

    from thermocline.config import Settings

_POINTERS = (
    "SELECT table_namespace || '.' || table_name, metadata_location"
    " FROM iceberg_tables WHERE catalog_name = {0}"
)
_LOCATIONS = _POINTERS + (
    " UNION ALL SELECT namespace || '.', property_value FROM iceberg_namespace_properties"
    " WHERE catalog_name = {0} AND property_key = 'location'"
)
"""The locations of tables, and of layers that have a location property."""
_MAX_NAMED_TABLES = 300
"""Every SQLite version accepts this many query values; for more tables, all are read."""

SqlRows = list[tuple[str, ...]]


class SqlReader(MetadataReader):
    """Reads a SQLite or PostgreSQL catalog with one query."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._postgres = _PostgresConnection(settings)
        self._warehouse: Warehouse | None = None

    def require_tables_in_warehouse(self) -> None:
        """Raise TablesElsewhere if a table lies outside the warehouse. Costs one query, once."""
        if self._warehouse is None:
            warehouse = Warehouse(self._settings.warehouse)
            locations = self.locations()
            warehouse.require(locations)
            if locations and self._settings.catalog.type == "sqlite":
                recorded = [path for (path,) in self._rows(catalog_identity.RECORDED_PATHS, [])]
                catalog_identity.require_no_copy(
                    Path(self._settings.catalog.uri), recorded, self._settings.warehouse
                )
            self._warehouse = warehouse

    def roots(self) -> list[str]:
        """Return every spelling of the warehouse that table locations begin with."""
        self.require_tables_in_warehouse()
        assert self._warehouse is not None
        return list(self._warehouse.roots)

    def locations(self) -> dict[str, str]:
        """Return each table's metadata file, and under "layer." the location of a layer."""
        # A catalog without layer properties returns no rows, like one without tables.
        found = self._rows(_LOCATIONS, [CATALOG, CATALOG])
        return {row[0]: row[1] for row in found or self._rows(_POINTERS, [CATALOG])}

    def tables(self) -> list[str]:
        """Return all tables as "layer.name", sorted."""
        return sorted(self.pointers())

    def state(self, table: str) -> TableState:
        """Return a table's current metadata; raise NotFound if the table does not exist."""
        previous = ""
        while True:
            pointer = self.pointers([table]).get(table)
            if pointer is None:
                raise no_such_table_error(table)
            try:
                return self.state_at(table, pointer)
            except MetadataFileMissing:
                # Concurrent commits may remove old metadata before it is read here.
                if pointer == previous:
                    raise
                previous = pointer

    def pointers(self, among: Collection[str] | None = None) -> dict[str, str]:
        """Return the metadata file of all tables, or of those in `among`, at one moment."""
        self.require_tables_in_warehouse()
        query, values = _POINTERS, [CATALOG]
        if among is not None and len(among) <= _MAX_NAMED_TABLES:
            if not among:
                return {}
            pairs = ", ".join(["({0}, {0})"] * len(among))
            query += f" AND (table_namespace, table_name) IN (VALUES {pairs})"
            values += [part for table in among for part in table.split(".", 1)]
        names = None if among is None else set(among)
        return {t: at for t, at in self._rows(query, values) if names is None or t in names}

    def close(self) -> None:
        """Close idle connections."""
        self._postgres.close()

    def _rows(self, query: str, values: list[str]) -> SqlRows:
        if self._settings.catalog.type == "sqlite":
            found = _sqlite_rows(Path(self._settings.catalog.uri), query.format("?"), values)
            if found is None:
                require_no_lost_catalog(self._settings)
            return found or []
        with catalog_errors("postgres"):
            return self._postgres.rows(query.format("%s"), values)


def _sqlite_rows(path: Path, query: str, values: list[str]) -> SqlRows | None:
    """Return the rows of a query; None if there is no catalog."""
    if not path.exists():
        return None
    with (
        catalog_errors("sqlite"),
        closing(sqlite3.connect(read_only_uri(path), uri=True, timeout=TIMEOUT)) as db,
    ):
        try:
            return db.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return None  # the database exists, but the catalog's tables do not yet
            raise


class _PostgresConnection:
    """Runs queries on a reused connection, since connecting costs more than a query.

    Concurrent threads have connections of their own; one of them is kept idle.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[connection] = []
        self._process = os.getpid()

    def rows(self, query: str, values: list[str]) -> SqlRows:
        """Return the rows of a query, with one retry if the idle connection has broken."""
        import psycopg2

        if self._process != os.getpid():
            # A fork: the connection is the parent's, and closing it here would end it there.
            self._idle, self._process = [], os.getpid()
        try:
            used = self._idle.pop()
        except IndexError:
            return self._rows(self._connect(), query, values)
        try:
            return self._rows(used, query, values)
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            return self._rows(self._connect(), query, values)

    def close(self) -> None:
        """Close the idle connection."""
        while self._idle and self._process == os.getpid():
            self._idle.pop().close()

    def _rows(self, used: connection, query: str, values: list[str]) -> SqlRows:
        import psycopg2.errors

        try:
            with used.cursor() as cursor:
                try:
                    cursor.execute(query, values)
                    found = list(cursor.fetchall())
                except psycopg2.errors.UndefinedTable:
                    found = []  # the catalog's tables do not exist yet
        except BaseException:
            used.close()
            raise
        if self._idle:
            used.close()
        else:
            self._idle.append(used)
        return found

    def _connect(self) -> connection:
        import psycopg2

        opened = psycopg2.connect(**self._dsn())
        opened.autocommit = True  # each query is its own transaction
        return opened

    def _dsn(self) -> dict[str, Any]:
        catalog = self._settings.catalog
        parameters: dict[str, Any] = {"dsn": catalog.uri, "connect_timeout": 10}
        if catalog.user:
            parameters["user"] = catalog.user
        if catalog.password is not None:
            parameters["password"] = catalog.password.reveal()
        return parameters

"""A SQLite or PostgreSQL catalog, read with one query."""

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
"""Where the tables are, and where new ones of a layer go if the layer itself says it."""
_MAX_NAMED_TABLES = 300
"""SQLite takes so many values of a query in all its versions; of more tables all are read."""

SqlRows = list[tuple[str, ...]]


class SqlReader(MetadataReader):
    """A SQLite or PostgreSQL catalog, read with one query."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._postgres = _Postgres(settings)
        self._warehouse: Warehouse | None = None

    def require_here(self) -> None:
        """Raise TablesElsewhere unless all tables lie in the warehouse. Costs one query, once."""
        if self._warehouse is None:
            warehouse = Warehouse(self._settings.warehouse)
            places = self.places()
            warehouse.require(places)
            if places and self._settings.catalog.type == "sqlite":
                noted = [path for (path,) in self._rows(catalog_identity.RECORDED_PATHS, [])]
                catalog_identity.require_no_copy(
                    Path(self._settings.catalog.uri), noted, self._settings.warehouse
                )
            self._warehouse = warehouse

    def roots(self) -> list[str]:
        """Every spelling of the warehouse that locations of tables begin with."""
        self.require_here()
        assert self._warehouse is not None
        return list(self._warehouse.roots)

    def places(self) -> dict[str, str]:
        """The metadata file of every table, and under "layer." the folder that a layer names."""
        # A catalog without layers' properties answers with nothing, like one without tables.
        found = self._rows(_LOCATIONS, [CATALOG, CATALOG])
        return {row[0]: row[1] for row in found or self._rows(_POINTERS, [CATALOG])}

    def tables(self) -> list[str]:
        """All tables as "layer.name", sorted."""
        return sorted(self.pointers())

    def state(self, table: str) -> TableState:
        """A table's metadata as it is now; NotFound when there is no such table."""
        seen = ""
        while True:
            pointer = self.pointers([table]).get(table)
            if pointer is None:
                raise no_such_table_error(table)
            try:
                return self.state_at(table, pointer)
            except MetadataFileMissing:
                # Others may commit and remove old metadata before it is read here.
                if pointer == seen:
                    raise
                seen = pointer

    def pointers(self, among: Collection[str] | None = None) -> dict[str, str]:
        """The metadata file of every table, or of those `among` some, all at one moment."""
        self.require_here()
        query, values = _POINTERS, [CATALOG]
        if among is not None and len(among) <= _MAX_NAMED_TABLES:
            if not among:
                return {}
            pairs = ", ".join(["({0}, {0})"] * len(among))
            query += f" AND (table_namespace, table_name) IN (VALUES {pairs})"
            values += [part for table in among for part in table.split(".", 1)]
        wanted = None if among is None else set(among)
        return {t: at for t, at in self._rows(query, values) if wanted is None or t in wanted}

    def close(self) -> None:
        """Close connections that are kept open."""
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
    """The rows of a query; None where there is no catalog."""
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
                return None  # the database is there, the catalog's tables are not made yet
            raise


class _Postgres:
    """Queries on a connection that is kept for the next one: connecting costs more than a query.

    Each thread that asks at the same time has a connection of its own; one of them is kept.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[connection] = []
        self._process = os.getpid()

    def rows(self, query: str, values: list[str]) -> SqlRows:
        """The rows of a query. A kept connection may have broken since; that is tried once."""
        import psycopg2

        if self._process != os.getpid():
            # A fork: the connection is the parent's, and closing it here would end it there.
            self._idle, self._process = [], os.getpid()
        try:
            used = self._idle.pop()
        except IndexError:
            return self._rows(self._connected(), query, values)
        try:
            return self._rows(used, query, values)
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            return self._rows(self._connected(), query, values)

    def close(self) -> None:
        """Close the connection that is kept."""
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
                    found = []  # the catalog's tables are not made yet
        except BaseException:
            used.close()
            raise
        if self._idle:
            used.close()
        else:
            self._idle.append(used)
        return found

    def _connected(self) -> connection:
        import psycopg2

        opened = psycopg2.connect(**self._dsn())
        opened.autocommit = True  # each query is a moment of its own, and none stays open
        return opened

    def _dsn(self) -> dict[str, Any]:
        catalog = self._settings.catalog
        parameters: dict[str, Any] = {"dsn": catalog.uri, "connect_timeout": 10}
        if catalog.user:
            parameters["user"] = catalog.user
        if catalog.password is not None:
            parameters["password"] = catalog.password.reveal()
        return parameters

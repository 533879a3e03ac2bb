"""The catalog: which tables exist, and which metadata file each points to.

Reads go straight to the catalog (one SQL query or one HTTP request) and need no Iceberg library;
writes go through PyIceberg. Both use the same settings.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

from thermocline.engine.spark import CATALOG, uses_s3, warehouse_uri
from thermocline.errors import CatalogUnavailable, NotFound, first_line
from thermocline.lake import metadata
from thermocline.lake.commit_failures import disk_error
from thermocline.lake.metadata import TableState
from thermocline.lake.metadata_files import local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

    from thermocline.config import Settings

TIMEOUT = 60.0
MAX_PARALLEL_REQUESTS = 8
"""Maximum number of concurrent requests to one store or catalog."""
_DRIVER_ERRORS = {"OperationalError", "InterfaceError", "TimeoutError", "DatabaseError"}
_UNAVAILABLE_ERRORS = {
    "psycopg2": _DRIVER_ERRORS,
    "sqlalchemy": _DRIVER_ERRORS,
    "pyiceberg": {
        "RESTError", "BadRequestError", "UnauthorizedError", "ForbiddenError", "OAuthError",
        "AuthorizationExpiredError", "TooManyRequestsError", "ServerError",
        "ServiceUnavailableError", "CommitStateUnknownException",
    },
}  # fmt: skip


class CatalogReader(Protocol):
    """Read-only access to a catalog, without importing an engine."""

    def tables(self) -> list[str]:
        """Return all tables as "layer.name", sorted."""

    def state(self, table: str) -> TableState:
        """Return a table's current metadata; raise NotFound if the table does not exist."""

    def pointers(self, among: Collection[str] | None = None) -> dict[str, str]:
        """Return the metadata file of all tables, or of those in `among`, at one moment."""

    def state_at(self, table: str, pointer: str) -> TableState:
        """Read a table's metadata from the file that a pointer names."""

    def states_at(self, pointers: Mapping[str, str]) -> dict[str, TableState]:
        """Read the metadata of several tables, concurrently if the files are remote."""

    def require_tables_in_warehouse(self) -> None:
        """Raise TablesElsewhere for a table outside the warehouse, if we choose locations."""

    def roots(self) -> list[str]:
        """Return every spelling of the warehouse that table locations begin with."""

    def close(self) -> None:
        """Close idle connections."""


def open_reader(settings: Settings) -> CatalogReader:
    """Return the reader for the catalog in the settings."""
    from thermocline.lake.rest_reader import RestReader
    from thermocline.lake.sql_reader import SqlReader

    return RestReader(settings) if settings.catalog.type == "rest" else SqlReader(settings)


def no_such_table_error(table: str) -> NotFound:
    """Return the error for a table that is not in the catalog."""
    return NotFound(f"There is no table {table}.", "`thermo tables` lists the ones there are.")


class MetadataReader:
    """The shared base of the readers: it reads each metadata file once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _io(self) -> FileIO:
        return load_file_io(self._settings)

    def state_at(self, table: str, pointer: str) -> TableState:
        """Read a table's metadata from the file that a pointer names."""
        return metadata.read_state(
            table, pointer, None if local_path(pointer) else self._remote_content(pointer)
        )

    def states_at(self, pointers: Mapping[str, str]) -> dict[str, TableState]:
        """Read the metadata of several tables, concurrently if the files are remote."""
        if all(map(local_path, pointers.values())):
            return {table: self.state_at(table, pointer) for table, pointer in pointers.items()}
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            return dict(
                zip(pointers, pool.map(self.state_at, pointers, pointers.values()), strict=True)
            )

    def _remote_content(self, pointer: str) -> Callable[[], bytes]:
        def content() -> bytes:
            with self._io.new_input(pointer).open() as stream:
                return stream.read()

        return content


def connect(settings: Settings) -> Catalog:
    """Connect PyIceberg's catalog, for writing."""
    from thermocline.lake.monotonic_catalog import MonotonicRestCatalog, MonotonicSqlCatalog
    from thermocline.lake.retries import retry_connect

    if settings.catalog.type == "sqlite":
        _prepare_sqlite(settings)
    with catalog_errors(settings.catalog.type):
        kind = MonotonicRestCatalog if settings.catalog.type == "rest" else MonotonicSqlCatalog
        return retry_connect(settings.catalog.type)(kind, CATALOG, **_properties(settings))


def load_file_io(settings: Settings) -> FileIO:
    """Return PyIceberg's access to the warehouse's files, without the catalog."""
    from pyiceberg.io import load_file_io

    return load_file_io(_io_properties(settings), warehouse_uri(settings))


def _properties(settings: Settings) -> dict[str, str]:
    catalog = settings.catalog
    properties = {"warehouse": warehouse_uri(settings), **_io_properties(settings)}
    if catalog.type == "rest":
        properties |= {"uri": catalog.uri}
        for key, value in (("token", catalog.token), ("credential", catalog.credential)):
            if value is not None:
                properties[key] = value.reveal()
    else:
        properties |= {"uri": sqlalchemy_uri(settings), "pool_pre_ping": "true"}
    return properties | dict(catalog.properties)


def _io_properties(settings: Settings) -> dict[str, str]:
    properties = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    if not uses_s3(settings):
        return properties
    s3 = settings.s3
    pairs = {"s3.endpoint": s3.endpoint, "s3.region": s3.region}
    properties |= {key: value for key, value in pairs.items() if value}
    properties["s3.force-virtual-addressing"] = str(not s3.path_style).lower()
    if s3.access_key is not None and s3.secret_key is not None:
        properties["s3.access-key-id"] = s3.access_key.reveal()
        properties["s3.secret-access-key"] = s3.secret_key.reveal()
    return properties


def sqlalchemy_uri(settings: Settings) -> str:
    """Return the SQLAlchemy URI of a SQL catalog's database."""
    catalog = settings.catalog
    if catalog.type == "sqlite":
        path = Path(catalog.uri)
        if path.exists() and not _is_writable(path):
            return f"sqlite:///{read_only_uri(path)}&uri=true"
        return f"sqlite:///{catalog.uri}?timeout={TIMEOUT:.0f}"
    parts = urlsplit(catalog.uri)
    user = quote(catalog.user or "", safe="")
    if catalog.password is not None:
        user += f":{quote(catalog.password.reveal(), safe='')}"
    host = f"{user}@{parts.hostname}" if user else parts.hostname or ""
    netloc = f"{host}:{parts.port}" if parts.port else host
    return urlunsplit(("postgresql+psycopg2", netloc, parts.path, parts.query, ""))


_JOURNAL_BYTES = 64 << 10
"""A write-ahead log needs at least so much: its shared memory is of 32 KB."""


def read_only_uri(path: Path) -> str:
    """Return SQLite's URI for reading a database.

    If its folder is read-only or its disk is full, no journal can be created there. The file is
    then opened as immutable, unless a journal has changes that it lacks.
    """
    journal = path.with_name(f"{path.name}-wal")
    with suppress(OSError):
        if not _can_create_journal(path) and not (journal.exists() and journal.stat().st_size):
            return f"{path.as_uri()}?mode=ro&immutable=1"
    return f"{path.as_uri()}?mode=ro"


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _can_create_journal(path: Path) -> bool:
    return _is_writable(path) and shutil.disk_usage(path.parent).free >= _JOURNAL_BYTES


def require_no_lost_catalog(settings: Settings) -> None:
    """Raise NotFound if a SQLite catalog is missing although its warehouse contains tables.

    A new catalog would hide the tables that were lost.
    """
    if "://" in settings.warehouse:
        return
    folders = Path(settings.warehouse).glob("*/*/metadata")
    tables = sorted(each.parent for each in folders if any(each.glob("*.metadata.json")))
    if tables:
        names = ", ".join(f"{each.parent.name}.{each.name}" for each in tables[:3])
        more = f" and {len(tables) - 3:,} more" if len(tables) > 3 else ""
        raise NotFound(
            f"The catalog {settings.catalog.uri} is gone, but the warehouse holds {names}{more}.",
            "Restore it from a backup; or move the warehouse "
            f"{settings.warehouse} away, and begin with an empty lake.",
            file=settings.catalog.uri,
        )


def _prepare_sqlite(settings: Settings) -> None:
    """Create the database with a journal that lets readers and a writer work concurrently."""
    path = Path(settings.catalog.uri)
    if path.exists():
        return
    require_no_lost_catalog(settings)
    with catalog_errors("sqlite"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=TIMEOUT)) as db:
            db.execute("PRAGMA journal_mode = WAL")


@contextmanager
def catalog_errors(kind: str) -> Iterator[None]:
    """Convert a driver's connection and lock errors to CatalogUnavailable."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError, OSError) as error:
        raise disk_error(error) or unreachable_error(kind, error) from error
    except Exception as error:
        # The libraries' errors share no base class; importing them here would slow down every
        # reader by the writers' libraries.
        library = type(error).__module__.split(".")[0]
        if type(error).__name__ in _UNAVAILABLE_ERRORS.get(library, ()):
            raise disk_error(error) or unreachable_error(kind, error) from error
        raise


def unreachable_error(kind: str, error: BaseException) -> CatalogUnavailable:
    """Return the error for a catalog that cannot be used, with its driver's message."""
    # The driver's own message, without SQLAlchemy's wrapping.
    reason = first_line(getattr(error, "orig", None) or error)
    hint = {
        "sqlite": "Another process holds it, or the file is damaged. Try again; see thermo doctor.",
        "postgres": "Check that PostgreSQL runs and that the address and password are right.",
        "rest": "Check that the server runs and that the address and the credentials are right.",
    }[kind]
    return CatalogUnavailable(f"The {kind} catalog cannot be used: {reason}", hint)

"""The catalog: which tables there are and which metadata file each points to.

Looking goes straight to the catalog (one SQL query or one HTTP request) and needs no Iceberg
library; writing goes through PyIceberg. Both are made from the same settings.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from thermocline.engine.spark import CATALOG, uses_s3, warehouse_uri
from thermocline.errors import CatalogUnavailable, NotFound, Transient
from thermocline.lake import metadata
from thermocline.lake.metadata import TableState

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

    from thermocline.config import Settings

_TIMEOUT, _ROUNDS = 60.0, 5
_DRIVER = {"OperationalError", "InterfaceError", "TimeoutError", "DatabaseError"}
_CANNOT_USE = {
    "psycopg2": _DRIVER,
    "sqlalchemy": _DRIVER,
    "pyiceberg": {
        "RESTError", "BadRequestError", "UnauthorizedError", "ForbiddenError", "OAuthError",
        "AuthorizationExpiredError", "TooManyRequestsError", "ServerError",
        "ServiceUnavailableError", "CommitStateUnknownException",
    },
}  # fmt: skip
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}


class CatalogReader(Protocol):
    """Who only looks: cannot write, and imports no engine."""

    def tables(self) -> list[str]:
        """All tables as "layer.name", sorted."""

    def state(self, table: str) -> TableState:
        """A table's metadata as it is now; NotFound when there is no such table."""

    def pointers(self) -> dict[str, str]:
        """The metadata file of every table, all as they are at one moment."""

    def state_at(self, table: str, pointer: str) -> TableState:
        """A table's metadata as the file that a pointer names has it."""


def reader(settings: Settings) -> CatalogReader:
    """The reader for the catalog the settings name."""
    if settings.catalog.type == "rest":
        return RestReader(settings)
    return SqlReader(settings)


def no_such_table(table: str) -> NotFound:
    """The error for a table that is not in the catalog."""
    return NotFound(f"There is no table {table}.", "`thermo tables` lists the ones there are.")


class _FileReader:
    """What the readers have in common: metadata files are read where they lie."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._io: FileIO | None = None

    def state_at(self, table: str, pointer: str) -> TableState:
        if pointer.startswith("file:") or "://" not in pointer:
            return metadata.read(table, pointer)
        self._io = self._io or file_io(self._settings)
        with self._io.new_input(pointer).open() as stream:
            return metadata.parse(table, pointer, stream.read())


class SqlReader(_FileReader):
    """A SQLite or PostgreSQL catalog, read with one query."""

    def tables(self) -> list[str]:
        rows = self._rows("SELECT table_namespace, table_name FROM iceberg_tables", ())
        return sorted(f"{namespace}.{name}" for namespace, name in rows)

    def state(self, table: str) -> TableState:
        namespace, name = table.split(".", 1)
        rows = self._rows(
            "SELECT metadata_location, '' FROM iceberg_tables",
            (("table_namespace", namespace), ("table_name", name)),
        )
        if not rows:
            raise no_such_table(table)
        return self.state_at(table, rows[0][0])

    def pointers(self) -> dict[str, str]:
        name = "table_namespace || '.' || table_name"
        return dict(self._rows(f"SELECT {name}, metadata_location FROM iceberg_tables", ()))

    def _rows(self, select: str, equal: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
        conditions = (("catalog_name", CATALOG), *equal)
        values = tuple(value for _, value in conditions)
        if self._settings.catalog.type == "sqlite":
            where = " AND ".join(f"{column} = ?" for column, _ in conditions)
            return _sqlite_rows(Path(self._settings.catalog.uri), f"{select} WHERE {where}", values)
        where = " AND ".join(f"{column} = %s" for column, _ in conditions)
        return _postgres_rows(self._settings, f"{select} WHERE {where}", values)


def _sqlite_rows(path: Path, query: str, values: tuple[str, ...]) -> list[tuple[str, str]]:
    if not path.exists():
        return []
    with (
        catalog_errors("sqlite"),
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT)) as db,
    ):
        try:
            return db.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []  # the database is there, the catalog's tables are not made yet
            raise


def _postgres_rows(
    settings: Settings, query: str, values: tuple[str, ...]
) -> list[tuple[str, str]]:
    import psycopg2
    import psycopg2.errors

    with (
        catalog_errors("postgres"),
        closing(psycopg2.connect(**_dsn(settings))) as db,
        db.cursor() as cursor,
    ):
        try:
            cursor.execute(query, values)
        except psycopg2.errors.UndefinedTable:
            return []
        return list(cursor.fetchall())


def _dsn(settings: Settings) -> dict[str, Any]:
    catalog = settings.catalog
    parameters: dict[str, Any] = {"dsn": catalog.uri, "connect_timeout": 10}
    if catalog.user:
        parameters["user"] = catalog.user
    if catalog.password is not None:
        parameters["password"] = catalog.password.reveal()
    return parameters


class RestReader(_FileReader):
    """Any Iceberg REST catalog, read over HTTP."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._prefix: str | None = None
        self._seen: dict[str, str] = {}

    def tables(self) -> list[str]:
        found = []
        for (namespace,) in self._pages("namespaces", "namespaces"):
            for entry in self._pages(
                f"namespaces/{quote(namespace, safe='')}/tables", "identifiers"
            ):
                found.append(f"{namespace}.{entry['name']}")
        return sorted(found)

    def state(self, table: str) -> TableState:
        if (answer := self._table(table, "all")) is None:
            raise no_such_table(table)
        return TableState(table, answer["metadata-location"], answer["metadata"])

    def pointers(self) -> dict[str, str]:
        # Asked table by table. Two rounds that saw the same saw one moment, as no metadata file
        # comes twice; in a catalog that never stands still the last round must do.
        for _ in range(_ROUNDS):
            before, self._seen = self._seen, self._round()
            if self._seen == before:
                break
        return self._seen

    def _round(self) -> dict[str, str]:
        answers = {table: self._table(table, "refs") for table in self.tables()}
        return {table: a["metadata-location"] for table, a in answers.items() if a is not None}

    def _table(self, table: str, shown: str) -> Any:
        namespace, name = (quote(part, safe="") for part in table.split(".", 1))
        return self._get(f"namespaces/{namespace}/tables/{name}?snapshots={shown}")

    def _pages(self, path: str, key: str) -> Iterator[Any]:
        token = ""
        while True:
            answer = self._get(f"{path}?pageToken={quote(token, safe='')}") or {}
            yield from answer.get(key) or ()
            token = answer.get("next-page-token") or ""
            if not token:
                return

    def _get(self, path: str) -> Any:
        if self._prefix is None:
            warehouse = quote(self._settings.warehouse, safe="")
            config = self._fetch(f"config?warehouse={warehouse}")
            if config is None:
                raise _unreachable("rest", NotFound("there is no catalog at its address"))
            merged = {**config.get("defaults", {}), **config.get("overrides", {})}
            self._prefix = f"{merged['prefix']}/" if merged.get("prefix") else ""
        return self._fetch(self._prefix + path)

    def _fetch(self, path: str) -> Any:
        catalog = self._settings.catalog
        request = Request(f"{catalog.uri.rstrip('/')}/v1/{path}")  # noqa: S310 (config allows http only)
        if catalog.token is not None:
            request.add_header("Authorization", f"Bearer {catalog.token.reveal()}")
        try:
            with urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
                return json.load(answer)
        except HTTPError as error:
            if error.code == 404:
                return None
            raise _unreachable("rest", error) from error
        except (URLError, TimeoutError, ConnectionError) as error:
            raise _unreachable("rest", error) from error
        except ValueError as error:
            raise _unreachable("rest", NotFound("its answer is no JSON")) from error


def connect(settings: Settings) -> Catalog:
    """PyIceberg's catalog, for whoever writes."""
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

    from thermocline.lake.timed_catalog import ForwardRestCatalog, ForwardSqlCatalog

    # Connecting for the first time makes the catalog's tables. Of several processes that do so at
    # once one wins; for the others the tables are there when they look again.
    lost: tuple[type[Exception], ...] = (IntegrityError, ProgrammingError)
    if settings.catalog.type == "sqlite":
        _prepare_sqlite(Path(settings.catalog.uri))
        lost = (*lost, OperationalError)
    attempts = Retrying(
        retry=retry_if_exception_type(lost),
        stop=stop_after_attempt(5),
        wait=wait_random(0, 0.2),
        reraise=True,
    )
    with catalog_errors(settings.catalog.type):
        kind = ForwardRestCatalog if settings.catalog.type == "rest" else ForwardSqlCatalog
        return attempts(kind, CATALOG, **_properties(settings))


def file_io(settings: Settings) -> FileIO:
    """PyIceberg's way to the warehouse's files, without asking the catalog."""
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
        properties |= {"uri": _sqlalchemy_uri(settings), "pool_pre_ping": "true"}
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


def _sqlalchemy_uri(settings: Settings) -> str:
    catalog = settings.catalog
    if catalog.type == "sqlite":
        return f"sqlite:///{catalog.uri}?timeout={_TIMEOUT:.0f}"
    parts = urlsplit(catalog.uri)
    user = quote(catalog.user or "", safe="")
    if catalog.password is not None:
        user += f":{quote(catalog.password.reveal(), safe='')}"
    host = f"{user}@{parts.hostname}" if user else parts.hostname or ""
    netloc = f"{host}:{parts.port}" if parts.port else host
    return urlunsplit(("postgresql+psycopg2", netloc, parts.path, parts.query, ""))


def _prepare_sqlite(path: Path) -> None:
    """Make the database, once, with a journal that lets readers and a writer work side by side."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with catalog_errors("sqlite"), closing(sqlite3.connect(path, timeout=_TIMEOUT)) as db:
        db.execute("PRAGMA journal_mode = WAL")


@contextmanager
def catalog_errors(kind: str) -> Iterator[None]:
    """Turn a driver's "cannot reach" and "locked" into CatalogUnavailable."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
        raise _unreachable(kind, error) from error
    except OSError as error:
        if error.errno in _DISK:
            raise Transient(
                f"A file of the lake cannot be written: {os.strerror(error.errno)}.",
                "Nothing was committed. Make room, or mend the rights, and run again.",
            ) from error
        raise _unreachable(kind, error) from error
    except Exception as error:
        # The libraries' errors share no base class; importing them here would make every reader
        # pay for the writers' libraries.
        library = type(error).__module__.split(".")[0]
        if type(error).__name__ in _CANNOT_USE.get(library, ()):
            raise _unreachable(kind, error) from error
        raise


def _unreachable(kind: str, error: BaseException) -> CatalogUnavailable:
    # What the driver said, without what SQLAlchemy and urllib wrap around it.
    inner = getattr(error, "orig", None) or (error.reason if type(error) is URLError else None)
    text = str(inner or error)
    reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    hint = {
        "sqlite": "Another process holds it, or the file is damaged. Try again; see thermo doctor.",
        "postgres": "Check that PostgreSQL runs and that the address and password are right.",
        "rest": "Check that the server runs and that the address and the credentials are right.",
    }[kind]
    return CatalogUnavailable(f"The {kind} catalog cannot be used: {reason}", hint)

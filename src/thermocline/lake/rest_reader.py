"""Read any Iceberg REST catalog over HTTP.

Connections are reused, and several tables are requested concurrently. A table's metadata location
is requested without its snapshots; its full metadata only when it has moved.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from thermocline.errors import NotFound
from thermocline.lake import metadata
from thermocline.lake.catalog import (
    MAX_PARALLEL_REQUESTS,
    TIMEOUT,
    MetadataReader,
    no_such_table_error,
    unreachable_error,
)
from thermocline.lake.metadata import TableState

if TYPE_CHECKING:
    from urllib3 import PoolManager

    from thermocline.config import Settings

_MAX_ROUNDS = 5


class _MetadataUnreadable(Exception):
    """The catalog has the table, but cannot read its metadata."""


class RestReader(MetadataReader):
    """Reads any Iceberg REST catalog over HTTP."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._prefix: str | None = None
        self._seen: dict[str, str | None] = {}

    def tables(self) -> list[str]:
        """Return all tables as "layer.name", sorted."""
        spaces = [space for (space,) in self._pages("namespaces", "namespaces")]
        return sorted(
            f"{space}.{entry['name']}"
            for space in spaces
            for entry in self._pages(f"namespaces/{quote(space, safe='')}/tables", "identifiers")
        )

    def state(self, table: str) -> TableState:
        """Return a table's current metadata; raise NotFound if the table does not exist."""
        if self._seen.get(table) is not None:
            location = self._location(table)
            if (
                location is not None
                and (cached := metadata.cached_state(table, location)) is not None
            ):
                return cached
        content = self._table(table, "all")
        if content is None:
            self._seen[table] = None
            raise no_such_table_error(table)
        answer = _parse_json(content)
        location = self._seen[table] = str(answer["metadata-location"])
        return metadata.cache_state(TableState(table, location, answer["metadata"]), len(content))

    def pointers(self, among: Collection[str] | None = None) -> dict[str, str]:
        """Return the metadata file of all tables, or of those in `among`, at one moment."""
        # Tables are requested one by one. Two rounds with equal results are of one moment, since
        # no metadata file is used twice; in a busy catalog the last round is accepted.
        for _ in range(_MAX_ROUNDS):
            found = self._round(self.tables() if among is None else among)
            gone = set() if among is not None else set(self._seen) - set(found)
            same = len(found) == 1 or all(
                table in self._seen and self._seen[table] == at for table, at in found.items()
            )
            self._seen = {t: at for t, at in (self._seen | found).items() if t not in gone}
            if same and not gone:
                break
        return {table: at for table, at in found.items() if at is not None}

    def require_tables_in_warehouse(self) -> None:
        """Do nothing: the server decides where tables lie."""

    def roots(self) -> list[str]:
        """Return the warehouse of the settings."""
        return [self._settings.warehouse]

    def close(self) -> None:
        """Close idle connections."""
        self._http.clear()

    def _round(self, tables: Collection[str]) -> dict[str, str | None]:
        if len(tables) < 2:
            return {table: self._location(table) for table in tables}
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            return dict(zip(tables, pool.map(self._location, tables), strict=True))

    def _location(self, table: str) -> str | None:
        content = self._table(table, "refs")
        return None if content is None else str(_parse_json(content)["metadata-location"])

    def _table(self, table: str, shown: str) -> bytes | None:
        namespace, name = (quote(part, safe="") for part in table.split(".", 1))
        try:
            return self._get(f"namespaces/{namespace}/tables/{name}?snapshots={shown}")
        except _MetadataUnreadable as error:
            raise NotFound(
                f"{table}: the catalog points to a metadata file which is not there.",
                "Restore the file from a backup; the catalog's own log names it.",
            ) from error

    def _pages(self, path: str, key: str) -> Iterator[Any]:
        token = ""
        while True:
            content = self._get(f"{path}?pageToken={quote(token, safe='')}")
            answer = {} if content is None else _parse_json(content)
            yield from answer.get(key) or ()
            token = answer.get("next-page-token") or ""
            if not token:
                return

    def _get(self, path: str) -> bytes | None:
        if self._prefix is None:
            warehouse = quote(self._settings.warehouse, safe="")
            config = self._fetch(f"config?warehouse={warehouse}")
            if config is None:
                raise unreachable_error("rest", NotFound("there is no catalog at its address"))
            settings = _parse_json(config)
            merged = {**settings.get("defaults", {}), **settings.get("overrides", {})}
            self._prefix = f"{merged['prefix']}/" if merged.get("prefix") else ""
        return self._fetch(self._prefix + path)

    def _fetch(self, path: str) -> bytes | None:
        from urllib3.exceptions import HTTPError

        catalog = self._settings.catalog
        headers = {"Accept-Encoding": "gzip"}
        if catalog.token is not None:
            headers["Authorization"] = f"Bearer {catalog.token.reveal()}"
        try:
            answer = self._http.request(
                "GET", f"{catalog.uri.rstrip('/')}/v1/{path}", headers=headers
            )
        except HTTPError as error:
            raise unreachable_error("rest", _root_cause(error)) from error
        if answer.status == 404:
            if b'"NotFoundException"' in answer.data:
                raise _MetadataUnreadable  # a file of the table is missing, not the table
            return None
        if answer.status != 200:
            text = f"HTTP Error {answer.status}: {answer.reason}"
            raise unreachable_error("rest", ConnectionError(text))
        return answer.data

    @cached_property
    def _http(self) -> PoolManager:
        """The connection pool. A connection that broke while idle is replaced, once."""
        from urllib.request import getproxies, proxy_bypass

        from urllib3 import PoolManager, ProxyManager, Retry, Timeout

        address = urlsplit(self._settings.catalog.uri)
        proxy = getproxies().get(address.scheme)
        options: dict[str, Any] = {
            "maxsize": MAX_PARALLEL_REQUESTS,
            "timeout": Timeout(TIMEOUT),
            "retries": Retry(
                total=6,
                connect=0,
                read=1,
                redirect=5,
                status=0,
                other=0,
                respect_retry_after_header=False,
            ),
        }
        if proxy and not proxy_bypass(address.hostname or ""):
            return ProxyManager(proxy, **options)
        return PoolManager(**options)


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise unreachable_error("rest", NotFound("its answer is not JSON")) from error


def _root_cause(error: Exception) -> BaseException:
    """Return the underlying error, without urllib3's wrapping."""
    inner = getattr(error, "reason", None)
    while isinstance(inner, Exception) and isinstance(getattr(inner, "reason", None), Exception):
        inner = inner.reason  # type: ignore[attr-defined]
    return inner if isinstance(inner, BaseException) else error

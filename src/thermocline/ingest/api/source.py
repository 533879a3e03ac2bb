"""The settings of a source of kind `api`: the API's address, its paging, the resource that lands.

The settings of dlt's rest_api (`auth`, `paginator`, `headers`, `resources`, `resource_defaults`)
are passed on unchanged. Settings that would land a pull twice, reach other hosts or expose a secret
are refused here, with their line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thermocline.contract.problems import DocumentPath, did_you_mean, quote
from thermocline.ingest.api.session import ResponseLimits
from thermocline.ingest.egress_policy import AddressRefused, UrlOrigin, parse_origin
from thermocline.ingest.secret import find_literal_secret

if TYPE_CHECKING:
    from thermocline.contract.definition import Contract
    from thermocline.ingest.feed import Feed
    from thermocline.ingest.source import SettingsReader, Source
    from thermocline.lake import Lake

KEYS = (
    "base_url", "auth", "headers", "paginator", "resources", "resource_defaults", "resource",
    "hosts", "every", "timeout", "maxResponseBytes",
)  # fmt: skip
INCREMENTAL_KEYS = ("cursor_path", "initial_value", "start_param", "row_order")
ORDERS = ("asc", "desc")
EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class Cursor:
    """A field that grows with every change, from which the next pull continues."""

    path: str
    initial: str | int | float
    ascending: bool = False


@dataclass(frozen=True)
class ApiSource:
    """An API and its one resource that lands; other resources only lead to it.

    `key` lists the fields that identify a record; if empty, its whole content does. `every` is the
    number of seconds between two pulls once the API's end was reached.
    """

    base_url: str
    resource: str
    resources: tuple[Mapping[str, Any], ...]
    client: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    response_limits: ResponseLimits = field(default_factory=ResponseLimits)
    key: tuple[str, ...] = ()
    cursor: Cursor | None = None
    every: float = EVERY_SECONDS

    @property
    def origins(self) -> tuple[UrlOrigin, ...]:
        """All origins that a pull may connect to."""
        return tuple(dict.fromkeys(parse_origin(url) for url in (self.base_url, *self.hosts)))


def read(fields: SettingsReader) -> ApiSource | None:
    """Read a source's settings and report what is wrong with them; return None if anything is."""
    before = len(fields.report.problems)
    found = _ApiSourceReader(fields).read_api()
    return found if len(fields.report.problems) == before else None


def open_feed(lake: Lake, source: Source, contract: Contract) -> Feed:
    """Return the feed of an API. It does not connect yet."""
    from thermocline.ingest.api.feed import ApiFeed

    del contract
    return ApiFeed(lake, source)


class _ApiSourceReader:
    """Reads one API's settings and reports what is wrong with each."""

    def __init__(self, fields: SettingsReader) -> None:
        self._fields = fields
        self._data = fields.data
        self._report = fields.report

    def read_api(self) -> ApiSource | None:
        self._refuse_literal_secrets()
        base_url = self._read_url(("base_url",), self._data.get("base_url"), "base_url")
        hosts = self._read_hosts()
        resources = self._read_resources()
        landing = self._select_resource(resources)
        if base_url is None or landing is None:
            return None
        location, chosen = landing
        client_keys = ("auth", "headers", "paginator")
        number = self._fields.number
        return ApiSource(
            base_url,
            str(chosen["name"]),
            tuple(resources),
            {key: self._data[key] for key in client_keys if key in self._data},
            self._fields.mapping("resource_defaults"),
            (*hosts, *self._find_named_urls(resources)),
            ResponseLimits(
                number("timeout", ResponseLimits.seconds, 1, 3600),
                int(number("maxResponseBytes", ResponseLimits.bytes, 1024, 1 << 30)),
            ),
            self._read_key(location, chosen),
            self._read_cursor(location, chosen),
            number("every", EVERY_SECONDS, 0, 86_400),
        )

    def _refuse_literal_secrets(self) -> None:
        settings = {key: self._data[key] for key in KEYS if key in self._data}
        inner = find_literal_secret(settings)
        if inner is not None:
            hint = "write {secret: NAME} and set the environment variable NAME"
            self._report.add(inner, ".".join(map(str, inner)), "a secret in the clear", hint)

    def _read_url(self, location: DocumentPath, value: Any, name: str) -> str | None:
        if not isinstance(value, str) or not value:
            self._report.add_missing(
                location, name, "is missing or no text", "write https://host/path/"
            )
            return None
        try:
            parse_origin(value)
        except AddressRefused as error:
            self._report.add(location, name, error.cause.rstrip("."), error.next_step.rstrip("."))
            return None
        return value

    def _read_hosts(self) -> list[str]:
        hosts = self._data.get("hosts", [])
        if not isinstance(hosts, list):
            self._report.add(("hosts",), "hosts", "must be a list", "write [https://other.host]")
            return []
        found = [self._read_url(("hosts", i), each, "hosts") for i, each in enumerate(hosts)]
        return [each for each in found if each is not None]

    def _find_named_urls(self, resources: list[dict[str, Any]]) -> Iterator[str]:
        """Yield other URLs in the settings: of tokens, and paths that are whole URLs."""
        endpoints = [_get_endpoint(resource) for resource in resources]
        for auth in (self._data.get("auth"), *(each.get("auth") for each in endpoints)):
            if isinstance(auth, Mapping) and "access_token_url" in auth:
                url = self._read_url(("auth", "access_token_url"), auth["access_token_url"], "auth")
                if url is not None:
                    yield url
        for endpoint in endpoints:
            path = endpoint.get("path")
            if isinstance(path, str) and "://" in path.partition("?")[0]:
                url = self._read_url(("resources",), path, "path")
                if url is not None:
                    yield url

    def _read_resources(self) -> list[dict[str, Any]]:
        settings = self._data.get("resources")
        if not isinstance(settings, list) or not settings:
            hint = "list at least one: {name: issues, endpoint: {path: issues}}"
            self._report.add_missing(("resources",), "resources", "is missing or empty", hint)
            return []
        found = []
        for index, each in enumerate(settings):
            resource = {"name": each, "endpoint": {"path": each}} if isinstance(each, str) else each
            if not isinstance(resource, dict) or not isinstance(resource.get("name"), str):
                self._report.add(("resources", index), "resources", "a resource needs a name")
            else:
                found.append(resource)
        return found

    def _select_resource(
        self, resources: list[dict[str, Any]]
    ) -> tuple[DocumentPath, dict[str, Any]] | None:
        """Return the resource that lands: the one that `resource` names, or the only one."""
        names = [str(resource["name"]) for resource in resources]
        selected = self._data.get("resource", names[0] if len(names) == 1 else None)
        if not names:
            return None
        if selected is None:
            hint = f"say which of them lands: {', '.join(names)}"
            self._report.add_missing((), "resource", "is missing", hint)
            return None
        if selected not in names:
            hint = did_you_mean(str(selected), names) or f"there are {', '.join(names)}"
            self._report.add(("resource",), "resource", f"there is no {quote(selected)}", hint)
            return None
        index = names.index(selected)
        return ("resources", index), resources[index]

    def _read_key(self, location: DocumentPath, resource: Mapping[str, Any]) -> tuple[str, ...]:
        defaults = self._fields.mapping("resource_defaults")
        key = resource.get("primary_key", defaults.get("primary_key", ()))
        names = [key] if isinstance(key, str) else key
        if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
            self._report.add((*location, "primary_key"), "primary_key", "must be a field or a list")
            return ()
        return tuple(names)

    def _read_cursor(self, location: DocumentPath, resource: Mapping[str, Any]) -> Cursor | None:
        endpoint = _get_endpoint(resource)
        params = endpoint.get("params")
        for name, value in (params if isinstance(params, dict) else {}).items():
            if isinstance(value, dict) and value.get("type") == "incremental":
                inner = (*location, "endpoint", "params", name)
                hint = 'write endpoint.incremental, and "{incremental.start_value}" here'
                self._report.add(inner, name, "is an older spelling", hint)
        settings = endpoint.get("incremental")
        if settings is None:
            return None
        inner = (*location, "endpoint", "incremental")
        if not isinstance(settings, dict):
            self._report.add(inner, "incremental", "must be a mapping")
            return None
        for key in settings:
            if key not in INCREMENTAL_KEYS:
                hint = did_you_mean(key, INCREMENTAL_KEYS) or f"use {', '.join(INCREMENTAL_KEYS)}"
                what = f"{quote(key)} is not in this version"
                self._report.add((*inner, key), "incremental", what, hint)
        path, initial = settings.get("cursor_path"), settings.get("initial_value")
        if not isinstance(path, str) or not path:
            self._report.add_missing(inner, "incremental", "needs a cursor_path", "as updated_at")
        if isinstance(initial, bool) or not isinstance(initial, str | int | float):
            hint = "write the value to begin from, a date in quotes"
            self._report.add_missing(inner, "incremental", "needs an initial_value", hint)
            return None
        order = settings.get("row_order")
        if order not in (None, *ORDERS):
            self._report.add((*inner, "row_order"), "row_order", "is asc or desc")
        return Cursor(str(path), initial, ascending=order == "asc")


def _get_endpoint(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    endpoint = resource.get("endpoint", {})
    return endpoint if isinstance(endpoint, Mapping) else {"path": endpoint}

"""What a source of kind `api` says: where the API is, how it pages, which resource lands.

The parts that dlt's rest_api knows (`auth`, `paginator`, `headers`, `resources`,
`resource_defaults`) are passed on as they stand. What would make a pull land twice, reach
elsewhere or show a secret is refused here, with its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thermocline.contract.problems import DocumentPath, did_you_mean, quote
from thermocline.ingest.api.session import Bounds
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
    """A field that grows with every change, by which a pull continues the one before it."""

    path: str
    initial: str | int | float
    ascending: bool = False


@dataclass(frozen=True)
class ApiSource:
    """An API and the one resource of it that lands; the others only lead there.

    `key` are the fields that tell records apart; empty when nothing but their content does.
    `every` is how many seconds lie between two pulls that find the API's end.
    """

    base_url: str
    resource: str
    resources: tuple[Mapping[str, Any], ...]
    client: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    key: tuple[str, ...] = ()
    cursor: Cursor | None = None
    every: float = EVERY_SECONDS

    @property
    def origins(self) -> tuple[UrlOrigin, ...]:
        """Everybody a pull may speak to."""
        return tuple(dict.fromkeys(parse_origin(url) for url in (self.base_url, *self.hosts)))


def read(fields: SettingsReader) -> ApiSource | None:
    """The API that a source's settings describe; None when something is wrong with them."""
    before = len(fields.report.problems)
    found = _Reader(fields).api()
    return found if len(fields.report.problems) == before else None


def open_feed(lake: Lake, source: Source, contract: Contract) -> Feed:
    """The feed of an API. Nothing is connected yet."""
    from thermocline.ingest.api.feed import ApiFeed

    del contract
    return ApiFeed(lake, source)


class _Reader:
    """Reads one API's settings and reports what is wrong with each."""

    def __init__(self, fields: SettingsReader) -> None:
        self._fields = fields
        self._data = fields.data
        self._report = fields.report

    def api(self) -> ApiSource | None:
        self._no_secret_in_the_clear()
        base_url = self._url(("base_url",), self._data.get("base_url"), "base_url")
        hosts = self._hosts()
        resources = self._resources()
        landing = self._landing(resources)
        if base_url is None or landing is None:
            return None
        at, chosen = landing
        passed_on = ("auth", "headers", "paginator")
        number = self._fields.number
        return ApiSource(
            base_url,
            str(chosen["name"]),
            tuple(resources),
            {key: self._data[key] for key in passed_on if key in self._data},
            self._fields.mapping("resource_defaults"),
            (*hosts, *self._named_urls(resources)),
            Bounds(
                number("timeout", Bounds.seconds, 1, 3600),
                int(number("maxResponseBytes", Bounds.bytes, 1024, 1 << 30)),
            ),
            self._key(at, chosen),
            self._cursor(at, chosen),
            number("every", EVERY_SECONDS, 0, 86_400),
        )

    def _no_secret_in_the_clear(self) -> None:
        given = {key: self._data[key] for key in KEYS if key in self._data}
        place = find_literal_secret(given)
        if place is not None:
            hint = "write {secret: NAME} and set the environment variable NAME"
            self._report.add(place, ".".join(map(str, place)), "a secret in the clear", hint)

    def _url(self, at: DocumentPath, value: Any, name: str) -> str | None:
        if not isinstance(value, str) or not value:
            self._report.add_missing(at, name, "is missing or no text", "write https://host/path/")
            return None
        try:
            parse_origin(value)
        except AddressRefused as error:
            self._report.add(at, name, error.cause.rstrip("."), error.next_step.rstrip("."))
            return None
        return value

    def _hosts(self) -> list[str]:
        hosts = self._data.get("hosts", [])
        if not isinstance(hosts, list):
            self._report.add(("hosts",), "hosts", "must be a list", "write [https://other.host]")
            return []
        found = [self._url(("hosts", i), each, "hosts") for i, each in enumerate(hosts)]
        return [each for each in found if each is not None]

    def _named_urls(self, resources: list[dict[str, Any]]) -> Iterator[str]:
        """Other addresses that the author wrote down: a token's, or a path that is a whole URL."""
        endpoints = [_endpoint(resource) for resource in resources]
        for auth in (self._data.get("auth"), *(each.get("auth") for each in endpoints)):
            if isinstance(auth, Mapping) and "access_token_url" in auth:
                url = self._url(("auth", "access_token_url"), auth["access_token_url"], "auth")
                if url is not None:
                    yield url
        for endpoint in endpoints:
            path = endpoint.get("path")
            if isinstance(path, str) and "://" in path.partition("?")[0]:
                url = self._url(("resources",), path, "path")
                if url is not None:
                    yield url

    def _resources(self) -> list[dict[str, Any]]:
        given = self._data.get("resources")
        if not isinstance(given, list) or not given:
            hint = "list at least one: {name: issues, endpoint: {path: issues}}"
            self._report.add_missing(("resources",), "resources", "is missing or empty", hint)
            return []
        found = []
        for index, each in enumerate(given):
            resource = {"name": each, "endpoint": {"path": each}} if isinstance(each, str) else each
            if not isinstance(resource, dict) or not isinstance(resource.get("name"), str):
                self._report.add(("resources", index), "resources", "a resource needs a name")
            else:
                found.append(resource)
        return found

    def _landing(
        self, resources: list[dict[str, Any]]
    ) -> tuple[DocumentPath, dict[str, Any]] | None:
        """The resource that lands: the one that `resource` names, or the only one."""
        names = [str(resource["name"]) for resource in resources]
        wanted = self._data.get("resource", names[0] if len(names) == 1 else None)
        if not names:
            return None
        if wanted is None:
            hint = f"say which of them lands: {', '.join(names)}"
            self._report.add_missing((), "resource", "is missing", hint)
            return None
        if wanted not in names:
            hint = did_you_mean(str(wanted), names) or f"there are {', '.join(names)}"
            self._report.add(("resource",), "resource", f"there is no {quote(wanted)}", hint)
            return None
        index = names.index(wanted)
        return ("resources", index), resources[index]

    def _key(self, at: DocumentPath, resource: Mapping[str, Any]) -> tuple[str, ...]:
        defaults = self._fields.mapping("resource_defaults")
        key = resource.get("primary_key", defaults.get("primary_key", ()))
        names = [key] if isinstance(key, str) else key
        if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
            self._report.add((*at, "primary_key"), "primary_key", "must be a field or a list")
            return ()
        return tuple(names)

    def _cursor(self, at: DocumentPath, resource: Mapping[str, Any]) -> Cursor | None:
        endpoint = _endpoint(resource)
        params = endpoint.get("params")
        for name, value in (params if isinstance(params, dict) else {}).items():
            if isinstance(value, dict) and value.get("type") == "incremental":
                place = (*at, "endpoint", "params", name)
                hint = 'write endpoint.incremental, and "{incremental.start_value}" here'
                self._report.add(place, name, "is an older spelling", hint)
        given = endpoint.get("incremental")
        if given is None:
            return None
        place = (*at, "endpoint", "incremental")
        if not isinstance(given, dict):
            self._report.add(place, "incremental", "must be a mapping")
            return None
        for key in given:
            if key not in INCREMENTAL_KEYS:
                hint = did_you_mean(key, INCREMENTAL_KEYS) or f"use {', '.join(INCREMENTAL_KEYS)}"
                what = f"{quote(key)} is not in this version"
                self._report.add((*place, key), "incremental", what, hint)
        path, initial = given.get("cursor_path"), given.get("initial_value")
        if not isinstance(path, str) or not path:
            self._report.add_missing(place, "incremental", "needs a cursor_path", "as updated_at")
        if isinstance(initial, bool) or not isinstance(initial, str | int | float):
            hint = "write the value to begin from, a date in quotes"
            self._report.add_missing(place, "incremental", "needs an initial_value", hint)
            return None
        order = given.get("row_order")
        if order not in (None, *ORDERS):
            self._report.add((*place, "row_order"), "row_order", "is asc or desc")
        return Cursor(str(path), initial, ascending=order == "asc")


def _endpoint(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    endpoint = resource.get("endpoint", {})
    return endpoint if isinstance(endpoint, Mapping) else {"path": endpoint}

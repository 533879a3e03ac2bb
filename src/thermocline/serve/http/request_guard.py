"""Reject requests made by web pages of other sites, and tokens in URLs, before anything else.

A server on loopback is reachable by every page in this machine's browser. Such a request carries a
foreign Origin, is marked as cross-site, or (after DNS rebinding to 127.0.0.1) has a foreign Host. A
token in a URL ends up in histories and logs, so it is refused even when it is valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from thermocline.errors import BadInput, ThermoclineError
from thermocline.serve.failures import Forbidden
from thermocline.serve.http.responses import error_response
from thermocline.serve.identity.authenticator import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_OWN_SITE = frozenset({b"same-origin", b"none"})
_SECRET_PARAMETERS = frozenset(
    {"token", "access_token", "id_token", "api_key", "apikey", "authorization", "auth", "jwt",
     "password", "secret", "bearer"}
)  # fmt: skip
_TOKEN = re.compile(r"\bthermo_[A-Za-z0-9_-]{43}", re.ASCII)


class RequestGuard:
    """ASGI middleware around all routes. `any_host` accepts every Host, for servers with tokens.

    `direct_routes` are called without Starlette's routing and error handling; they render their own
    errors.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] = (),
        any_host: bool = False,
        direct_routes: Mapping[tuple[str, str], ASGIApp] | None = None,
    ) -> None:
        self._app = app
        self._direct_routes = direct_routes or {}
        self._hosts = frozenset(host.lower() for host in hosts)
        self._any_host = any_host and not self._hosts
        self._cached_request = lru_cache(256)(self._names_this_server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._validate(scope)
            except ThermoclineError as error:
                await error_response(error)(scope, receive, send)
                return
            direct = self._direct_routes.get((scope["method"], scope["path"]))
            if direct is not None:
                await direct(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        await self._app(scope, receive, send)

    def _validate(self, scope: Scope) -> None:
        hosts: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                self._validate_origin(value.decode("latin-1"), scope)
            elif name == b"sec-fetch-site" and value not in _OWN_SITE:
                raise _foreign()
        if len(hosts) > 1 or not self._cached_request(hosts[0].decode("latin-1") if hosts else ""):
            raise Forbidden(
                "The Host header does not name this server.",
                "Use the address that `thermo serve` printed, or add the name to serve.hosts.",
            )
        if scope["query_string"]:
            _validate_query_string(scope["query_string"].decode("latin-1"))

    def _names_this_server(self, host: str) -> bool:
        if self._any_host:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._hosts or is_loopback(name)

    def _validate_origin(self, origin: str, scope: Scope) -> None:
        """Accept only the origin of this server."""
        host = next((v.decode("latin-1") for n, v in scope["headers"] if n == b"host"), "")
        if origin.lower() not in {f"http://{host}".lower(), f"https://{host}".lower()}:
            raise _foreign()


def _foreign() -> Forbidden:
    return Forbidden(
        "The request was made by a page of another site.", "Use a program, not a web page."
    )


def _validate_query_string(query: str) -> None:
    given = parse_qsl(query, keep_blank_values=True)
    named = any(name.lower() in _SECRET_PARAMETERS for name, _ in given)
    if named or any(_TOKEN.search(f"{name} {value}") for name, value in given):
        raise BadInput(
            "A token must not be part of a URL, which logs and histories keep.",
            "Send it in the header Authorization, and revoke this one.",
        )

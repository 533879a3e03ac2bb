"""The door: turns away requests that a web page or a careless link made, before all else.

A server on loopback is reachable by every page that this machine's browser shows. Such a request
carries a foreign Origin, or says that it is cross-site, or (when a name was rebound to 127.0.0.1)
a Host that is not ours. A token in an address ends up in histories and logs, so it is refused
there even when it is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from thermocline.errors import BadInput, ThermoclineError
from thermocline.serve.failures import Forbidden
from thermocline.serve.http.replies import failure
from thermocline.serve.identity.identity import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_OWN_SITE = frozenset({b"same-origin", b"none"})
_SECRET_PARAMETERS = frozenset(
    {"token", "access_token", "id_token", "api_key", "apikey", "authorization", "auth", "jwt",
     "password", "secret", "bearer"}
)  # fmt: skip
_TOKEN = re.compile(r"\bthermo_[A-Za-z0-9_-]{43}", re.ASCII)


class Door:
    """ASGI middleware around everything. `any_host` where tokens guard what names cannot.

    `straight` are addresses that are called without the router's search and its handling of
    errors: those who know the way and explain their own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] = (),
        any_host: bool = False,
        straight: Mapping[tuple[str, str], ASGIApp] | None = None,
    ) -> None:
        self._app = app
        self._straight = straight or {}
        self._hosts = frozenset(host.lower() for host in hosts)
        self._any_host = any_host and not self._hosts
        self._known = lru_cache(256)(self._is_known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._judge(scope)
            except ThermoclineError as error:
                await failure(error)(scope, receive, send)
                return
            direct = self._straight.get((scope["method"], scope["path"]))
            if direct is not None:
                await direct(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope) -> None:
        hosts: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                self._judge_origin(value.decode("latin-1"), scope)
            elif name == b"sec-fetch-site" and value not in _OWN_SITE:
                raise _foreign()
        if len(hosts) > 1 or not self._known(hosts[0].decode("latin-1") if hosts else ""):
            raise Forbidden(
                "The Host header does not name this server.",
                "Use the address that `thermo serve` printed, or add the name to serve.hosts.",
            )
        if scope["query_string"]:
            _judge_query(scope["query_string"].decode("latin-1"))

    def _is_known(self, host: str) -> bool:
        if self._any_host:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._hosts or is_loopback(name)

    def _judge_origin(self, origin: str, scope: Scope) -> None:
        """Only the pages that this very server would have sent may ask it."""
        host = next((v.decode("latin-1") for n, v in scope["headers"] if n == b"host"), "")
        if origin.lower() not in {f"http://{host}".lower(), f"https://{host}".lower()}:
            raise _foreign()


def _foreign() -> Forbidden:
    return Forbidden(
        "The request was made by a page of another site.", "Ask from a program, not from a page."
    )


def _judge_query(query: str) -> None:
    given = parse_qsl(query, keep_blank_values=True)
    named = any(name.lower() in _SECRET_PARAMETERS for name, _ in given)
    if named or any(_TOKEN.search(f"{name} {value}") for name, value in given):
        raise BadInput(
            "A token must not be part of an address, where logs and histories keep it.",
            "Send it in the header Authorization, and revoke the one that was sent.",
        )

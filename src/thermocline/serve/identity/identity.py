"""Who asks: a token, a JWT, or anybody on this machine while it listens to nobody else.

A request that shows something is judged by it: a wrong token is never taken for no token.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.config import Settings
from thermocline.errors import ConfigError
from thermocline.serve.failures import Unauthenticated
from thermocline.serve.identity.signed import Signed, refused
from thermocline.serve.identity.tokens import PREFIX, Tokens
from thermocline.serve.values import Caller

if TYPE_CHECKING:
    from starlette.requests import Request

ANYBODY = Caller()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Identity:
    """Says who asks. `open` is whether a request without a token is anybody's."""

    def __init__(
        self,
        tokens: Tokens,
        signed: Signed | None = None,
        *,
        open: bool = False,
        roles: Iterable[str] = (),
    ) -> None:
        self._tokens = tokens
        self._signed = signed
        self._roles = frozenset(roles)
        self.open = open

    def __call__(self, request: Request) -> Caller:
        """The caller of a request. Raises Unauthenticated."""
        return self.of(request.headers.getlist("authorization"))

    def of(self, given: list[str]) -> Caller:
        """The caller who sent these Authorization headers. Raises Unauthenticated."""
        if not given:
            if self.open:
                return ANYBODY
            raise Unauthenticated(
                "This server answers only callers with a token.",
                "Send the header Authorization: Bearer TOKEN; `thermo token create` makes one.",
            )
        if len(given) > 1:
            raise refused()
        scheme, _, value = given[0].partition(" ")
        caller = self._known(scheme.lower(), value.strip())
        if self._roles and not self._roles.issuperset(caller.roles):
            raise refused()  # of a role that was removed, and with it what it allowed
        return caller

    def _known(self, scheme: str, value: str) -> Caller:
        if scheme == "basic":
            # What BI tools offer as user and password: the token's name and the token.
            name, value = _user_and_password(value)
        elif scheme == "bearer":
            name = None
        else:
            raise refused()
        caller: Caller | None = None
        if value.startswith(PREFIX):
            caller = self._tokens.caller(value)
        elif self._signed is not None:
            caller = self._signed.caller(value)
        if caller is None or name not in (None, caller.name):
            raise refused()
        return caller


def _user_and_password(value: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise refused() from None
    name, separator, password = text.partition(":")
    if not separator:
        raise refused()
    return name, password


def identity(settings: Settings, project: Path | None = None) -> Identity:
    """The identity of a server by its settings. Refuses to leave it open to other machines."""
    project = project or settings.project
    tokens = Tokens(project)
    wants_jwt = settings.jwt.algorithm is not None
    signed = Signed(settings.jwt, project) if wants_jwt else None
    local = is_loopback(settings.serve.host)
    if not local and signed is None and not tokens.all():
        raise ConfigError(
            f"Listening on {settings.serve.host} would let every machine that reaches it read.",
            "Make a token first (thermo token create NAME), set [serve.jwt], or use 127.0.0.1.",
            key="serve.host",
        )
    required = not local or signed is not None or settings.serve.tokens_required
    return Identity(tokens, signed, open=not required, roles=settings.serve.roles)

"""Authenticate callers: by a token, by a JWT, or anonymously on a server that only listens locally.

A wrong token is always refused; it is never treated as no token.
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
from thermocline.serve.identity.jwt_verifier import JwtVerifier, invalid_token
from thermocline.serve.identity.token_store import PREFIX, TokenStore
from thermocline.serve.values import Caller

if TYPE_CHECKING:
    from starlette.requests import Request

ANONYMOUS = Caller()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Authenticator:
    """Authenticates requests. `open` is whether requests without a token are accepted."""

    def __init__(
        self,
        tokens: TokenStore,
        signed: JwtVerifier | None = None,
        *,
        open: bool = False,
        roles: Iterable[str] = (),
    ) -> None:
        self._tokens = tokens
        self._signed = signed
        self._roles = frozenset(roles)
        self.open = open

    def __call__(self, request: Request) -> Caller:
        """Return the caller of a request. Raises Unauthenticated."""
        return self.authenticate(request.headers.getlist("authorization"))

    def authenticate(self, headers: list[str]) -> Caller:
        """Return the caller with these Authorization headers. Raises Unauthenticated."""
        if not headers:
            if self.open:
                return ANONYMOUS
            raise Unauthenticated(
                "This server answers only callers with a token.",
                "Send the header Authorization: Bearer TOKEN; `thermo token create` creates one.",
            )
        if len(headers) > 1:
            raise invalid_token()
        scheme, _, value = headers[0].partition(" ")
        caller = self._find_caller(scheme.lower(), value.strip())
        if self._roles and not self._roles.issuperset(caller.roles):
            raise invalid_token()  # its role was removed from `serve.roles`
        return caller

    def _find_caller(self, scheme: str, value: str) -> Caller:
        if scheme == "basic":
            # BI tools send user and password: the token's name and the token.
            name, value = _user_and_password(value)
        elif scheme == "bearer":
            name = None
        else:
            raise invalid_token()
        caller: Caller | None = None
        if value.startswith(PREFIX):
            caller = self._tokens.find_caller(value)
        elif self._signed is not None:
            caller = self._signed.find_caller(value)
        if caller is None or name not in (None, caller.name):
            raise invalid_token()
        return caller


def _user_and_password(value: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise invalid_token() from None
    name, separator, password = text.partition(":")
    if not separator:
        raise invalid_token()
    return name, password


def build_authenticator(settings: Settings, project: Path | None = None) -> Authenticator:
    """Return the authenticator of a server. Refuses to open it to other machines without tokens."""
    project = project or settings.project
    tokens = TokenStore(project)
    uses_jwt = settings.jwt.algorithm is not None
    signed = JwtVerifier(settings.jwt, project) if uses_jwt else None
    local = is_loopback(settings.serve.host)
    if not local and signed is None and not tokens.all():
        raise ConfigError(
            f"Listening on {settings.serve.host} would let every machine that reaches it read.",
            "Create a token first (thermo token create NAME), set [serve.jwt], or use 127.0.0.1.",
            key="serve.host",
        )
    required = not local or signed is not None or settings.serve.tokens_required
    return Authenticator(tokens, signed, open=not required, roles=settings.serve.roles)

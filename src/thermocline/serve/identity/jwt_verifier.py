"""Verify JWTs: callers that an external issuer authenticates with a signature.

Nothing in a token chooses how it is verified. Algorithm, issuer, audience and keys are settings;
the token's `kid` only picks one of the configured keys, and a header that brings or points to a
key, or requires an extension (`crit`), is refused before the signature is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thermocline.config import JwtSettings
from thermocline.errors import ConfigError
from thermocline.serve.failures import Unauthenticated
from thermocline.serve.values import Caller

MIN_SECRET_BYTES = 32
ALLOWED_HEADERS = frozenset({"alg", "typ", "kid"})
"""The allowed header fields. jku, jwk, x5u, x5c and crit would let the token choose its key."""

MAX_TOKEN_CHARACTERS = 8_000
_REQUIRED = ["exp", "iss", "aud", "sub"]


class JwtVerifier:
    """Verifies JWTs by the settings. Raises ConfigError when they are incomplete."""

    def __init__(self, settings: JwtSettings, project: Path) -> None:
        import jwt

        if not (settings.algorithm and settings.issuer and settings.audience):
            raise ConfigError(
                "JWTs need an algorithm, an issuer and an audience.",
                "Set algorithm, issuer and audience under [serve.jwt].",
            )
        self._algorithm = settings.algorithm
        self._issuer = settings.issuer
        self._audience = settings.audience
        self._roles = settings.roles_claim
        self._keys: dict[str | None, Any] = {
            kid: text
            if self._algorithm == "HS256"
            else _load_public_key(kid, text, self._algorithm)
            for kid, text in _load_keys(settings, project).items()
        }
        self._decode = jwt.decode
        self._header = jwt.get_unverified_header
        self._invalid = jwt.InvalidTokenError

    def find_caller(self, token: str) -> Caller:
        """Return the caller of a token. Raises Unauthenticated, without the reason."""
        try:
            claims = self._decode(
                token,
                self._select_key(token),
                algorithms=[self._algorithm],
                audience=self._audience,
                issuer=self._issuer,
                options={"require": _REQUIRED, "verify_signature": True},
            )
            return Caller(
                _check_subject(claims["sub"]), self._parse_roles(claims.get(self._roles, []))
            )
        # ValueError and TypeError: parsers raise these for hostile headers or claims.
        except (self._invalid, ValueError, TypeError, KeyError, RecursionError):
            raise invalid_token() from None

    def _select_key(self, token: str) -> Any:
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise ValueError
        header = self._header(token)
        if not set(header) <= ALLOWED_HEADERS or header.get("alg") != self._algorithm:
            raise ValueError
        kid = header.get("kid")
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys[kid]

    def _parse_roles(self, roles: Any) -> tuple[str, ...]:
        given = roles.split() if isinstance(roles, str) else roles
        if not isinstance(given, list) or not all(isinstance(role, str) for role in given):
            raise ValueError
        return tuple(dict.fromkeys(given))


def invalid_token() -> Unauthenticated:
    """Return the same error for every invalid token, so that it helps no attacker."""
    return Unauthenticated(
        "The token is not valid: it is unknown, expired, revoked or not meant for this server.",
        "Create a new one: thermo token create NAME",
    )


def _check_subject(subject: Any) -> str:
    if not isinstance(subject, str) or not 0 < len(subject) <= 200 or not subject.isprintable():
        raise ValueError
    return subject


def _load_keys(settings: JwtSettings, project: Path) -> dict[str | None, str]:
    """Return the configured keys by id. A public key is never used as an HMAC secret."""
    if settings.algorithm == "HS256":
        secret = settings.secret.reveal() if settings.secret else ""
        if len(secret.encode()) < MIN_SECRET_BYTES or settings.keys:
            raise ConfigError(
                f"HS256 needs a serve.jwt.secret of {MIN_SECRET_BYTES} bytes or more, and no keys.",
                "Set THERMOCLINE_SERVE__JWT__SECRET, or use RS256 or ES256 with public keys.",
            )
        return {None: secret}
    if settings.secret or not settings.keys:
        raise ConfigError(
            f"{settings.algorithm} needs public keys in serve.jwt.keys, and no serve.jwt.secret.",
            'Write [serve.jwt.keys] with a line such as key-1 = "keys/issuer.pem".',
        )
    found: dict[str | None, str] = {}
    for kid, name in settings.keys.items():
        try:
            found[kid] = (project / name).read_text(encoding="ascii")
        except (OSError, ValueError):
            raise _invalid_key(kid, "a public key in PEM") from None
    return found


def _load_public_key(kid: str | None, text: str, algorithm: str) -> Any:
    """Parse a key, which must be public and fit the algorithm."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode())
    except ValueError:
        raise _invalid_key(kid, "a public key in PEM") from None
    if algorithm == "RS256" and not (isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048):
        raise _invalid_key(kid, "an RSA key of 2048 bits or more")
    if algorithm == "ES256" and not (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        raise _invalid_key(kid, "a key on the curve P-256")
    return key


def _invalid_key(kid: str | None, wanted: str) -> ConfigError:
    return ConfigError(
        f"serve.jwt.keys: the file of {kid!r} does not hold {wanted}.",
        "Give the issuer's public key, beginning with -----BEGIN PUBLIC KEY-----.",
    )

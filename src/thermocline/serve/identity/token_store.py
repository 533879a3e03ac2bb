"""The tokens of a project: a file of hashes, which is read again whenever it changed.

A token is 256 random bits and is shown once. Its SHA-256 is stored: 2^256 values cannot be guessed,
so a slow hash such as scrypt, which protects guessable passwords, would add nothing here and slow
down every request.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from thermocline import telemetry
from thermocline.config import private_files
from thermocline.errors import BadInput, ConfigError, NotFound
from thermocline.serve.values import Caller

FILE = "tokens.json"
PREFIX = "thermo_"
"""The prefix of every token, so that scanners for leaked secrets recognize it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Token:
    """A stored token: its hash and metadata."""

    name: str
    roles: tuple[str, ...]
    sha256: str
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None

    def state(self, now: datetime) -> str:
        """Return `valid`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"


class TokenStore:
    """The tokens of a project. Reads take no lock; changes are serialized."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._path = project / private_files.FOLDER / FILE
        self._file_version: tuple[int, int, int] | None = None
        self._by_hash: dict[str, Token] = {}

    def find_caller(self, token: str) -> Caller | None:
        """Return the caller of a valid token, otherwise None. Revocations take effect at once."""
        self._reload_if_changed()
        digest = _digest(token)
        # The timing of a lookup by hash reveals nothing: an attacker cannot choose hashes.
        found = self._by_hash.get(digest)
        if found is None or not hmac.compare_digest(found.sha256, digest):
            return None
        if found.state(datetime.now(UTC)) != "valid":
            return None
        return Caller(found.name, found.roles)

    def all(self) -> list[Token]:
        """Return all tokens, including expired and revoked ones, oldest first."""
        return list(_load_tokens(self._path))

    def create(self, name: str, roles: Sequence[str] = (), days: int | None = None) -> str:
        """Create and return a token: this is the only time that it is visible."""
        for word in (name, *roles):
            if not _NAME.fullmatch(word) or word == Caller().name:
                raise BadInput(
                    f"{word[:80]!r} cannot be a name.",
                    "Use letters, digits and . _ @ - (64 at most), no sign first, not anonymous.",
                )
        now = datetime.now(UTC)
        token = PREFIX + secrets.token_urlsafe(32)
        expires = None if days is None else now + timedelta(days=days)
        created = Token(name, tuple(dict.fromkeys(roles)), _digest(token), now, expires)
        with self._locked_tokens() as tokens:
            if any(old.name == name and old.state(now) == "valid" for old in tokens):
                raise BadInput(
                    f"There is a token {name!r} already.",
                    f"Choose another name, or revoke it: thermo token revoke {name}",
                )
            tokens.append(created)
        return token

    def revoke(self, name: str) -> None:
        """Revoke a token."""
        now = datetime.now(UTC)
        with self._locked_tokens() as tokens:
            valid = [i for i, old in enumerate(tokens) if old.name == name and not old.revoked]
            if not valid:
                raise NotFound(
                    f"There is no token {name[:80]!r}.", "`thermo token list` shows all."
                )
            for index in valid:
                tokens[index] = replace(tokens[index], revoked=now)

    @contextmanager
    def _locked_tokens(self) -> Iterator[list[Token]]:
        with private_files.ensure_file(self._project, "tokens.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = list(_load_tokens(self._path))
            yield tokens
            private_files.write_json(
                self._path, {"version": 1, "tokens": [_encode_token(t) for t in tokens]}
            )

    def _reload_if_changed(self) -> None:
        """Read the file again if it changed."""
        try:
            status = self._path.stat()
        except OSError:
            self._file_version, self._by_hash = None, {}
            return
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        if mark == self._file_version:
            return
        self._file_version, self._by_hash = mark, {}
        try:
            self._by_hash = {token.sha256: token for token in _load_tokens(self._path)}
        except ConfigError as error:
            # A file that cannot be trusted grants no access.
            telemetry.log("serve", "tokens not read", level="ERROR", cause=error.cause)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _encode_token(token: Token) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(token).items()
    }


def _load_tokens(path: Path) -> Iterator[Token]:
    try:
        if path.stat().st_mode & 0o022:
            raise ConfigError(f"{path.name} can be changed by others.", f"Run: chmod 600 {path}")
        document = json.loads(path.read_text(encoding="utf-8"))
        tokens = [_decode_token(entry) for entry in document["tokens"]]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path.name} cannot be read: {type(error).__name__}.",
            f"Fix {path}, or remove it and create new tokens.",
        ) from None
    yield from tokens


def _decode_token(entry: dict[str, Any]) -> Token:
    def moment(name: str) -> datetime | None:
        found = datetime.fromisoformat(entry[name]) if entry.get(name) else None
        return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found

    created = moment("created") or datetime.fromtimestamp(0, UTC)
    roles = tuple(str(role) for role in entry["roles"])
    return Token(
        str(entry["name"]),
        roles,
        str(entry["sha256"]),
        created,
        moment("expires"),
        moment("revoked"),
    )

"""Tokens: who may ask, as a file of hashes that is looked at anew whenever it changed.

A token is 256 random bits and is shown once. What is kept is its SHA-256: nobody can guess their
way through 2^256 values, so a slow hash such as scrypt, which makes up for passwords that can be
guessed, would protect nothing here and cost every request its time.
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
"""Begins every token, so that scanners for leaked secrets know one when they see it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Token:
    """A token as it is kept: everything but itself."""

    name: str
    roles: tuple[str, ...]
    sha256: str
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None

    def state(self, now: datetime) -> str:
        """valid, expired or revoked."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"


class Tokens:
    """The tokens of a project. Reading takes no lock; changes happen one after the other."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._path = project / private_files.FOLDER / FILE
        self._seen: tuple[int, int, int] | None = None
        self._by_hash: dict[str, Token] = {}

    def caller(self, token: str) -> Caller | None:
        """Whose valid token this is; None when it is nobody's. A revocation counts at once."""
        self._look()
        digest = _digest(token)
        # Finding by hash tells an attacker nothing: hashes of chosen texts cannot be steered.
        found = self._by_hash.get(digest)
        if found is None or not hmac.compare_digest(found.sha256, digest):
            return None
        if found.state(datetime.now(UTC)) != "valid":
            return None
        return Caller(found.name, found.roles)

    def all(self) -> list[Token]:
        """Every token there is or was, oldest first."""
        return list(_read(self._path))

    def create(self, name: str, roles: Sequence[str] = (), days: int | None = None) -> str:
        """Make a token and give it: this is the only time that it can be seen."""
        for word in (name, *roles):
            if not _NAME.fullmatch(word) or word == Caller().name:
                raise BadInput(
                    f"{word[:80]!r} cannot be a name.",
                    "Use letters, digits and . _ @ - (64 at most), no sign first, not anonymous.",
                )
        now = datetime.now(UTC)
        token = PREFIX + secrets.token_urlsafe(32)
        expires = None if days is None else now + timedelta(days=days)
        made = Token(name, tuple(dict.fromkeys(roles)), _digest(token), now, expires)
        with self._changing() as tokens:
            if any(old.name == name and old.state(now) == "valid" for old in tokens):
                raise BadInput(
                    f"There is a token {name!r} already.",
                    f"Choose another name, or revoke it: thermo token revoke {name}",
                )
            tokens.append(made)
        return token

    def revoke(self, name: str) -> None:
        """Make a token worthless from now on."""
        now = datetime.now(UTC)
        with self._changing() as tokens:
            valid = [i for i, old in enumerate(tokens) if old.name == name and not old.revoked]
            if not valid:
                raise NotFound(f"There is no token {name[:80]!r}.", "`thermo token list` has all.")
            for index in valid:
                tokens[index] = replace(tokens[index], revoked=now)

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        with private_files.ensure_file(self._project, "tokens.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = list(_read(self._path))
            yield tokens
            private_files.write_json(
                self._path, {"version": 1, "tokens": [_written(t) for t in tokens]}
            )

    def _look(self) -> None:
        """Read the file again when it is another one than last time."""
        try:
            status = self._path.stat()
        except OSError:
            self._seen, self._by_hash = None, {}
            return
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        if mark == self._seen:
            return
        self._seen, self._by_hash = mark, {}
        try:
            self._by_hash = {token.sha256: token for token in _read(self._path)}
        except ConfigError as error:
            # Nobody gets in by a file that cannot be trusted.
            telemetry.log("serve", "tokens not read", level="ERROR", cause=error.cause)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _written(token: Token) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(token).items()
    }


def _read(path: Path) -> Iterator[Token]:
    try:
        if path.stat().st_mode & 0o022:
            raise ConfigError(f"{path.name} can be changed by others.", f"Run: chmod 600 {path}")
        document = json.loads(path.read_text(encoding="utf-8"))
        tokens = [_token(entry) for entry in document["tokens"]]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path.name} cannot be read: {type(error).__name__}.",
            f"Mend {path}, or remove it and make new tokens.",
        ) from None
    yield from tokens


def _token(entry: dict[str, Any]) -> Token:
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

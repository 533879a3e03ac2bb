"""Names of tables, branches, tags and runs, and their validation."""

from __future__ import annotations

import re
import secrets
import time

from thermocline.errors import BadInput

_NAME_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_REF_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

RUN_PREFIX = "run-"
ENV_PREFIX = "env-"


def validate_table_name(text: str) -> str:
    """Return a table name of the form "layer.name", or raise BadInput."""
    parts = text.split(".")
    if len(parts) != 2 or not all(_NAME_PART.fullmatch(part) for part in parts):
        raise BadInput(
            f"{_abbreviate(text)} is not a table name.",
            "Write it as layer.name, each of letters, digits and underscores.",
        )
    return text


def validate_ref_name(text: str) -> str:
    """Return a valid name of a branch or tag, or raise BadInput."""
    if not _REF_NAME.fullmatch(text) or ".." in text:
        raise BadInput(
            f"{_abbreviate(text)} is not a name for a branch or tag.",
            "Use letters, digits, '-', '_' and '.', beginning with a letter or digit.",
        )
    return text


def env_branch(env: str) -> str:
    """Return the branch of an environment, which has the same name in every table."""
    return ENV_PREFIX + validate_ref_name(env)


def new_run_id() -> str:
    """Return a sortable, unique run id: a ULID of 10 time and 16 random characters."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def run_start_ms(run: str) -> int | None:
    """Return when a run began, in milliseconds since 1970; None if the name is no run id."""
    if len(run) != 26 or any(char not in _ALPHABET for char in run):
        return None
    number = 0
    for char in run[:10]:
        number = number << 5 | _ALPHABET.index(char)
    return number


def _abbreviate(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")

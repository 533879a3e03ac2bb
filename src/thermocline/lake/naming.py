"""Names of tables, branches, tags and runs: one place that says what is allowed."""

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
    """A table's name as "layer.name", or an error that says what is allowed."""
    parts = text.split(".")
    if len(parts) != 2 or not all(_NAME_PART.fullmatch(part) for part in parts):
        raise BadInput(
            f"{_abbreviate(text)} is not a table name.",
            "Write it as layer.name, each of letters, digits and underscores.",
        )
    return text


def validate_ref_name(text: str) -> str:
    """A branch's or tag's name, or an error that says what is allowed."""
    if not _REF_NAME.fullmatch(text) or ".." in text:
        raise BadInput(
            f"{_abbreviate(text)} is not a name for a branch or tag.",
            "Use letters, digits, '-', '_' and '.', beginning with a letter or digit.",
        )
    return text


def env_branch(env: str) -> str:
    """The branch that holds an environment in every table."""
    return ENV_PREFIX + validate_ref_name(env)


def new_run_id() -> str:
    """A sortable, unique run id: 10 characters of time, 16 of chance (a ULID)."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def run_start_ms(run: str) -> int | None:
    """When a run began, in milliseconds since 1970; None for a name that is no run id."""
    if len(run) != 26 or any(char not in _ALPHABET for char in run):
        return None
    number = 0
    for char in run[:10]:
        number = number << 5 | _ALPHABET.index(char)
    return number


def _abbreviate(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")

"""Secrets in a source's file: references to environment variables.

`{secret: NAME}` stands for the value of the environment variable NAME. The file is shared and the
value is not, so a password in the clear is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from thermocline.config.lake_addresses import is_secret_name
from thermocline.errors import ConfigError
from thermocline.telemetry import hide, one_line

REFERENCE = "secret"


def is_reference(value: Any) -> bool:
    """Whether a value is a reference to a secret."""
    return isinstance(value, Mapping) and set(value) == {REFERENCE}


def reveal(value: Any, environ: Mapping[str, str] = os.environ) -> Any:
    """Replace secret references by their values, which are redacted in all later output."""
    if is_reference(value):
        return _read_secret(value[REFERENCE], environ)
    if isinstance(value, Mapping):
        return {key: reveal(inner, environ) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [reveal(inner, environ) for inner in value]
    return value


def find_literal_secret(
    value: Any, path: tuple[str | int, ...] = ()
) -> tuple[str | int, ...] | None:
    """Return the path of a secret in the clear (a secret's name with a literal value), or None."""
    if is_reference(value):
        return None
    if isinstance(value, Mapping):
        for key, inner in value.items():
            here = (*path, str(key))
            if is_secret_name(str(key)) and isinstance(inner, str | int | float) and inner != "":
                return here
            if found := find_literal_secret(inner, here):
                return found
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, inner in enumerate(value):
            if found := find_literal_secret(inner, (*path, index)):
                return found
    return None


def _read_secret(name: Any, environ: Mapping[str, str]) -> str:
    value = environ.get(name) if isinstance(name, str) else None
    if not value:
        raise ConfigError(
            f"The secret {one_line(str(name))} is not set.",
            f"Set the environment variable {one_line(str(name))}.",
        )
    hide([value])
    return value

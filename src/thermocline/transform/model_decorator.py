"""The decorator of Python models: which tables a model reads, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


class ReadMode(StrEnum):
    """How a model reads a table."""

    TABLE = "table"
    """All rows; when the table changes, the model is recomputed."""
    CHANGES = "changes"
    """The rows changed since the last run; `_change` is insert, update or delete."""
    LOOKUP = "lookup"
    """All rows; a change of the table alone does not make the model stale."""


@dataclass(frozen=True)
class Read:
    """One table that a model reads."""

    table: str
    mode: ReadMode = ReadMode.TABLE


def table(name: str) -> Read:
    """Read all rows of a table."""
    return Read(name, ReadMode.TABLE)


def changes(name: str) -> Read:
    """Read the changes of a table since the model's last run."""
    return Read(name, ReadMode.CHANGES)


def lookup(name: str) -> Read:
    """Read all rows of a table whose changes alone do not make the model stale."""
    return Read(name, ReadMode.LOOKUP)


def model(
    reads: Mapping[str, Read], tags: tuple[str, ...] = (), engine: str = "spark"
) -> Callable[[F], F]:
    """Mark a function as the model of its file. `reads` maps its parameters to tables.

    With `engine="polars"` it takes and returns polars frames, and needs no Java.

    The planner reads the decorator from the source text, without importing the file, so that
    planning starts no engine: its arguments must be literals, not computed values.
    """

    def decorate(function: F) -> F:
        function.__thermocline_reads__ = dict(reads)  # type: ignore[attr-defined]
        return function

    return decorate

"""What a Python model says about itself: which tables it reads, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


class How(StrEnum):
    """How a model reads a table."""

    TABLE = "table"
    """All rows; when the table changed, the model is computed again."""
    CHANGES = "changes"
    """The rows that are new since the last run, with `_change` saying insert, update or delete."""
    LOOKUP = "lookup"
    """All rows; a change in it alone is no reason to run."""


@dataclass(frozen=True)
class Read:
    """One table that a model reads."""

    table: str
    how: How = How.TABLE


def table(name: str) -> Read:
    """Read all rows of a table."""
    return Read(name, How.TABLE)


def changes(name: str) -> Read:
    """Read what is new in a table since the model's last run."""
    return Read(name, How.CHANGES)


def lookup(name: str) -> Read:
    """Read all rows of a table whose changes alone are no reason to run."""
    return Read(name, How.LOOKUP)


def model(
    reads: Mapping[str, Read], tags: tuple[str, ...] = (), engine: str = "spark"
) -> Callable[[F], F]:
    """Mark a function as the model of its file. `reads` maps its parameters to tables.

    With `engine="polars"` it gets and gives frames of polars, and needs no Java.

    The planner reads the decorator from the source text, without importing the file, so that
    planning starts no engine: its arguments must be written out, not computed.
    """

    def mark(function: F) -> F:
        function.__thermocline_reads__ = dict(reads)  # type: ignore[attr-defined]
        return function

    return mark

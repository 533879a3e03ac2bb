"""What commits consume, as values.

They are stored as rows in the catalog's database (`consumption_store`), or on a REST catalog in the
snapshots and in files of the table (`carried_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class LandedFile:
    """A file that landed in a table: its content hash, and its attributes in the landing folder."""

    content: str
    name: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class SourcePosition:
    """The position that a source was read up to by one batch of a stream."""

    source: str
    stream: str
    sequence: int
    position: str


@dataclass(frozen=True)
class Consumption:
    """What one commit consumed: recorded with the commit, or not at all."""

    files: tuple[LandedFile, ...] = ()
    positions: tuple[SourcePosition, ...] = ()
    lost_names: frozenset[str] = frozenset()
    """Names of files that landed before snapshots expired without their state."""
    lost_contents: frozenset[str] = frozenset()
    """Hashes of such files, as far as the quarantine has them."""


GAP = ""
"""In place of a file's name: snapshots expired without the record of what they consumed."""


def make_gap(until_ns: int) -> Consumption:
    """Return the record that what was consumed before a time is not known."""
    return Consumption((LandedFile(f"gap-{until_ns}", GAP, -1, until_ns),))


@dataclass(frozen=True)
class RowMoves:
    """The moves of a table's consumption rows when its snapshots expire.

    An *anchor* replaces expired snapshots. It is bound to kept snapshots that descend from all of
    them, so that its rows count for every ancestry with such a snapshot. So only the rows of newly
    expired snapshots move, however many moved before.
    """

    uuid: str
    anchors: Mapping[int, int]
    """By snapshot whose rows move, its anchor."""
    bindings: Mapping[int, frozenset[int]]
    """By anchor of the table, the kept snapshots that it is now bound to."""
    expired: frozenset[int]
    bookmarked: frozenset[tuple[str, str, int]] = frozenset()
    """Source, stream and sequence in the bookmarks of kept snapshots."""


@dataclass(frozen=True)
class ConsumptionRows:
    """The rows that a publish writes in the transaction that moves the pointers."""

    consumed: tuple[tuple[str, int, Consumption], ...] = ()
    """The table's uuid, the snapshot of the commit, and what it consumed."""
    consumers: tuple[tuple[str, str, int], ...] = ()
    """The source, its consumer, and the snapshot that the consumer continues from."""
    moves: tuple[RowMoves, ...] = ()

    def extend(self, **more: Any) -> ConsumptionRows:
        """Return the rows with more rows in some fields."""
        return replace(self, **{k: (*getattr(self, k), *found) for k, found in more.items()})

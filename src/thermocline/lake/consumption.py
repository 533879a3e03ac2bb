"""What commits consume, as values that are written beside the tables' pointers; see lake.beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class LandedFile:
    """A file that a table holds: its content's hash, and how it was seen in the landing folder."""

    content: str
    name: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class SourcePosition:
    """How far a source was read by the n-th batch of a stream."""

    source: str
    stream: str
    sequence: int
    position: str


@dataclass(frozen=True)
class Consumption:
    """What one commit consumed: it lands with the commit, or not at all."""

    files: tuple[LandedFile, ...] = ()
    positions: tuple[SourcePosition, ...] = ()


@dataclass(frozen=True)
class RowMoves:
    """Where rows go when snapshots of a table expire.

    An *anchor* stands for snapshots that are gone. It is bound to kept ones that descend from all
    of them, so that a row there counts for whoever has such a snapshot in its ancestry. So only the
    rows of what expires now are moved, however many were carried on before.
    """

    uuid: str
    anchors: Mapping[int, int]
    """Of each snapshot whose rows are carried on, its anchor."""
    bindings: Mapping[int, frozenset[int]]
    """Of every anchor of the table, the kept snapshots that it is bound to from now on."""
    expired: frozenset[int]
    named: frozenset[tuple[str, str, int]] = frozenset()
    """Source, stream and sequence, by the bookmarks of the snapshots that are kept."""


@dataclass(frozen=True)
class ConsumptionRows:
    """What a publish writes beside the pointers."""

    consumed: tuple[tuple[str, int, Consumption], ...] = ()
    """By the table's uuid, and the snapshot of the commit."""
    consumers: tuple[tuple[str, str, int], ...] = ()
    """Of each source its consumer, and the snapshot from which that one goes on."""
    moves: tuple[RowMoves, ...] = ()

    def plus(self, **more: Any) -> ConsumptionRows:
        """The rows with more of a kind."""
        return replace(self, **{k: (*getattr(self, k), *found) for k, found in more.items()})

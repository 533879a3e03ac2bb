"""What each node should hold after a look: decided from what was seen, asked and placed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from thermocline.serve.keeper import policy as policies
from thermocline.serve.keeper.asked import Asked
from thermocline.serve.keeper.placing import fitting, place

if TYPE_CHECKING:
    from thermocline.serve.keeper.heads import Sight
    from thermocline.serve.terms import Held

STAYING = 2.0
"""A table that is held must be outbid by so much, so that two of a kind do not take turns."""


@dataclass(frozen=True)
class Want:
    """A table that a node should hold: as it was seen, from when on, and what that is worth."""

    sight: Sight
    since: datetime | None
    value: float = 0.0

    @property
    def rank(self) -> tuple[float, int, str]:
        """In which order tables are brought: the most valuable first, of equal ones the smaller."""
        head = self.sight.head
        return -self.value, head.files.total.bytes, head.table


@dataclass(frozen=True)
class Goal:
    """All that a node should hold of one look; what it has beyond that it gives up."""

    look: int
    wants: Mapping[str, Want]


@dataclass(frozen=True)
class Room:
    """A node as the plan sees it: what it holds, and how much it was found to have room for."""

    held: Mapping[str, Held]
    bytes: int = sys.maxsize


def goals(
    look: int,
    sights: Mapping[str, Sight],
    nodes: Mapping[str, Room],
    places: Collection[str],
    asked: Asked,
    policy: policies.Policy,
    now: datetime,
) -> dict[str, Goal]:
    """The goal of each node that is there, all of which have a place in `places`.

    A node that is gone for a moment keeps its place, so that its tables do not move twice. A
    table that moves is given up only when its new node has it.
    """
    hot = {table: sight for table, sight in sights.items() if sight.head.hot is not None}
    since = {table: policies.since(sight.head, now) for table, sight in hot.items()}
    sizes = {table: sight.needed(since[table]) for table, sight in hot.items()}
    small = [table for table, sight in hot.items() if policies.is_small(sight.head, policy)]
    large = {table: size for table, size in sizes.items() if table not in set(small)}
    keys = asked.groups(large, policy.budget)
    first = place(keys, places, everywhere=small)
    placed = place(keys, places, replicas=policy.replicas, everywhere=small)
    wanted = {
        node: _affordable(
            tables, first[node], sizes, nodes.get(node, Room({})), asked, policy.budget
        )
        for node, tables in placed.items()
    }
    found = {}
    for node, room in nodes.items():
        leaving = {t for t in room.held if t in hot and _awaited(t, node, wanted, nodes)}
        found[node] = Goal(
            look,
            {
                table: Want(hot[table], since[table], asked.value(table))
                for table in wanted.get(node, frozenset()) | leaving
            },
        )
    return found


def _affordable(
    tables: frozenset[str],
    first: frozenset[str],
    sizes: Mapping[str, int],
    room: Room,
    asked: Asked,
    budget: int,
) -> frozenset[str]:
    """The tables that a node has room for; of those that it holds, the real size counts.

    Further copies have what the first ones of other tables leave: better all once than some twice.
    """

    def value(table: str) -> float:
        return asked.value(table) * (STAYING if table in room.held else 1.0)

    real = {t: room.held[t].bytes if t in room.held else sizes[t] for t in tables}
    budget = min(budget, room.bytes)
    chosen = fitting(first, real, value, budget)
    left = budget - sum(real[table] for table in chosen)
    return chosen | fitting(tables - first, real, value, left)


def _awaited(
    table: str,
    node: str,
    wanted: Mapping[str, Collection[str]],
    nodes: Mapping[str, Room],
) -> bool:
    """Whether another node is to have a table and does not have it yet."""
    owners = [name for name, tables in wanted.items() if table in tables and name != node]
    return any(owner not in nodes or table not in nodes[owner].held for owner in owners)

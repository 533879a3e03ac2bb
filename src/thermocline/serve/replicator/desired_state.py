"""What each node should hold after a look: decided from what was seen, asked and placed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from thermocline.serve.replicator import policy as policies
from thermocline.serve.replicator.placement import place_tables, select_fitting
from thermocline.serve.replicator.query_log import QueryLog

if TYPE_CHECKING:
    from thermocline.serve.replicator.catalog_poller import PolledTable
    from thermocline.serve.values import HotCopy

STICKINESS = 2.0
"""A table that is held must be outbid by so much, so that two of a kind do not take turns."""


@dataclass(frozen=True)
class DesiredCopy:
    """A table that a node should hold: as it was seen, from when on, and what that is worth."""

    polled: PolledTable
    since: datetime | None
    value: float = 0.0

    @property
    def rank(self) -> tuple[float, int, str]:
        """In which order tables are brought: the most valuable first, of equal ones the smaller."""
        head = self.polled.head
        return -self.value, head.files.total.bytes, head.table


@dataclass(frozen=True)
class DesiredState:
    """All that a node should hold of one look; what it has beyond that it gives up."""

    poll: int
    copies: Mapping[str, DesiredCopy]


@dataclass(frozen=True)
class NodeCapacity:
    """A node as the plan sees it: what it holds, and how much it was found to have room for."""

    hot_copies: Mapping[str, HotCopy]
    bytes: int = sys.maxsize


def plan_desired_states(
    poll: int,
    polled: Mapping[str, PolledTable],
    nodes: Mapping[str, NodeCapacity],
    places: Collection[str],
    query_log: QueryLog,
    policy: policies.Policy,
    now: datetime,
) -> dict[str, DesiredState]:
    """The goal of each node that is there, all of which have a place in `places`.

    A node that is gone for a moment keeps its place, so that its tables do not move twice. A
    table that moves is given up only when its new node has it.
    """
    hot = {name: table for name, table in polled.items() if table.head.hot is not None}
    since = {name: policies.window_start(table.head, now) for name, table in hot.items()}
    sizes = {name: table.estimate_bytes(since[name]) for name, table in hot.items()}
    small = [name for name, table in hot.items() if policies.is_small(table.head, policy)]
    large = {table: size for table, size in sizes.items() if table not in set(small)}
    keys = query_log.group_tables(large, policy.budget)
    first = place_tables(keys, places, everywhere=small)
    placed = place_tables(keys, places, replicas=policy.replicas, everywhere=small)
    wanted = {
        node: _select_affordable(
            tables, first[node], sizes, nodes.get(node, NodeCapacity({})), query_log, policy.budget
        )
        for node, tables in placed.items()
    }
    found = {}
    for node, capacity in nodes.items():
        leaving = {
            t
            for t in capacity.hot_copies
            if t in hot and _is_awaited_elsewhere(t, node, wanted, nodes)
        }
        found[node] = DesiredState(
            poll,
            {
                table: DesiredCopy(hot[table], since[table], query_log.weight(table))
                for table in wanted.get(node, frozenset()) | leaving
            },
        )
    return found


def _select_affordable(
    tables: frozenset[str],
    first: frozenset[str],
    sizes: Mapping[str, int],
    capacity: NodeCapacity,
    query_log: QueryLog,
    budget: int,
) -> frozenset[str]:
    """The tables that a node has room for; of those that it holds, the real size counts.

    Further copies have what the first ones of other tables leave: better all once than some twice.
    """

    def value(table: str) -> float:
        return query_log.weight(table) * (STICKINESS if table in capacity.hot_copies else 1.0)

    real = {
        t: capacity.hot_copies[t].bytes if t in capacity.hot_copies else sizes[t] for t in tables
    }
    budget = min(budget, capacity.bytes)
    chosen = select_fitting(first, real, value, budget)
    left = budget - sum(real[table] for table in chosen)
    return chosen | select_fitting(tables - first, real, value, left)


def _is_awaited_elsewhere(
    table: str,
    node: str,
    wanted: Mapping[str, Collection[str]],
    nodes: Mapping[str, NodeCapacity],
) -> bool:
    """Whether another node is to have a table and does not have it yet."""
    owners = [name for name, tables in wanted.items() if table in tables and name != node]
    return any(owner not in nodes or table not in nodes[owner].hot_copies for owner in owners)

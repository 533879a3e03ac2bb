"""Plan which copies each node should hold: from the polled tables, the query log and placement."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from thermocline.serve.replicator import hot_policy as policies
from thermocline.serve.replicator.placement import place_tables, select_fitting
from thermocline.serve.replicator.query_log import QueryLog

if TYPE_CHECKING:
    from thermocline.serve.replicator.catalog_poller import PolledTable
    from thermocline.serve.values import HotCopy

STICKINESS = 2.0
"""The weight of a held table is multiplied by this, so that similar tables do not alternate."""


@dataclass(frozen=True)
class DesiredCopy:
    """A copy that a node should hold: the polled table, the start of its window, its value."""

    polled: PolledTable
    since: datetime | None
    value: float = 0.0

    @property
    def rank(self) -> tuple[float, int, str]:
        """The sort key for building copies: the most valuable first, of equal ones the smaller."""
        head = self.polled.head
        return -self.value, head.files.total.bytes, head.table


@dataclass(frozen=True)
class DesiredState:
    """All copies that a node should hold at one poll; it drops any others."""

    poll: int
    copies: Mapping[str, DesiredCopy]


@dataclass(frozen=True)
class NodeCapacity:
    """A node as the plan sees it: its copies, and its capacity as observed."""

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
    """Return the desired state of each node; `places` are all nodes for placement.

    A node that is down for a moment keeps its place, so that its tables do not move twice. A table
    that moves is dropped only when its new node has it.
    """
    hot = {name: table for name, table in polled.items() if table.head.hot is not None}
    since = {name: policies.window_start(table.head, now) for name, table in hot.items()}
    sizes = {name: table.estimate_bytes(since[name]) for name, table in hot.items()}
    small = [name for name, table in hot.items() if policies.is_small(table.head, policy)]
    large = {table: size for table, size in sizes.items() if table not in set(small)}
    keys = query_log.group_tables(large, policy.budget)
    first = place_tables(keys, places, everywhere=small)
    placement = place_tables(keys, places, replicas=policy.replicas, everywhere=small)
    assigned = {
        node: _select_affordable(
            tables, first[node], sizes, nodes.get(node, NodeCapacity({})), query_log, policy.budget
        )
        for node, tables in placement.items()
    }
    found = {}
    for node, capacity in nodes.items():
        leaving = {
            t
            for t in capacity.hot_copies
            if t in hot and _is_awaited_elsewhere(t, node, assigned, nodes)
        }
        found[node] = DesiredState(
            poll,
            {
                table: DesiredCopy(hot[table], since[table], query_log.weight(table))
                for table in assigned.get(node, frozenset()) | leaving
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
    """Return the tables that fit on a node; for those that it holds, their actual size counts.

    Replicas get the room that first copies leave: better all tables once than some twice.
    """

    def value(table: str) -> float:
        return query_log.weight(table) * (STICKINESS if table in capacity.hot_copies else 1.0)

    real = {
        t: capacity.hot_copies[t].bytes if t in capacity.hot_copies else sizes[t] for t in tables
    }
    budget = min(budget, capacity.bytes)
    chosen = select_fitting(first, real, value, budget)
    remaining = budget - sum(real[table] for table in chosen)
    return chosen | select_fitting(tables - first, real, value, remaining)


def _is_awaited_elsewhere(
    table: str,
    node: str,
    assigned: Mapping[str, Collection[str]],
    nodes: Mapping[str, NodeCapacity],
) -> bool:
    """Return whether another node should have a table and does not have it yet."""
    owners = [name for name, tables in assigned.items() if table in tables and name != node]
    return any(owner not in nodes or table not in nodes[owner].hot_copies for owner in owners)

"""Which node holds which tables.

Tables are placed by consistent hashing on their names, so that a node that joins or leaves moves
only what it takes or gave. Tables that are small and held whole are everywhere, so that every node
can join them with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

Placement = dict[str, frozenset[str]]
"""Node → the tables it should hold."""


def place_tables(
    keys: Mapping[str, str],
    nodes: Collection[str],
    *,
    replicas: int = 1,
    everywhere: Collection[str] = (),
) -> Placement:
    """Place tables on nodes; `keys` maps each to the table whose name is hashed for it.

    Each is on `replicas` nodes, or on all of them when there are fewer. Whoever asks again with
    one node less finds every table where it was, but for those of that node.
    """
    if not nodes:
        return {}
    names, copies = tuple(sorted(nodes)), min(replicas, len(nodes))
    found: dict[str, set[str]] = {node: set(everywhere) for node in nodes}
    for table, key in keys.items():
        for node in _pick_nodes(key, names, copies):
            found[node].add(table)
    return {node: frozenset(tables) for node, tables in found.items()}


@lru_cache(maxsize=50_000)
def _pick_nodes(key: str, nodes: tuple[str, ...], copies: int) -> tuple[str, ...]:
    """The nodes that a key is placed on: the same for as long as the nodes are."""
    return tuple(each["nodename"] for each in _ring(nodes).range(key, size=copies, unique=True))


@lru_cache(maxsize=16)
def _ring(nodes: tuple[str, ...]) -> Any:
    from uhashring import HashRing  # type: ignore[import-untyped]

    return HashRing(nodes=list(nodes))


def select_fitting(
    tables: Collection[str],
    sizes: Mapping[str, int],
    value: Callable[[str], float],
    budget: int,
) -> frozenset[str]:
    """The tables that a node has room for: the most valuable first, of equal ones the smaller."""
    chosen = set()
    for table in sorted(tables, key=lambda t: (-value(t), sizes[t], t)):
        if sizes[table] <= budget:
            budget -= sizes[table]
            chosen.add(table)
    return frozenset(chosen)

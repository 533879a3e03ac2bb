"""Place tables on nodes.

Tables are placed by consistent hashing of their names, so that a node that joins or leaves moves
only its own tables. Small tables that are held whole are on every node, so that every node can join
them with its own.
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

    Each is on `replicas` nodes, or on all of them when there are fewer. With one node
    less, only the tables of that node move.
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
    """Return the nodes of a key."""
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
    """Return the tables that fit on a node: the most valuable first, of equal ones the smaller."""
    chosen = set()
    for table in sorted(tables, key=lambda t: (-value(t), sizes[t], t)):
        if sizes[table] <= budget:
            budget -= sizes[table]
            chosen.add(table)
    return frozenset(chosen)

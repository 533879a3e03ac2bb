"""Cached routes: when they are valid, and which access path comes first.

A dashboard's queries repeat hundreds of times between two commits. A route depends on the query's
tables, their hot copies and the available engines; while those are the same, so is the route,
whatever is committed to other tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from weakref import ref

from thermocline.serve.route import AccessPath, Route
from thermocline.serve.values import HotCopy, LakeState, TableHead

_Copies = tuple[tuple[str, tuple[HotCopy | None, ...]], ...]


@dataclass(frozen=True)
class CachedRoute:
    """A route and everything that it was decided from; `available` are the engines.

    Prepared queries are cached for long: weak references keep no outdated table heads alive.
    """

    route: Route
    available: tuple[object, ...]
    _heads: tuple[tuple[str, ref[TableHead]], ...]
    _copies: _Copies

    @classmethod
    def from_decision(
        cls,
        route: Route,
        tables: Iterable[str],
        lake_state: LakeState,
        available: tuple[object, ...],
    ) -> CachedRoute:
        """Return a cached route that was decided for these tables from this state."""
        heads = tuple((table, ref(lake_state.table_heads[table])) for table in tables)
        return cls(route, available, heads, _copies_of(heads, lake_state))

    def is_valid_for(self, lake_state: LakeState, available: tuple[object, ...]) -> bool:
        """Return whether the route is valid for this state."""
        return (
            self.available == available
            and all(head() is lake_state.table_heads.get(table) for table, head in self._heads)
            and self._copies == _copies_of(self._heads, lake_state)
        )


def _copies_of(heads: tuple[tuple[str, ref[TableHead]], ...], lake_state: LakeState) -> _Copies:
    """Return each node's copies of some tables."""
    return tuple(
        (node, tuple(copies.get(table) for table, _ in heads))
        for node, copies in lake_state.hot_copies.items()
    )


def reads_newest(route: Route, lake_state: LakeState) -> bool:
    """Return whether every access path reads the newest snapshots: such a route does not age.

    A route over a copy that is behind is only valid while that is tolerated.
    """
    return all(
        lake_state.table_heads[table].snapshot == snapshot
        for access_path in route.access_paths
        for table, snapshot in access_path.snapshots.items()
    )


def order_paths(
    access_paths: Iterable[AccessPath], heads: Mapping[str, TableHead], busy: Callable[[str], int]
) -> tuple[AccessPath, ...]:
    """Return the access paths in the order of trying: nodes first, by freshness, then by load."""

    def order(access_path: AccessPath) -> tuple[bool, int, int]:
        if access_path.node is None:
            return True, 0, 0
        behind = sum(heads[table].snapshot != each for table, each in access_path.snapshots.items())
        return False, behind, busy(access_path.node)

    return tuple(sorted(access_paths, key=order))

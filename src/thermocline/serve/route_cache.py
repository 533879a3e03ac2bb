"""A route that was decided already: for how long it stays right, and who is asked first.

A dashboard's questions come hundreds of times between two commits. Where one goes depends on its
own tables, on what the nodes hold of them and on who can be asked; while those are the same, so is
the route, whatever is committed to other tables.
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
    """A route, and all that it was decided from. `who` stands for everybody that can be asked.

    Texts are remembered for long: heads that are no longer the newest are not kept by them.
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
        """A route that was decided for these tables from what is known."""
        heads = tuple((table, ref(lake_state.table_heads[table])) for table in tables)
        return cls(route, available, heads, _copies_of(heads, lake_state))

    def is_valid_for(self, lake_state: LakeState, available: tuple[object, ...]) -> bool:
        """Whether it is right for what is known now. A new look that saw no change is the same."""
        return (
            self.available == available
            and all(head() is lake_state.table_heads.get(table) for table, head in self._heads)
            and self._copies == _copies_of(self._heads, lake_state)
        )


def _copies_of(heads: tuple[tuple[str, ref[TableHead]], ...], lake_state: LakeState) -> _Copies:
    """What each node holds of some tables."""
    return tuple(
        (node, tuple(copies.get(table) for table, _ in heads))
        for node, copies in lake_state.hot_copies.items()
    )


def reads_newest(route: Route, lake_state: LakeState) -> bool:
    """Whether every way reads the newest snapshots: such a route does not age by itself.

    One over a copy that is behind is right only for as long as that is tolerated.
    """
    return all(
        lake_state.table_heads[table].snapshot == snapshot
        for access_path in route.access_paths
        for table, snapshot in access_path.snapshots.items()
    )


def order_paths(
    access_paths: Iterable[AccessPath], heads: Mapping[str, TableHead], busy: Callable[[str], int]
) -> tuple[AccessPath, ...]:
    """The ways in the order of trying now: of the nodes the newest, then the least busy."""

    def order(access_path: AccessPath) -> tuple[bool, int, int]:
        if access_path.node is None:
            return True, 0, 0
        behind = sum(heads[table].snapshot != each for table, each in access_path.snapshots.items())
        return False, behind, busy(access_path.node)

    return tuple(sorted(access_paths, key=order))

"""A route that was decided already: for how long it stays right, and who is asked first.

A dashboard's questions come hundreds of times between two commits. Where one goes depends on its
own tables, on what the nodes hold of them and on who can be asked; while those are the same, so is
the route, whatever is committed to other tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from weakref import ref

from thermocline.serve.route import Route, Way
from thermocline.serve.terms import Head, Held, Lookout

_Copies = tuple[tuple[str, tuple[Held | None, ...]], ...]


@dataclass(frozen=True)
class Routed:
    """A route, and all that it was decided from. `who` stands for everybody that can be asked.

    Texts are remembered for long: heads that are no longer the newest are not kept by them.
    """

    route: Route
    who: tuple[object, ...]
    _heads: tuple[tuple[str, ref[Head]], ...]
    _held: _Copies

    @classmethod
    def of(
        cls, route: Route, tables: Iterable[str], lookout: Lookout, who: tuple[object, ...]
    ) -> Routed:
        """A route that was decided for these tables from what is known."""
        heads = tuple((table, ref(lookout.heads[table])) for table in tables)
        return cls(route, who, heads, _held(heads, lookout))

    def holds(self, lookout: Lookout, who: tuple[object, ...]) -> bool:
        """Whether it is right for what is known now. A new look that saw no change is the same."""
        return (
            self.who == who
            and all(head() is lookout.heads.get(table) for table, head in self._heads)
            and self._held == _held(self._heads, lookout)
        )


def _held(heads: tuple[tuple[str, ref[Head]], ...], lookout: Lookout) -> _Copies:
    """What each node holds of some tables."""
    return tuple(
        (node, tuple(copies.get(table) for table, _ in heads))
        for node, copies in lookout.held.items()
    )


def is_newest(route: Route, lookout: Lookout) -> bool:
    """Whether every way reads the newest snapshots: such a route does not age by itself.

    One over a copy that is behind is right only for as long as that is tolerated.
    """
    return all(
        lookout.heads[table].snapshot == snapshot
        for way in route.ways
        for table, snapshot in way.snapshots.items()
    )


def in_order(
    ways: Iterable[Way], heads: Mapping[str, Head], busy: Callable[[str], int]
) -> tuple[Way, ...]:
    """The ways in the order of trying now: of the nodes the newest, then the least busy."""

    def order(way: Way) -> tuple[bool, int, int]:
        if way.node is None:
            return True, 0, 0
        behind = sum(heads[table].snapshot != each for table, each in way.snapshots.items())
        return False, behind, busy(way.node)

    return tuple(sorted(ways, key=order))

"""A route that was decided already: for how long it stays right, and who is asked first.

A dashboard's questions come hundreds of times between two commits. Where one goes depends on the
lake, on what the nodes hold and on who can be asked; while those are the same, so is the route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from thermocline.serve.route import Route, Way
from thermocline.serve.terms import Head, Held, Lookout


@dataclass(frozen=True)
class Routed:
    """A route, and all that it was decided from. `who` stands for everybody that can be asked."""

    heads: Mapping[str, Head]
    held: Mapping[str, Mapping[str, Held]]
    who: tuple[object, ...]
    route: Route

    def holds(self, lookout: Lookout, who: tuple[object, ...]) -> bool:
        """Whether it is right for what is known now. A new look that saw no change is the same."""
        return self.heads is lookout.heads and self.held is lookout.held and self.who == who


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

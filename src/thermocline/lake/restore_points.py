"""Restore points: tags on the last state of an hour and of a day, so that expiry leaves them.

A stream that commits each second keeps minutes of its snapshots. Without these tags nobody could
go back to yesterday. They are made by the commit that expires the snapshots around them, for the
whole unit of a table, and dropped when there are more than the settings keep.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from thermocline.errors import BadInput
from thermocline.lake import companions, refs
from thermocline.lake.commit_times import from_ms

if TYPE_CHECKING:
    from thermocline.lake.atomic_commit import TableChange
    from thermocline.lake.metadata import Snapshot, TableState

_FORMATS = {"hourly": "%Y-%m-%dT%H", "daily": "%Y-%m-%d"}
_NAME = re.compile(r"hourly-\d{4}-\d\d-\d\dT\d\d|daily-\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class RestorePoints:
    """The restore points that a commit makes and drops, each a name and its snapshot."""

    made: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


def is_restore_point(name: str) -> bool:
    """Whether a tag's name is one that is given here."""
    return _NAME.fullmatch(name) is not None


def restore_points_of(state: TableState) -> dict[str, int]:
    """The restore points that a table has, by name."""
    return {
        name: ref.snapshot
        for name, ref in state.refs.items()
        if ref.type == "tag" and is_restore_point(name)
    }


def choose_restore_points(
    state: TableState,
    leaving: Iterable[Snapshot],
    now: datetime,
    most: Mapping[str, int],
    since: datetime | None = None,
) -> RestorePoints:
    """Choose the restore points of a table from the snapshots that leave main's history.

    Of each hour and day that has ended the last state that main had becomes a restore point, if it
    is one of those: up to the `most` of each kind, oldest dropped first, none from before `since`.
    """
    there = restore_points_of(state)
    last = _last_states(state, now)
    made = {n: s.id for s in leaving for n in last.get(s.id, ()) if n not in state.refs}
    every = {**there, **made}
    dropped = set(_surplus_names(every, most))
    if since is not None:
        dropped |= {name for name, at in every.items() if state.published_at(at) < since}
    return RestorePoints(
        {name: at for name, at in made.items() if name not in dropped},
        {name: at for name, at in there.items() if name in dropped},
    )


def match_companions(
    state: TableState, points: RestorePoints, unit: Iterable[TableState]
) -> tuple[RestorePoints, list[tuple[TableState, dict[str, int]]]]:
    """Find where a table's companions were at its restore points.

    A point at which the state of a companion cannot be known any more is not made.
    """
    made = dict(points.made)
    found: list[tuple[TableState, dict[str, int]]] = []
    for companion in unit:
        places: dict[str, int] = {}
        for name, snapshot in points.made.items():
            try:
                places[name] = companions.matching_snapshot(state, snapshot, companion)
            except BadInput:
                made.pop(name, None)
        found.append((companion, places))
    known = [(each, {n: at for n, at in places.items() if n in made}) for each, places in found]
    return RestorePoints(made, points.dropped), known


def ref_changes(
    state: TableState, made: Mapping[str, int], dropped: Iterable[str]
) -> Iterator[TableChange]:
    """Make and drop restore points of one table; what is not there need not be dropped."""
    for name, snapshot in made.items():
        was = state.head(name)
        if was != snapshot:
            yield refs.set_ref(state.table, name, snapshot, was=was, tag=True)
    for name in dropped:
        if (was := state.head(name)) is not None:
            yield refs.drop_ref(state.table, name, was=was)


def _last_states(state: TableState, now: datetime) -> dict[int, list[str]]:
    """The snapshots that main was at when an hour or a day ended, with the names for that.

    By the log of main and not by ancestry: what was rolled back was a state of main all the same.
    """
    last: dict[str, int] = {}
    for entry in state.raw.get("snapshot-log") or ():
        at = from_ms(entry["timestamp-ms"])
        for kind, form in _FORMATS.items():
            last[f"{kind}-{at:{form}}"] = entry["snapshot-id"]
    found: dict[int, list[str]] = {}
    for name, snapshot in last.items():
        if name not in {f"{kind}-{now:{form}}" for kind, form in _FORMATS.items()}:
            found.setdefault(snapshot, []).append(name)
    return found


def _surplus_names(names: Iterable[str], most: Mapping[str, int]) -> Iterator[str]:
    for kind in _FORMATS:
        ordered = sorted((each for each in names if each.startswith(f"{kind}-")), reverse=True)
        yield from ordered[most[kind] :]

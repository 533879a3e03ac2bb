"""Restore points: tags on the last state of each hour and day, which expiry keeps.

A stream that commits each second keeps only minutes of snapshots. Restore points allow a rollback
to yesterday all the same. The commit that expires the snapshots around them creates them, for a
table and its companions, and drops those beyond the configured number.
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
    """The restore points that a commit creates and drops, by name with their snapshots."""

    created: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


def is_restore_point(name: str) -> bool:
    """Whether a tag's name is that of a restore point."""
    return _NAME.fullmatch(name) is not None


def restore_points_of(state: TableState) -> dict[str, int]:
    """Return the restore points of a table, by name."""
    return {
        name: ref.snapshot
        for name, ref in state.refs.items()
        if ref.type == "tag" and is_restore_point(name)
    }


def choose_restore_points(
    state: TableState,
    leaving: Iterable[Snapshot],
    now: datetime,
    max_points: Mapping[str, int],
    since: datetime | None = None,
) -> RestorePoints:
    """Choose a table's restore points among the snapshots that leave main's history.

    The last state of main in each past hour and day becomes a restore point, if it is one of these
    snapshots: at most `max_points` of each kind, oldest dropped first, and none before `since`.
    """
    existing = restore_points_of(state)
    last = _last_states(state, now)
    created = {n: s.id for s in leaving for n in last.get(s.id, ()) if n not in state.refs}
    every = {**existing, **created}
    dropped = set(_surplus_names(every, max_points))
    if since is not None:
        dropped |= {name for name, at in every.items() if state.published_at(at) < since}
    return RestorePoints(
        {name: at for name, at in created.items() if name not in dropped},
        {name: at for name, at in existing.items() if name in dropped},
    )


def match_companions(
    state: TableState, points: RestorePoints, unit: Iterable[TableState]
) -> tuple[RestorePoints, list[tuple[TableState, dict[str, int]]]]:
    """Find the snapshots of a table's companions at its restore points.

    A point without a known state of a companion is not created.
    """
    created = dict(points.created)
    found: list[tuple[TableState, dict[str, int]]] = []
    for companion in unit:
        snapshots: dict[str, int] = {}
        for name, snapshot in points.created.items():
            try:
                snapshots[name] = companions.matching_snapshot(state, snapshot, companion)
            except BadInput:
                created.pop(name, None)
        found.append((companion, snapshots))
    matched = [
        (each, {n: at for n, at in snapshots.items() if n in created}) for each, snapshots in found
    ]
    return RestorePoints(created, points.dropped), matched


def ref_changes(
    state: TableState, created: Mapping[str, int], dropped: Iterable[str]
) -> Iterator[TableChange]:
    """Yield the changes that create and drop restore points of one table."""
    for name, snapshot in created.items():
        was = state.head(name)
        if was != snapshot:
            yield refs.set_ref(state.table, name, snapshot, was=was, tag=True)
    for name in dropped:
        if (was := state.head(name)) is not None:
            yield refs.drop_ref(state.table, name, was=was)


def _last_states(state: TableState, now: datetime) -> dict[int, list[str]]:
    """Return main's snapshots at the end of each past hour and day, with restore point names.

    They follow main's log and not the ancestry: a state that was rolled back also counts.
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


def _surplus_names(names: Iterable[str], max_points: Mapping[str, int]) -> Iterator[str]:
    for kind in _FORMATS:
        ordered = sorted((each for each in names if each.startswith(f"{kind}-")), reverse=True)
        yield from ordered[max_points[kind] :]

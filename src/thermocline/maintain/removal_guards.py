"""Why no file of a table may be removed now, and which files are protected by work in progress."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.lake import run_locks
from thermocline.lake.commit_times import TOLERANCE, ahead_ms, now_ms
from thermocline.lake.locations import normalize_location
from thermocline.lake.metadata_cleanup import GC_ENABLED
from thermocline.lake.metadata_files import local_path
from thermocline.lake.naming import run_start_ms
from thermocline.lake.references import PATH_PROPERTIES
from thermocline.lake.run_branches import run_of

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState
    from thermocline.maintain.removal_journal import RemovalJournal

_SKEW_MS = 3_600_000
"""How far the clock of a store may be behind this machine's, for files of runs at work."""


def find_removal_blocker(lake: Lake, state: TableState) -> str | None:
    """Return why no file of a table may be removed, if there is a reason."""
    if str(state.properties.get(GC_ENABLED, "true")).lower() != "true":
        return f"its property {GC_ENABLED} says that its files may be shared"
    if (ahead := ahead_ms(state.raw)) > TOLERANCE:
        return f"its last commit is {ahead / 60_000:,.0f} minutes ahead of this machine's clock"
    own = _canonical(state.location)
    if ".." in own.split("/"):
        return f"its location {state.location} contains '..'"
    warehouse = _canonical(lake.settings.warehouse)
    if _contains(own, warehouse):
        return f"its location {state.location} contains the whole warehouse"
    for name, other in lake.states().items():
        if name == state.table:
            continue
        for location in _locations(other):
            where = _canonical(location)
            if _contains(own, where) or _contains(where, own):
                return f"its location overlaps with that of {name}: {location}"
        if _contains(own, _canonical(other.metadata_location)):
            return f"its location contains the metadata of {name}"
    return None


def find_earliest_work(lake: Lake, state: TableState) -> int | None:
    """Return when the oldest work began that may still add files: younger ones are protected.

    Runs of this project count for all tables, those of other machines for the tables in which they
    have a branch; so do backfills that can resume.
    """
    starts = list(_work_starts(lake, state))
    return min(starts) - _SKEW_MS if starts else None


def _work_starts(lake: Lake, state: TableState) -> Iterator[int]:
    project = lake.settings.project
    dead_before = now_ms() - lake.retention_policy.dead_ms
    branches = (run_of(name) for name in state.refs)
    for run in {*run_locks.known_runs(project), *branches} - {None}:
        start, working = run_start_ms(str(run)), run_locks.is_working(project, str(run))
        if start is None:
            continue
        # Unknown: of another machine, or of the project that this one is a copy of.
        if working or (working is None and start > dead_before) or _can_resume(run, state):
            yield start


def is_at_work(lake: Lake, state: TableState) -> bool:
    """Whether a run, a stream or a waiting commit works on the table."""
    return bool(list(_work_starts(lake, state)) or lake.waiting_commits(state.table))


def find_clock_problem(journal: RemovalJournal, now: int) -> str | None:
    """Return how far the clock went back since the last pass, if it did."""
    behind = journal.latest_ms - now
    if behind <= TOLERANCE:
        return None
    return f"the clock went back by {behind / 60_000:,.0f} minutes since the last pass"


def _can_resume(run: str | None, state: TableState) -> bool:
    """Whether a branch of a run is kept: a backfill that died may resume."""
    return any(run_of(name) == run for name in state.refs)


def _locations(state: TableState) -> Iterator[str]:
    yield state.location
    for name in PATH_PROPERTIES:
        if state.properties.get(name):
            yield state.properties[name]


def _canonical(location: str) -> str:
    """Return a location without links and doubled slashes, as far as that is known."""
    path = local_path(location)
    if path is not None:
        return str(Path(path).resolve())
    scheme, separator, rest = normalize_location(location).partition("://")
    return f"{scheme}{separator}{'/'.join(part for part in rest.split('/') if part)}"


def _contains(folder: str, location: str) -> bool:
    return f"{location}/".startswith(f"{folder.rstrip('/')}/")

"""Delete the metadata files that a commit leaves unreferenced.

These are metadata files that drop out of the table's log, and the manifest lists and manifests of
snapshots that the commit removed. Data files are never deleted here.

A snapshot inherits manifests only from its parent. So a manifest of a removed snapshot is in a kept
one only if it is in the oldest kept snapshots, in the head of a ref, or in a kept snapshot that is
older than the removed one: that one may have added it before the branch that is removed left it.

A REST catalog writes and removes metadata files itself. There, the files of expired snapshots are
deleted after the commit, and the files of carried states that no snapshot names any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from thermocline.errors import CatalogUnavailable, NotFound
from thermocline.lake import carried_state, metadata_updates

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from thermocline.lake.atomic_commit import TableChange
    from thermocline.lake.lake import Lake
    from thermocline.lake.metadata import TableState

Raw = Mapping[str, Any]

GC_ENABLED = "gc.enabled"
"""Iceberg's table property: if false, files may be shared, so nothing is deleted."""


def delete_unreferenced(io: FileIO, before: Raw, after: Raw) -> None:
    """Delete unreferenced files after a commit that landed. Files that cannot be deleted stay."""
    for location in (
        *metadata_updates.unlogged_files(before, after),
        *_find_unreferenced(io, before, after),
    ):
        with suppress(OSError):  # it stays as an orphan, as after a crash at this point
            io.delete(location)


def delete_after_expiry(
    lake: Lake, changes: Iterable[TableChange], states: Mapping[str, TableState]
) -> None:
    """Delete unreferenced files after changes to tables of a REST catalog, which have landed.

    Files that cannot be deleted, or if it is not known what is still referenced, stay as orphans.
    """
    expired = {
        change.table for change in changes for each in change.updates
        if each.action == "remove-snapshots"
    }  # fmt: skip
    for table in expired & states.keys():
        try:
            now, io = lake.state(table), lake.iceberg(table).io
        except (CatalogUnavailable, NotFound):
            continue
        if now.uuid != states[table].uuid or _is_shared(now.raw):
            continue
        unneeded = _list_states(states[table].raw) - _list_states(now.raw)
        for location in (*_find_unreferenced(io, states[table].raw, now.raw), *sorted(unneeded)):
            with suppress(OSError):
                io.delete(location)


def _list_states(raw: Raw) -> set[str]:
    """Return the files of the carried states in a table's metadata."""
    summaries = (each.get("summary") or {} for each in raw.get("snapshots") or ())
    return carried_state.list_state_files(raw["location"], summaries, raw.get("properties") or {})


def _find_unreferenced(io: FileIO, before: Raw, after: Raw) -> Iterator[str]:
    """Yield the manifest lists and manifests that only removed snapshots reference, each once."""
    kept = {each["snapshot-id"]: each for each in after.get("snapshots") or ()}
    gone = [s for s in before.get("snapshots") or () if s["snapshot-id"] not in kept]
    if not gone or _is_shared(after):
        return
    heads = {ref["snapshot-id"] for ref in after["refs"].values()}
    oldest = {n for n, s in kept.items() if s.get("parent-snapshot-id") not in kept}
    newest = max(_sequence(each) for each in gone)
    older = {number for number, each in kept.items() if _sequence(each) <= newest}
    lists = _manifest_lists(gone) - _manifest_lists(kept.values())
    try:
        needed = _listed_manifests(io, _manifest_lists(kept[n] for n in heads | oldest | older))
        unneeded = _listed_manifests(io, lists) - needed
    except (OSError, ValueError):
        return  # a list cannot be read, so the needed manifests are unknown
    within = f"{str(after['location']).rstrip('/')}/"
    yield from (each for each in (*unneeded, *lists) if each.startswith(within))


def _sequence(snapshot: Raw) -> int:
    """Return a snapshot's sequence number; in the first format all have 0, and all are read."""
    return int(snapshot.get("sequence-number") or 0)


def _is_shared(raw: Raw) -> bool:
    return str((raw.get("properties") or {}).get(GC_ENABLED, "true")).lower() != "true"


def _manifest_lists(snapshots: Iterable[Raw]) -> set[str]:
    return {each["manifest-list"] for each in snapshots if "manifest-list" in each}


def _listed_manifests(io: FileIO, lists: Iterable[str]) -> set[str]:
    from pyiceberg.manifest import read_manifest_list

    return {m.manifest_path for each in lists for m in read_manifest_list(io.new_input(each))}

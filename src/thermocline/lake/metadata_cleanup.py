"""Files of metadata that a commit leaves without a reference, so that they can be deleted.

These are metadata files beyond the table's log, and the manifest lists and manifests of snapshots
that the commit removed. Data files are not among them. A manifest is only ever taken over from a
snapshot's parent, so what the oldest kept snapshots and the heads of the refs do not list, no kept
snapshot lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from thermocline.lake import metadata_updates

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

Raw = Mapping[str, Any]

GC_ENABLED = "gc.enabled"
"""Iceberg's property of tables whose files others use as well; then nothing is deleted."""


def delete_unreferenced(io: FileIO, before: Raw, after: Raw) -> None:
    """Delete what is unreferenced after a commit that landed. A file that cannot be is left."""
    for location in (
        *metadata_updates.unlogged_files(before, after),
        *_find_unreferenced(io, before, after),
    ):
        with suppress(OSError):  # it is an orphan then, as after a death at this point
            io.delete(location)


def _find_unreferenced(io: FileIO, before: Raw, after: Raw) -> Iterator[str]:
    """The manifest lists and manifests that only removed snapshots name, each once."""
    kept = {each["snapshot-id"]: each for each in after.get("snapshots") or ()}
    gone = [s for s in before.get("snapshots") or () if s["snapshot-id"] not in kept]
    if not gone or _is_shared(after):
        return
    heads = {ref["snapshot-id"] for ref in after["refs"].values()}
    oldest = {n for n, s in kept.items() if s.get("parent-snapshot-id") not in kept}
    lists = _manifest_lists(gone) - _manifest_lists(kept.values())
    try:
        needed = _listed_manifests(io, _manifest_lists(kept[number] for number in heads | oldest))
        unneeded = _listed_manifests(io, lists) - needed
    except (OSError, ValueError):
        return  # one of them cannot be read, so it is not known what is needed
    within = f"{str(after['location']).rstrip('/')}/"
    yield from (each for each in (*unneeded, *lists) if each.startswith(within))


def _is_shared(raw: Raw) -> bool:
    return str((raw.get("properties") or {}).get(GC_ENABLED, "true")).lower() != "true"


def _manifest_lists(snapshots: Iterable[Raw]) -> set[str]:
    return {each["manifest-list"] for each in snapshots if "manifest-list" in each}


def _listed_manifests(io: FileIO, lists: Iterable[str]) -> set[str]:
    from pyiceberg.manifest import read_manifest_list

    return {m.manifest_path for each in lists for m in read_manifest_list(io.new_input(each))}

"""Join the small manifests of a table, clustered by partition, in a commit that changes no file.

Scans and commits open manifests one by one, and prune those whose partitions do not match. Writers
continue meanwhile: a manifest that is still listed at the commit has the entries that were read,
because manifests never change. If a writer replaced one of them, the rewrite is discarded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.table import TableProperties

from thermocline.errors import CommitConflict
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.crash_points import crash_point
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.manifest_pruning import lists_data
from thermocline.lake.manifest_writing import (
    RewrittenManifests,
    describe_entries,
    list_manifests,
    write_manifest_snapshot,
    write_manifests,
)
from thermocline.lake.metadata import MAIN
from thermocline.maintain.maintenance_policy import (
    CPU_SECONDS_PER_FILE,
    OPEN_COST_BYTES,
    MaintenancePolicy,
)
from thermocline.maintain.task import Discarded, TaskEffect, TaskKind

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState

OPERATION = "rewrite-manifests"
MAX_COMMIT_ATTEMPTS = 20
_ENTRIES_PER_CPU_SECOND = 4000
"""Manifest entries that are read, written and read back in one CPU second."""


@dataclass(frozen=True)
class ManifestTask:
    """The manifests of a table that are joined in one commit."""

    table: str
    paths: frozenset[str]
    bytes: int
    target_bytes: int
    manifests_after: int
    """How many there will be of them, about."""
    entries: int
    kind = TaskKind.MANIFESTS
    partition = ""

    @property
    def why(self) -> str:
        """Return how small they are."""
        size = self.bytes / len(self.paths) / (1 << 20)
        return f"{len(self.paths):,} manifests of {size:,.2f} MB on average"

    @property
    def saved_bytes(self) -> int:
        """Return what a scan that opens all of them saves, each counted like an opened file."""
        return (len(self.paths) - self.manifests_after) * OPEN_COST_BYTES

    @property
    def cpu_seconds(self) -> float:
        """Return the expected cost."""
        return self.entries / _ENTRIES_PER_CPU_SECOND + len(self.paths) * CPU_SECONDS_PER_FILE

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many manifests it reads."""
        return {"manifests_before": len(self.paths)}

    @property
    def details(self) -> Mapping[str, Any]:
        """Return the manifests, their bytes, and the files that they list."""
        return {"manifests": len(self.paths), "bytes": self.bytes, "entries": self.entries}

    def apply(self, lake: Lake) -> TaskEffect:
        """Write the new manifests, verify and commit them."""
        return rewrite_manifests(lake, self)


def plan_manifest_rewrite(
    lake: Lake, state: TableState, policy: MaintenancePolicy
) -> ManifestTask | None:
    """Return the rewrite of a table's small manifests; None if it is not worth it.

    Manifests are joined in tiers, like data files: the largest of a group stays while it is larger
    than all others of the group together.
    """
    head = state.head()
    if head is None or state.raw.get("format-version") != 2:
        return None
    table = lake.iceberg(state.table)
    target = _target_bytes(table)
    chosen: list[ManifestFile] = []
    after = 0
    for group in _group_manifests(table, head):
        small = _choose_small(group, target)
        if len(small) >= policy.min_manifests:
            chosen += small
            after += max(1, math.ceil(sum(m.manifest_length for m in small) / target))
    if not chosen:
        return None
    entries = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in chosen)
    size = sum(manifest.manifest_length for manifest in chosen)
    paths = frozenset(manifest.manifest_path for manifest in chosen)
    return ManifestTask(state.table, paths, size, target, after, entries)


def _group_manifests(table: Table, head: int) -> Iterator[Sequence[ManifestFile]]:
    """Yield the manifests that can be joined: of one spec that can be written, and one content."""
    groups: dict[tuple[int, bool], list[ManifestFile]] = {}
    for manifest in list_manifests(table, head).values():
        key = manifest.partition_spec_id, lists_data(manifest)
        groups.setdefault(key, []).append(manifest)
    columns = {field.field_id for field in table.schema().fields}
    for (number, _), group in groups.items():
        spec = table.specs().get(number)
        # A spec of a column that was dropped since has no types to write its values with.
        if spec is not None and all(field.source_id in columns for field in spec.fields):
            yield group


def _choose_small(group: Sequence[ManifestFile], target: int) -> list[ManifestFile]:
    small = [m for m in group if m.manifest_length < target * 3 // 4]
    small.sort(key=lambda manifest: manifest.manifest_length)
    rest = sum(manifest.manifest_length for manifest in small)
    while small and small[-1].manifest_length > rest - small[-1].manifest_length:
        rest -= small.pop().manifest_length
    return small


def _target_bytes(table: Table) -> int:
    default = TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
    text = table.properties.get(TableProperties.MANIFEST_TARGET_SIZE_BYTES, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) else default


def rewrite_manifests(lake: Lake, task: ManifestTask) -> TaskEffect:
    """Join manifests of main. Raise Discarded if one of them is not listed any more."""
    table = lake.iceberg(task.table)
    head = _require_listed(table, task)
    rewritten = write_manifests(table, head, task.paths, task.target_bytes)
    try:
        crash_point("manifests.written")
        _verify(table, head, rewritten)
    except BaseException:
        rewritten.discard()
        raise
    try:
        return _commit(lake, task, rewritten)
    except (Discarded, CommitConflict):
        rewritten.discard()
        raise
    # After any other error, an interrupt among them, the commit may have landed: then the manifests
    # belong to the table, and otherwise they are removed as unreferenced.


def _require_listed(table: Table, task: ManifestTask) -> int:
    """Return main's head, which must list all manifests of the task."""
    ref = table.metadata.refs.get(MAIN)
    if ref is None:
        raise Discarded("the table has no main branch")
    if not task.paths <= list_manifests(table, ref.snapshot_id).keys():
        raise Discarded("some of its manifests were replaced meanwhile")
    return int(ref.snapshot_id)


def _verify(table: Table, head: int, rewritten: RewrittenManifests) -> None:
    """Read the new manifests back: they must say of each file what the old ones say."""
    listed = list_manifests(table, head)
    before = describe_entries(table, (listed[path] for path in rewritten.replaced))
    after = describe_entries(table, rewritten.manifests)
    if before != after:
        raise Discarded(
            f"verification failed: {len(before):,} entries were read, and the new manifests have"
            f" {len(after):,}, or entries with other values"
        )


def _commit(lake: Lake, task: ManifestTask, rewritten: RewrittenManifests) -> TaskEffect:
    """Publish on top of the current main, as long as it lists what is replaced."""
    for _ in range(MAX_COMMIT_ATTEMPTS):
        table = lake.iceberg(task.table)
        if table.metadata.table_uuid != rewritten.table.metadata.table_uuid:
            raise Discarded("the table was dropped and created again meanwhile")
        head = _require_listed(table, task)
        properties = {bookmarks.OPERATION: OPERATION}
        made = write_manifest_snapshot(table, head, rewritten, properties)
        crash_point("manifests.before-commit")
        try:
            lake.commit(snapshot_changes(table, made, MAIN, head))
        except CommitConflict:
            made.discard()
            continue
        crash_point("manifests.committed")
        return TaskEffect({"manifests_after": len(rewritten.manifests)}, made.id)
    raise Discarded(f"main moved {MAX_COMMIT_ATTEMPTS} times while it was being committed")

"""Remove files of a table that nothing references: in two steps, a grace period apart.

A pass lists the table's folder and records the files that neither its metadata nor a waiting commit
needs (`removal_journal`). A later pass reads the metadata again and deletes those that are still
not needed, unchanged, and older than the grace period, both by when they were first seen
unreferenced and by their modification time. Whatever is unclear keeps all files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.lake.commit_times import TOLERANCE, now_ms
from thermocline.lake.crash_points import crash_point
from thermocline.lake.metadata_updates import DELETE_AFTER_COMMIT
from thermocline.lake.reachability import ReachableFiles, UnreadableMetadata
from thermocline.lake.table_folder import FolderFile, TableFolder, open_folder
from thermocline.maintain.removal_guards import (
    find_clock_problem,
    find_earliest_work,
    find_removal_blocker,
    is_at_work,
)
from thermocline.maintain.removal_journal import RemovalJournal, load_journal
from thermocline.maintain.task import Discarded, TaskEffect, TaskKind

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState
    from thermocline.maintain.maintenance_policy import MaintenancePolicy

BATCH_FILES = 100
"""Files that are deleted before it is checked again that the table does not need them."""
FILES_PER_SECOND = 1000
"""Deletions per second, so that a store is not overloaded."""
MAX_FILES = 20_000
"""Deletions per pass and table; the next pass continues."""
RETRY_SECONDS = 3600.0
"""Seconds until a removal that was refused for the table's state is tried again."""
IDLE_FACTOR = 10
"""How many times less often a table that does not change is listed."""


@dataclass(frozen=True)
class RemoveTask:
    """The files of a table that one pass deletes, and whether it lists the table before."""

    table: str
    uuid: str
    location: str
    due: Mapping[str, FolderFile]
    """By relative path, the files as they were when they were found."""
    lists: bool
    grace_ms: int
    """The least age of a file's last change."""
    why: str
    kind = TaskKind.REMOVE
    partition = ""

    @property
    def saved_bytes(self) -> int:
        """Return the bytes of the files to delete."""
        return sum(file.size for file in self.due.values())

    @property
    def cpu_seconds(self) -> float:
        """Return the expected cost: most of the time is waiting for the store."""
        return 0.05 + 0.0005 * len(self.due)

    @property
    def counts(self) -> Mapping[str, int]:
        """Return nothing: nothing is counted before it is done."""
        return {}

    @property
    def details(self) -> Mapping[str, Any]:
        """Return how many files would be deleted, and whether the table is listed."""
        return {"files": len(self.due), "bytes": self.saved_bytes, "lists": self.lists}

    def apply(self, lake: Lake) -> TaskEffect:
        """Delete the files that are still not needed, then list the table if that is due."""
        return _Removal(lake, self).apply()


def plan_removal(
    lake: Lake, state: TableState, policy: MaintenancePolicy
) -> tuple[RemoveTask | None, str | None]:
    """Return what is due for a table, or why nothing may be removed from it."""
    journal, now = load_journal(lake, state), now_ms()
    if 0 <= now - journal.failed_ms < 1000 * min(policy.remove_every, RETRY_SECONDS):
        return None, None
    grace = int(policy.remove_after * 1000)
    due = {
        path: each.file for path, each in journal.candidates.items()
        if now - max(each.since_ms, each.file.modified_ms) >= grace
    }  # fmt: skip
    due = dict(sorted(due.items())[:MAX_FILES])
    lists = _is_listing_due(state, journal, now, policy)
    if problem := find_clock_problem(journal, now):
        due, lists = {}, True  # begin again with the clock as it is now
    if not due and not lists:
        return None, None
    if reason := find_removal_blocker(lake, state):
        return None, f"nothing is removed from it: {reason}"
    texts = [problem] if problem else []
    texts += [f"{len(due):,} unreferenced files"] if due else []
    texts += ["unreferenced files are searched"] if lists else []
    why = ", ".join(texts)
    return RemoveTask(state.table, state.uuid, state.location, due, lists, grace, why), None


def plan_forced_removal(lake: Lake, state: TableState, age_ms: int) -> RemoveTask:
    """Return the task that deletes what is unreferenced now and was written before an age.

    Raise Discarded when nothing may be removed.
    """
    journal = load_journal(lake, state)
    reason = find_removal_blocker(lake, state) or find_clock_problem(journal, now_ms())
    if reason := reason or _find_forced_blocker(lake, state, age_ms):
        raise Discarded(reason)
    found = _list_unreferenced(lake, state, ReachableFiles(lake, state.table))
    cutoff = now_ms() - age_ms
    due = {file.path: file for file in found if file.modified_ms <= cutoff}
    why = f"{len(due):,} unreferenced files"
    return RemoveTask(state.table, state.uuid, state.location, due, False, age_ms, why)


def _is_listing_due(
    state: TableState, journal: RemovalJournal, now: int, policy: MaintenancePolicy
) -> bool:
    """Whether something may be there that the last listing has not seen, and enough time passed.

    While a table does not change, only a writer that died can leave files.
    """
    unchanged = journal.listed_at == state.metadata_location
    wait = policy.remove_every * (IDLE_FACTOR if unchanged else 1)
    return not 0 <= now - journal.listed_ms < wait * 1000


def _find_forced_blocker(lake: Lake, state: TableState, age_ms: int) -> str | None:
    if age_ms <= 0 and is_at_work(lake, state):
        return "a run or a stream is at work, so files of any age may be needed"
    return None


def _list_unreferenced(
    lake: Lake, state: TableState, reachable: ReachableFiles
) -> Sequence[FolderFile]:
    """Return the unreferenced files of a table's folder. Raise Discarded if that is not certain."""
    folder = open_folder(lake.iceberg(state.table).io, state.location)
    try:
        files = list(folder.list_files())
    except OSError as error:
        raise Discarded(f"its folder cannot be listed: {error}") from error
    # Metadata after the listing: a file that was listed before its commit is then needed.
    _refresh(reachable)
    now = now_ms()
    if future := [file for file in files if file.modified_ms > now + TOLERANCE]:
        raise Discarded(
            f"{len(future):,} of its files were modified in the future, such as {future[0].path}:"
            " this machine's clock or the store's is wrong"
        )
    needed = reachable.select_needed(file.path for file in files)
    keeps_metadata = not _deletes_metadata(state)
    return [
        file for file in files
        if file.path not in needed and not (keeps_metadata and "metadata.json" in file.path)
    ]  # fmt: skip


def _deletes_metadata(state: TableState) -> bool:
    """Whether the table's owner has old metadata files deleted."""
    return str(state.properties.get(DELETE_AFTER_COMMIT, "false")).lower() == "true"


def _refresh(reachable: ReachableFiles) -> None:
    try:
        reachable.refresh()
    except UnreadableMetadata as error:
        raise Discarded(error.cause) from error


class _Removal:
    """One application of a task."""

    def __init__(self, lake: Lake, task: RemoveTask) -> None:
        self._lake, self._task = lake, task
        self._state = lake.state(task.table)
        self._reachable = ReachableFiles(lake, task.table)
        self._journal = load_journal(lake, self._state)
        self._problem = find_clock_problem(self._journal, now_ms())
        self._removed: dict[str, int] = {}
        self._found = 0

    def apply(self) -> TaskEffect:
        """List, record and delete; on any doubt stop, and say why."""
        outcome, reason = "done", self._problem or ""
        try:
            self._require_allowed()
            if self._task.lists:
                self._record_unreferenced()
            if not self._problem:
                self._delete_due()
        except Discarded as error:
            outcome, reason = "discarded", str(error)
            self._journal.record_failure(now_ms()).save(self._lake)
        counts = {
            "files_found": self._found,
            "files_removed": len(self._removed),
            "bytes_removed": sum(self._removed.values()),
        }
        return TaskEffect(counts, None, outcome, reason)

    def _require_allowed(self) -> None:
        task, state = self._task, self._state
        if (state.uuid, state.location) != (task.uuid, task.location):
            raise Discarded("the table was moved, or dropped and created again meanwhile")
        reason = find_removal_blocker(self._lake, state)
        if reason := reason or _find_forced_blocker(self._lake, state, task.grace_ms):
            raise Discarded(reason)
        if self._problem:
            self._journal = self._journal.reset()

    def _record_unreferenced(self) -> None:
        found = _list_unreferenced(self._lake, self._state, self._reachable)
        before = self._journal.candidates
        pointer = self._state.metadata_location
        self._journal = self._journal.record_listing(found, pointer, now_ms())
        self._journal.save(self._lake)
        self._found = sum(path not in before for path in self._journal.candidates)
        crash_point("removal.recorded")

    def _delete_due(self) -> None:
        if not self._task.due:
            return
        folder = open_folder(self._lake.iceberg(self._task.table).io, self._state.location)
        paths = sorted(self._task.due)
        for start in range(0, len(paths), BATCH_FILES):
            began = time.monotonic()
            some = paths[start : start + BATCH_FILES]
            self._journal = self._journal.drop(self._delete_batch(folder, some), now_ms())
            if start + BATCH_FILES < len(paths):
                time.sleep(max(0.0, began + len(some) / FILES_PER_SECOND - time.monotonic()))
        crash_point("removal.deleted")
        self._journal.save(self._lake)

    def _delete_batch(self, folder: TableFolder, paths: Sequence[str]) -> list[str]:
        """Delete files that are as they were found and that fresh metadata does not need.

        Return the paths that are settled; the others are too young, or protected by a run.
        """
        protected = find_earliest_work(self._lake, self._lake.state(self._task.table))
        settled, chosen = [], []
        for path in paths:
            file = _find(folder, path)
            if file is None or file != self._task.due[path]:
                settled.append(path)
            elif self._is_old(file, protected):
                chosen.append(file)
        _refresh(self._reachable)
        needed = self._reachable.select_needed(file.path for file in chosen)
        for file in chosen:
            settled.append(file.path)
            if file.path not in needed:
                _delete(folder, file.path)
                self._removed[file.path] = file.size
                crash_point("removal.deleting")
        return settled

    def _is_old(self, file: FolderFile, protected: int | None) -> bool:
        old = now_ms() - file.modified_ms >= self._task.grace_ms
        return old and (protected is None or file.modified_ms < protected)


def _find(folder: TableFolder, path: str) -> FolderFile | None:
    try:
        return folder.find(path)
    except OSError as error:
        raise Discarded(f"{path} cannot be looked at: {error}") from error


def _delete(folder: TableFolder, path: str) -> None:
    try:
        folder.delete(path)
    except OSError as error:
        raise Discarded(f"{path} cannot be deleted: {error}") from error

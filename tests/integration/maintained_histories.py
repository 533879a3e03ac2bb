"""Random histories of a table with all of maintenance, on a clock that the history moves.

Beside what `maintained_tables` does, snapshots expire, manifests are joined and unreferenced files
removed, while runs publish or fail, writers hold files for long, and others die and leave theirs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from tests.conftest import clean_environment
from tests.integration.expiry_races import HARSHEST
from tests.integration.maintained_tables import TABLE, MaintainedTable, Row
from tests.integration.removal_project import DAY, ShiftedClock

from thermocline.config import load_settings
from thermocline.errors import ThermoclineError
from thermocline.lake import Lake
from thermocline.lake.draft import Draft
from thermocline.lake.locations import join_location
from thermocline.lake.metadata_files import local_path
from thermocline.lake.naming import new_run_id
from thermocline.lake.orphans import find_orphans
from thermocline.lake.snapshot_producer import FileChange, write_snapshot
from thermocline.maintain import manifest_rewrite
from thermocline.maintain.expiry import plan_table_expiry
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.manifest_rewrite import plan_manifest_rewrite
from thermocline.maintain.removal import plan_removal
from thermocline.maintain.task import Discarded, MaintenanceTask, TaskEffect

POLICY = MaintenancePolicy(min_manifests=2, remove_after=DAY, remove_every=DAY / 10)


class MaintainedHistory(MaintainedTable):
    """A table with everything that maintenance does to it, and with slow and dying writers."""

    def __init__(self, lake: Lake, seed: int, clock: ShiftedClock) -> None:
        self.clock = clock
        self._stamped: set[str] = set()
        self._held: list[tuple[float, list[DataFile], list[Row]]] = []
        """Files of long writers, with the time of writing and their rows."""
        self._runs: list[Draft] = []
        super().__init__(lake, seed)
        kept = {"THERMOCLINE_LAKE__RETENTION__SNAPSHOTS": str(self.random.randint(1, 5))}
        environ = {**clean_environment(), **HARSHEST, **kept}
        self.expiring = Lake(load_settings(lake.settings.project, environ=environ))

    def choices(self) -> list[tuple[Callable[[], None], int]]:
        return [
            *super().choices(), (self.merge, 3), (self.rewrite_manifests, 4), (self.expire, 4),
            (self.remove, 9), (self.die, 3), (self.begin_write, 2), (self.end_write, 3),
            (self.begin_run, 3), (self.publish, 4), (self.fail_run, 1),
        ]  # fmt: skip

    # Writers -------------------------------------------------------------------------------------

    def merge(self) -> None:
        """Delete some rows and append others in one commit, as MERGE does on read."""
        files, taken = self.write_deletes()
        rows = [self._row() for _ in range(self.random.randint(1, 3))]
        self._commit(FileChange([*files, *self._write(rows)]), rows, taken)

    def die(self) -> None:
        """Leave files behind: data files, and sometimes a snapshot's manifests as well."""
        files = self._write([self._row()])
        if self.random.random() < 0.5:
            write_snapshot(self._table(), FileChange(files, appends=True), self._head(), {})

    def begin_write(self) -> None:
        """Write files that are committed some steps later."""
        rows = [self._row() for _ in range(2)]
        self._held.append((self.clock.seconds, self._write(rows), rows))

    def end_write(self) -> None:
        """Commit the files of a long writer, unless it took longer than the grace period."""
        if not self._held:
            return
        since, files, rows = self._held.pop(self.random.randrange(len(self._held)))
        if self.clock.seconds - since < POLICY.remove_after:
            self._commit(FileChange(files, appends=True), rows, [])

    def begin_run(self) -> None:
        """Have a run write to its draft, with a branch or without one; it may take any time."""
        rows, base = [self._row(), self._row()], self._head()
        draft = self.lake.draft(new_run_id(), late_branches=self.random.random() < 0.5)
        columns = zip(*rows, strict=True)
        kinds = [pa.int64(), pa.string(), pa.int64()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        table = pa.table(arrays, ["id", "kind", "n"])
        made = draft.append(TABLE, table, bookmark=None, operation="append")
        self.expected[made] = self.expected[base] + Counter(rows)
        self._runs.append(draft)

    def publish(self) -> None:
        """Publish a run; one whose main moved drops its draft."""
        if self._runs:
            draft = self._runs.pop(self.random.randrange(len(self._runs)))
            try:
                draft.publish()
                self.rewrites["runs published"] += 1
            except ThermoclineError:
                draft.drop()

    def fail_run(self) -> None:
        """Have the process of a run end without a word; its branch stays, if it has one."""
        if self._runs:
            self._runs.pop().release()

    # Maintenance ---------------------------------------------------------------------------------

    def rewrite_manifests(self) -> None:
        """Join manifests, sometimes while another step changes the table."""
        task = plan_manifest_rewrite(self.lake, self.lake.state(TABLE), POLICY)
        if task is None:
            return
        beside = self._choose_beside([
            self.append, self.delete_rows, self.replace, self.compact, self.roll_back, self.evolve,
            self.repartition, self.expire, self.end_write, self.publish,
        ])  # fmt: skip
        original = manifest_rewrite.crash_point

        def disturb(point: str) -> None:
            if point == "manifests.before-commit":
                manifest_rewrite.crash_point = original
                beside()

        manifest_rewrite.crash_point = disturb
        try:
            effect = self._apply_task(task)
        finally:
            manifest_rewrite.crash_point = original
        if effect is not None:
            parent = self.lake.state(TABLE).snapshot(effect.snapshot or 0).parent
            self.expected[effect.snapshot or 0] = self.expected[parent or 0]

    def expire(self) -> None:
        """Expire all that may, sometimes after a step between plan and commit."""
        self._expire_beside(
            self._choose_beside([self.tag, self.branch, self.append, self.drop_ref, self.roll_back])
        )

    def _expire_beside(self, beside: Callable[[], None]) -> None:
        time.sleep(0.002)
        task = plan_table_expiry(self.expiring, self.expiring.state(TABLE))
        if task is None:
            return
        beside()
        effect = self._apply_task(task, self.expiring)
        if effect is not None:
            self.rewrites["expired"] += effect.counts["snapshots_expired"]
            kept = list(self.lake.state(TABLE).snapshots)
            self.compare_snapshots(self.random.sample(kept, min(4, len(kept))))

    def remove(self) -> None:
        """Let time pass, then remove what is due, sometimes after a step since the plan."""
        self._stamp_files()
        self.clock.wait(self.random.choice([0.4, 1.1, 1.6]))
        task, reason = plan_removal(self.lake, self.lake.state(TABLE), POLICY)
        assert reason is None, reason
        if task is None:
            return
        self._choose_beside([
            self.end_write, self.publish, self.tag, self.append, self.roll_back, self.expire,
            self.compact, self.rewrite_manifests, self.die,
        ])()  # fmt: skip
        self._stamp_files()
        effect = self._apply_task(task)
        if effect is not None:
            assert effect.outcome == "done", effect.reason
            if effect.counts["files_removed"]:
                self.compare_snapshots(list(self.lake.state(TABLE).snapshots))

    def finish(self) -> None:
        """End all writers and let time pass: then every unreferenced file is gone, and no other."""
        for draft in self._runs:
            draft.drop()
        self._runs.clear()
        self._stamp_files()
        for _ in range(4):
            self.clock.wait(10)  # branches of runs that failed expire as well
            self._expire_beside(lambda: None)
            task, _ = plan_removal(self.lake, self.lake.state(TABLE), POLICY)
            if task is not None:
                self._apply_task(task)
            self._stamp_files()
        self.clock.wait(2)
        task, _ = plan_removal(self.lake, self.lake.state(TABLE), POLICY)
        if task is not None:
            self._apply_task(task)
        self.compare_snapshots(list(self.lake.state(TABLE).snapshots))
        left = [path for path, _ in find_orphans(self._table()) if ".metadata.json" not in path]
        assert left == [], left

    def compare(self) -> None:
        """Compare what the step changed; files that it wrote are of the history's time."""
        self._stamp_files()
        super().compare()

    def _choose_beside(self, acts: list[Callable[[], None]]) -> Callable[[], None]:
        if self.random.random() < 0.4:
            return lambda: None
        act = self.random.choice(acts)
        self.steps[-1] += f" {act.__name__}"
        return act

    def _apply_task(self, task: MaintenanceTask, lake: Lake | None = None) -> TaskEffect | None:
        try:
            effect = task.apply(lake or self.lake)
        except Discarded:
            self.rewrites[f"{task.kind} discarded"] += 1
            return None
        self.rewrites[f"{task.kind} {effect.outcome}"] += 1
        self.rewrites["removed"] += effect.counts.get("files_removed", 0)
        return effect

    def _stamp_files(self) -> None:
        """Give new files the history's time, as they would have it if it were real."""
        folder = local_path(join_location(self.lake.state(TABLE).location, ""))
        assert folder is not None
        at = time.time_ns()
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                if path not in self._stamped:
                    os.utime(path, ns=(at, at))
                    self._stamped.add(path)


def play(lake: Lake, seed: int, steps: int) -> Mapping[str, int]:
    """Play one history; raise with its steps when a snapshot is wrong or a file is missing."""
    with pytest.MonkeyPatch.context() as patch:
        table: Any = MaintainedHistory(lake, seed, ShiftedClock(patch))
        try:
            for _ in range(steps):
                table.step()
            table.finish()
        except Exception as error:
            raise AssertionError(f"seed {seed}, steps {table.steps}: {error!r}") from error
        finally:
            table.expiring.disconnect()
        return table.rewrites

"""Manifests are joined beside writers; no file, sequence number or delete changes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.integration.maintained_tables import TABLE, MaintainedTable

from thermocline.config import load_settings
from thermocline.lake import Lake, manifest_writing
from thermocline.lake.manifest_writing import describe_entries, list_manifests
from thermocline.lake.orphans import find_orphans
from thermocline.maintain import manifest_rewrite
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.manifest_rewrite import plan_manifest_rewrite
from thermocline.maintain.task import Discarded

POLICY = MaintenancePolicy(min_manifests=2)


@pytest.fixture
def made(tmp_path: Path) -> MaintainedTable:
    """A partitioned table with files of two specs, deletes of both kinds, and many manifests."""
    (tmp_path / "thermocline.toml").write_text(SETTINGS)
    lake = Lake(load_settings(tmp_path, environ=clean_environment()))
    table = MaintainedTable(lake, seed=3)
    for _ in range(4):
        table.append()
        table.delete_rows()
    table.delete_equal()
    table.repartition()
    for _ in range(4):
        table.append()
        table.replace()
    return table


def entries(made: MaintainedTable) -> list[str]:
    """All that the table's manifests say of its live files."""
    table, head = made.lake.iceberg(TABLE), made.lake.state(TABLE).head()
    assert head is not None
    return describe_entries(table, list_manifests(table, head).values())


def manifests(made: MaintainedTable) -> int:
    """How many manifests list live files."""
    head = made.lake.state(TABLE).head()
    assert head is not None
    return len(list_manifests(made.lake.iceberg(TABLE), head))


def test_every_entry_stays_as_it_was(made: MaintainedTable) -> None:
    before, count = entries(made), manifests(made)
    assert count > 12
    task = plan_manifest_rewrite(made.lake, made.lake.state(TABLE), POLICY)
    assert task is not None
    head = made.lake.state(TABLE).head()
    effect = task.apply(made.lake)
    assert entries(made) == before
    groups = effect.counts["manifests_after"]
    assert manifests(made) == count - len(task.paths) + groups <= 5
    state = made.lake.state(TABLE)
    summary = state.snapshot(effect.snapshot or 0)
    assert summary.operation == "replace"
    was = state.snapshot(head or 0).summary
    for name in ("total-records", "total-data-files", "total-delete-files", "total-files-size"):
        assert summary.summary[name] == was[name]
    assert summary.summary["entries-processed"] == str(task.entries)
    made.expected[effect.snapshot or 0] = made.expected[head or 0]
    made.compare()
    assert plan_manifest_rewrite(made.lake, made.lake.state(TABLE), POLICY) is None


def test_new_manifests_are_clustered_by_partition(made: MaintainedTable) -> None:
    with made.lake.iceberg(TABLE).update_spec() as update:
        for field in made.lake.iceberg(TABLE).spec().fields:
            update.remove_field(field.name)
        update.add_identity("kind")
    for _ in range(8):
        made.append()
    task = plan_manifest_rewrite(made.lake, made.lake.state(TABLE), POLICY)
    assert task is not None
    effect = replace(task, target_bytes=1).apply(made.lake)  # one manifest for each file
    table = made.lake.iceberg(TABLE)
    spec = table.spec().spec_id
    listed = [
        m for m in list_manifests(table, effect.snapshot or 0).values()
        if m.partition_spec_id == spec and m.added_snapshot_id == effect.snapshot
    ]  # fmt: skip
    kinds = [m.fetch_manifest_entry(table.io)[0].data_file.partition[0] for m in listed]
    assert kinds == sorted(kinds, key=lambda kind: (kind is not None, kind))
    assert len(set(kinds)) > 2


BESIDE = ("append", "delete_rows", "replace", "compact", "roll_back", "repartition", "evolve")


@pytest.mark.parametrize("name", BESIDE)
def test_writers_continue_meanwhile(
    name: str, made: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = plan_manifest_rewrite(made.lake, made.lake.state(TABLE), POLICY)
    assert task is not None
    at: list[int | None] = []

    def disturb(point: str) -> None:
        if point == "manifests.before-commit" and not at:
            at.append(None)
            getattr(made, name)()
            at.append(made.lake.state(TABLE).head())

    monkeypatch.setattr(manifest_rewrite, "crash_point", disturb)
    try:
        effect = task.apply(made.lake)
    except Discarded as reason:
        assert "replaced meanwhile" in str(reason)
        assert made.lake.state(TABLE).head() == at[1]
    else:
        parent = made.lake.state(TABLE).snapshot(effect.snapshot or 0).parent
        assert parent == at[1]
        made.expected[effect.snapshot or 0] = made.expected[parent or 0]
    made.compare()
    orphans = [path for path, _ in find_orphans(made.lake.iceberg(TABLE)) if "-m" in path]
    assert orphans == []


Change = Callable[[Any], Any]


@pytest.mark.parametrize(
    "damage",
    [
        lambda entries: entries[1:],
        lambda entries: [entries[0], *entries],
        lambda entries: [_with_sequence(entries[0], 1), *entries[1:]],
        lambda entries: [_with_snapshot(entries[0], 7), *entries[1:]],
    ],
    ids=["a file less", "a file twice", "another sequence number", "another snapshot"],
)
def test_other_entries_are_not_published(
    damage: Change, made: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, head = entries(made), made.lake.state(TABLE).head()
    orphans = find_orphans(made.lake.iceberg(TABLE))
    original = manifest_writing._write_group

    def write(producer: Any, spec: int, is_data: bool, listed: Any, target: int) -> Any:
        yield from original(producer, spec, is_data, damage(listed), target)

    monkeypatch.setattr(manifest_writing, "_write_group", write)
    task = plan_manifest_rewrite(made.lake, made.lake.state(TABLE), POLICY)
    assert task is not None
    with pytest.raises(Discarded, match="verification failed"):
        task.apply(made.lake)
    assert (entries(made), made.lake.state(TABLE).head()) == (before, head)
    assert find_orphans(made.lake.iceberg(TABLE)) == orphans


@pytest.mark.parametrize(
    "point", ["manifests.written", "manifests.before-commit", "manifests.committed"]
)
def test_a_killed_rewrite_changes_nothing_and_is_done_by_the_next(
    point: str, made: MaintainedTable, tmp_path: Path
) -> None:
    for _ in range(18):
        made.append()  # enough for the default policy
    before = entries(made)
    variables = {
        "THERMOCLINE_MAINTAIN__MIN_FILES": "1000",
        "THERMOCLINE_MAINTAIN__DELETE_SHARE": "1",
    }
    call = [sys.executable, "-m", "thermocline", "maintain", "--json"]
    died = subprocess.run(
        call, cwd=tmp_path, check=False, capture_output=True,
        env={**clean_environment(), **variables, "THERMOCLINE_CRASH_AT": point},
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stdout
    assert Counter(entries(made)) == Counter(before)
    landed = point == "manifests.committed"
    assert (manifests(made) < 18) == landed
    if not landed:
        task = plan_manifest_rewrite(made.lake, made.lake.state(TABLE), POLICY)
        assert task is not None
        task.apply(made.lake)
    assert entries(made) == before


def _with_sequence(entry: Any, sequence: int) -> Any:
    return _copy(entry, sequence=sequence)


def _with_snapshot(entry: Any, snapshot: int) -> Any:
    return _copy(entry, snapshot=snapshot)


def _copy(entry: Any, sequence: int | None = None, snapshot: int | None = None) -> Any:
    from pyiceberg.manifest import ManifestEntry

    return ManifestEntry.from_args(
        status=entry.status,
        snapshot_id=snapshot or entry.snapshot_id,
        sequence_number=sequence or entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )

"""`thermo maintain`: what a user sees, what a crash leaves, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import SETTINGS, clean_environment

from thermocline.config import load_settings
from thermocline.contract import Column, Contract, WriteMode
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.changes import diff_snapshots, estimate_read_bytes
from thermocline.lake.data_file_writer import DataFileWriter
from thermocline.lake.live_files import live_files
from thermocline.lake.naming import new_run_id
from thermocline.lake.orphans import find_orphans
from thermocline.maintain.file_rewrite import Discarded, Rewrite, rewrite_files

TABLE = "bronze.events"
FILES, ROWS = 8, 50
EVENTS = Contract(
    TABLE,
    (Column("id", Primitive("long"), True), Column("kind", Primitive("string"))),
    write=WriteMode.APPEND,
)
FREEZE_POINT = "maintain.before-commit"
NO_COOL_DOWN = {"THERMOCLINE_MAINTAIN__COOL_DOWN": "0s"}


@pytest.fixture
def open_lake(tmp_path: Path) -> Callable[[], Lake]:
    """Open the lake of a project that has one table of small files."""
    (tmp_path / "thermocline.toml").write_text(SETTINGS)

    def opened() -> Lake:
        return Lake(load_settings(tmp_path, environ=clean_environment()))

    lake = opened()
    lake.ensure(EVENTS)
    for number in range(FILES):
        append(lake, number)
    return opened


def append(lake: Lake, number: int) -> None:
    """Append a file of its own ids, in one commit."""
    ids = list(range(number * ROWS, (number + 1) * ROWS))
    rows = pa.table({"id": ids, "kind": [f"kind {each % 3}" for each in ids]})
    draft = lake.draft(new_run_id())
    draft.append(TABLE, rows, bookmark=None, operation="append")
    draft.publish()


def read(lake: Lake) -> Counter[tuple[Any, ...]]:
    """All rows of the table, with their numbers."""
    state = lake.state(TABLE)
    head = state.head()
    assert head is not None
    return Counter(lake.duck.read(state.metadata_location, head).fetchall())


def thermo(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call the command line in the project."""
    return subprocess.run(
        [sys.executable, "-m", "thermocline", *arguments, "--json"],
        cwd=folder, env={**clean_environment(), **NO_COOL_DOWN, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def only_compact(listed: list[Any]) -> list[Any]:
    """The tasks or results that rewrite data files."""
    return [each for each in listed if each["kind"] == "compact"]


def test_files_are_joined_and_no_row_changes(tmp_path: Path, open_lake: Callable[[], Lake]) -> None:
    before = read(open_lake())
    planned = json.loads(thermo(tmp_path, "maintain", "--plan").stdout)
    [task] = only_compact(planned["tasks"])
    assert (task["kind"], task["table"], task["files"]) == ("compact", TABLE, FILES)
    assert read(open_lake()) == before

    report = json.loads(thermo(tmp_path, "maintain").stdout)
    [result] = only_compact(report["results"])
    assert (result["outcome"], result["files_before"], result["files_after"]) == (
        "published", FILES, 1,
    )  # fmt: skip
    assert read(open_lake()) == before
    [done] = only_compact(json.loads(thermo(tmp_path, "maintain", "--history").stdout))
    assert (done["kind"], done["table_name"], done["outcome"], done["rows"]) == (
        "compact", TABLE, "published", FILES * ROWS,
    )  # fmt: skip
    healths = {each["table"]: each for each in json.loads(thermo(tmp_path, "health").stdout)}
    assert healths[TABLE]["files"]["files"] == 1
    assert healths[TABLE]["score"] == 100
    assert json.loads(thermo(tmp_path, "maintain").stdout)["results"] == []


def test_files_that_were_just_written_are_left_to_their_writers(
    tmp_path: Path, open_lake: Callable[[], Lake]
) -> None:
    planned = thermo(tmp_path, "maintain", "--plan", THERMOCLINE_MAINTAIN__COOL_DOWN="1h")
    assert only_compact(json.loads(planned.stdout)["tasks"]) == []


@pytest.mark.parametrize(
    "point", ["maintain.files-written", "maintain.before-commit", "maintain.committed"]
)
def test_a_killed_rewrite_loses_nothing_and_is_done_by_the_next(
    point: str, tmp_path: Path, open_lake: Callable[[], Lake]
) -> None:
    before = read(open_lake())
    died = thermo(tmp_path, "maintain", THERMOCLINE_CRASH_AT=point)
    assert died.returncode == -signal.SIGKILL
    assert read(open_lake()) == before
    append(open_lake(), FILES)
    after = read(open_lake())
    assert after.total() == (FILES + 1) * ROWS
    report = json.loads(thermo(tmp_path, "maintain", THERMOCLINE_MAINTAIN__MIN_FILES="2").stdout)
    outcomes = [result["outcome"] for result in only_compact(report["results"])]
    # After the commit, what is left is one large and one small file.
    assert outcomes == ([] if point == "maintain.committed" else ["published"])
    assert read(open_lake()) == after


def test_a_rewrite_with_other_rows_is_not_published(
    open_lake: Callable[[], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = open_lake()
    before, head, orphans = read(lake), lake.state(TABLE).head(), find_orphans(lake.iceberg(TABLE))
    add = DataFileWriter.add

    def swap_values(self: DataFileWriter, rows: pa.Table, **more: Any) -> None:
        # The same values in every column, and other rows: sums of columns do not see it.
        kinds = rows.column("kind").combine_chunks()
        add(self, rows.set_column(1, "kind", kinds.take(pa.array([1, 0, *range(2, len(kinds))]))),
            **more)  # fmt: skip

    monkeypatch.setattr(DataFileWriter, "add", swap_values)
    with pytest.raises(Discarded, match="verification failed: 400 rows"):
        rewrite_files(lake, whole_table(lake))
    monkeypatch.undo()
    assert lake.state(TABLE).head() == head
    assert read(lake) == before
    assert find_orphans(lake.iceberg(TABLE)) == orphans


def test_a_table_that_a_run_computes_is_left_alone(
    tmp_path: Path, open_lake: Callable[[], Lake]
) -> None:
    lake = open_lake()
    draft = lake.draft(new_run_id())
    draft.begin(TABLE)
    planned = json.loads(thermo(tmp_path, "maintain", "--plan").stdout)
    assert only_compact(planned["tasks"]) == []
    assert list(planned["skipped"]) == [TABLE]
    draft.drop()
    draft.release()


def test_two_maintainers_do_not_work_at_once(tmp_path: Path, open_lake: Callable[[], Lake]) -> None:
    before = read(open_lake())
    first = subprocess.Popen(
        [sys.executable, "-m", "thermocline", "maintain", "--json"], cwd=tmp_path,
        env={**clean_environment(), **NO_COOL_DOWN, "THERMOCLINE_FREEZE_AT": FREEZE_POINT},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    _, status = os.waitpid(first.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    second = thermo(tmp_path, "maintain")
    assert second.returncode == 5
    assert "Another process maintains this lake." in second.stderr + second.stdout
    first.send_signal(signal.SIGCONT)
    output, _ = first.communicate(timeout=60)
    results = only_compact(json.loads(output)["results"])
    assert [each["outcome"] for each in results] == ["published"]
    assert read(open_lake()) == before


def test_changes_between_appends_do_not_read_what_was_compacted(
    open_lake: Callable[[], Lake],
) -> None:
    lake = open_lake()
    start = lake.state(TABLE).head()
    append(lake, FILES)
    rewrite_files(lake, whole_table(lake))
    compacted = lake.state(TABLE).head()
    append(lake, FILES + 1)
    table, end = lake.iceberg(TABLE), lake.state(TABLE).head()
    assert start is not None and compacted is not None and end is not None
    new = list(range(FILES * ROWS, (FILES + 2) * ROWS))
    found = diff_snapshots(table, start, end)
    assert sorted(found.inserts["id"].to_pylist()) == new
    assert found.deletes.num_rows == 0
    appended = [
        live.file.file_size_in_bytes
        for live in live_files(table, end) if live.added_by == end
    ]  # fmt: skip
    assert estimate_read_bytes(table, start, end) < 3 * sum(appended)
    # Backwards, or from what was compacted, rows are compared as before.
    back = diff_snapshots(table, end, start)
    assert sorted(back.deletes["id"].to_pylist()) == new
    assert back.inserts.num_rows == 0
    assert sorted(diff_snapshots(table, compacted, end).inserts["id"].to_pylist()) == new[ROWS:]


def whole_table(lake: Lake) -> Rewrite:
    """A rewrite of all files of the table."""
    head = lake.state(TABLE).head()
    assert head is not None
    found = live_files(lake.iceberg(TABLE), head)
    return Rewrite(TABLE, found[0].partition, frozenset(live.path for live in found))

"""Rows that take the place of others without Spark: tables, partitions, single rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent, ManifestContent

from thermocline.contract import Column, Contract
from thermocline.contract.definition import PartitionField
from thermocline.contract.types import Primitive
from thermocline.errors import CheckFailed, Permanent
from thermocline.lake import Draft, Lake, atomic_commit, data_file_writer
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.changes import diff_snapshots

TABLE = "silver.t"
CONTRACT = Contract(
    TABLE,
    (
        Column("id", Primitive("long"), True),
        Column("at", Primitive("timestamptz")),
        Column("code", Primitive("uuid")),
    ),
    partition=(PartitionField("at", "day"),),
)
DAYS = [date(2026, 3, day) for day in range(1, 5)]


def rows(*given: tuple[int, int | None]) -> pa.Table:
    """Ids, each on a day of March."""
    moments = [day and datetime(2026, 3, day, 12, tzinfo=UTC) for _, day in given]
    return pa.table(
        {
            "id": pa.array([id_ for id_, _ in given], pa.int64()),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
        }
    )


@pytest.fixture
def draft(lake: Lake) -> Draft:
    """A draft of a table of three days, the first in two files."""
    lake.ensure(CONTRACT)
    made = lake.draft("RUN")
    made.append(TABLE, rows((1, 1), (2, 1), (3, 2)), bookmark=None, operation="ingest")
    made.append(TABLE, rows((4, 1), (5, 3), (6, None)), bookmark=None, operation="ingest")
    return made


def ids(draft: Draft) -> list[int]:
    """What DuckDB, PyIceberg and we ourselves find on the draft; all the same."""
    lake, head = draft.lake, draft.head(TABLE)
    lake.duck.view("t", lake.state(TABLE).metadata_location, head)
    found = [row[0] for row in lake.duck.connection.execute("select id from t").fetchall()]
    table = lake.iceberg(TABLE)
    scanned = table.scan(snapshot_id=head).to_arrow()["id"].to_pylist()
    ours = diff_snapshots(table, None, head).inserts["id"].to_pylist()
    assert sorted(scanned) == sorted(ours) == sorted(found)
    return sorted(found)


def places(draft: Draft, *wanted: int) -> dict[str, Any]:
    """Where rows are: file and position."""
    state = draft.lake.state(TABLE)
    draft.lake.duck.view("t", state.metadata_location, draft.head(TABLE))
    from thermocline.engine.duck import build_scan

    found = draft.lake.duck.connection.execute(
        f"select filename, list(file_row_number) "
        f"from {build_scan(state.metadata_location, draft.head(TABLE))} "
        f"where id in ({', '.join(map(str, wanted))}) group by filename"
    ).fetchall()
    return {path: np.array(at) for path, at in found}


def summary(draft: Draft, name: str) -> int:
    return draft.lake.state(TABLE).snapshot(draft.head(TABLE)).count(name)


def test_a_whole_table_is_replaced_with_its_delete_files(draft: Draft) -> None:
    draft.replace_rows(
        TABLE, rows(), places(draft, 2), on_read=True, bookmark=None, operation="merge"
    )
    snapshot = draft.replace(TABLE, rows((7, 4)), bookmark={"n": 2}, operation="replace")
    assert ids(draft) == [7]
    found = draft.lake.state(TABLE).snapshot(snapshot)
    assert (found.operation, bookmarks.parse_bookmark(found)) == ("overwrite", {"n": 2})
    assert (summary(draft, "total-records"), summary(draft, "total-position-deletes")) == (1, 0)
    draft.replace(TABLE, [], bookmark=None, operation="replace")
    assert ids(draft) == []


def test_named_partitions_are_replaced_and_others_left_alone(draft: Draft) -> None:
    wanted: list[dict[str, Any]] = [{"at": DAYS[0]}, {"at": DAYS[3]}, {"at": None}]
    for id_ in (2, 3):
        draft.replace_rows(
            TABLE, rows((id_, id_ - 1)), places(draft, id_), on_read=True, bookmark=None,
            operation="merge",
        )  # fmt: skip
    draft.replace_partitions(TABLE, rows((8, 1)), wanted, bookmark=None, operation="partitions")
    assert ids(draft) == [3, 5, 8]
    assert summary(draft, "deleted-data-files") == 4
    assert summary(draft, "total-position-deletes") == 1, "those of the partitions went with them"
    with pytest.raises(CheckFailed, match=r'outside the partitions.*\{"at_day":"2026-03-02"\}'):
        draft.replace_partitions(TABLE, rows((9, 2)), wanted, bookmark=None, operation="partitions")
    assert ids(draft) == [3, 5, 8]
    draft.replace_partitions(TABLE, rows((9, 2)), None, bookmark=None, operation="partitions")
    assert ids(draft) == [5, 8, 9]


@pytest.mark.parametrize("on_read", [True, False])
def test_single_rows_are_taken_out_and_others_added(draft: Draft, *, on_read: bool) -> None:
    before = draft.head(TABLE)
    for gone, new in (((2, 5, 6), (2, 4)), ((1,), (10, 1))):
        draft.replace_rows(
            TABLE, rows(new), places(draft, *gone), on_read=on_read, bookmark=None,
            operation="merge",
        )  # fmt: skip
    assert ids(draft) == [2, 3, 4, 10]
    found = diff_snapshots(draft.lake.iceberg(TABLE), before, draft.head(TABLE), key=["id"])
    assert found.counts == {"inserts": 1, "updates": 1, "deletes": 3}
    assert (summary(draft, "total-delete-files") > 0) == on_read
    assert summary(draft, "total-records") - summary(draft, "total-position-deletes") == 4
    assert (summary(draft, "total-data-files") < 6) != on_read


def test_rows_of_a_file_with_deletes_are_written_anew_without_them(draft: Draft) -> None:
    for gone, on_read in ((2, True), (1, False)):
        draft.replace_rows(
            TABLE, rows((20 + gone, 4)), places(draft, gone), on_read=on_read, bookmark=None,
            operation="merge",
        )  # fmt: skip
    assert ids(draft) == [3, 4, 5, 6, 21, 22]
    assert summary(draft, "total-position-deletes") == 0, "the delete file went with its data file"


def test_manifests_say_what_they_list(draft: Draft) -> None:
    for id_ in (2, 3):
        draft.replace_rows(
            TABLE, rows(), places(draft, id_), on_read=True, bookmark=None, operation="merge"
        )
    table = draft.lake.iceberg(TABLE)
    snapshot = table.snapshot_by_id(draft.head(TABLE))
    assert snapshot is not None
    listed = {
        (manifest.content, entry.data_file.content)
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }
    assert listed == {
        (ManifestContent.DATA, DataFileContent.DATA),
        (ManifestContent.DELETES, DataFileContent.POSITION_DELETES),
    }


def test_manifests_of_deletes_are_merged_too(draft: Draft) -> None:
    wanted = {"commit.manifest.min-count-to-merge": "3"}
    draft.lake.iceberg(TABLE).transaction().set_properties(wanted).commit_transaction()
    for id_ in (1, 2, 3, 4, 5):
        draft.replace_rows(
            TABLE, rows(), places(draft, id_), on_read=True, bookmark=None, operation="merge"
        )
    table = draft.lake.iceberg(TABLE)
    snapshot = table.snapshot_by_id(draft.head(TABLE))
    assert snapshot is not None
    kinds = [manifest.content for manifest in snapshot.manifests(table.io)]
    assert kinds.count(ManifestContent.DELETES) <= 3
    assert ids(draft) == [6]


def test_files_are_written_once_though_others_commit_meanwhile(
    draft: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = atomic_commit.commit_all, []
    others = iter(range(2))

    def beaten(*args: Any) -> None:
        if (number := next(others, None)) is not None:
            monkeypatch.setattr(atomic_commit, "commit_all", real)
            draft.lake.draft(f"OTHER{number}").append(
                TABLE, rows((99, 1)), bookmark=None, operation="ingest"
            )
            monkeypatch.setattr(atomic_commit, "commit_all", beaten)
        real(*args)

    class Watched:
        def __iter__(self) -> Iterator[pa.Table]:
            written.append(1)
            yield rows((7, 4))

    monkeypatch.setattr(atomic_commit, "commit_all", beaten)
    draft.replace(TABLE, Watched(), bookmark=None, operation="replace")
    assert (ids(draft), len(written)) == ([7], 1)


def test_a_file_that_is_gone_already_is_no_ones_to_replace(draft: Draft) -> None:
    gone = places(draft, 1)
    draft.replace(TABLE, rows((7, 4)), bookmark=None, operation="replace")
    with pytest.raises(Permanent, match="are not in it"):
        draft.replace_rows(TABLE, rows(), gone, on_read=False, bookmark=None, operation="merge")
    assert ids(draft) == [7]


def test_parts_are_bounded_and_no_row_is_lost(
    draft: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file_writer, "BUFFER_BYTES", 64)
    monkeypatch.setattr(data_file_writer, "MAX_OPEN_FILES", 1)
    parts = [rows((n, 1 + n % 2)) for n in range(20)]
    draft.replace(TABLE, parts, bookmark=None, operation="replace")
    assert ids(draft) == list(range(20))
    assert summary(draft, "total-data-files") > 4


def test_uuids_come_as_text(draft: Draft) -> None:
    code = "0f8fad5b-d9cb-469f-a165-70867728950e"
    given = rows((1, 1), (2, 1)).append_column("code", pa.array([code.upper(), None]))
    draft.replace(TABLE, given, bookmark=None, operation="replace")
    found = diff_snapshots(draft.lake.iceberg(TABLE), None, draft.head(TABLE)).inserts
    assert {row["id"]: row["code"] for row in found.to_pylist()} == {1: code, 2: None}

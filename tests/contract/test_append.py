"""Rows that are appended without Spark: one commit on a draft, laid out as the table asks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import StringType

from thermocline.contract import Column, Contract
from thermocline.contract.definition import PartitionField, SortField
from thermocline.contract.types import Field, List, Map, Primitive, Struct
from thermocline.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitUnknown,
    Permanent,
    Transient,
)
from thermocline.lake import Draft, Lake, atomic_commit
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.metadata import location_path

TABLE = "silver.t"
CONTRACT = Contract(
    TABLE,
    (
        Column("id", Primitive("long"), True),
        Column("name", Primitive("string")),
        Column("at", Primitive("timestamptz")),
    ),
    partition=(PartitionField("at", "day"),),
    sort=(SortField("name", descending=True), SortField("id")),
)


def rows(*given: tuple[int, str | None, int]) -> pa.Table:
    ids, names, days = zip(*given, strict=True)
    return pa.table(
        {
            "name": pa.array(names, pa.string()),
            "at": [datetime(2026, 3, day, 12, tzinfo=UTC) for day in days],
            "id": pa.array(ids, pa.int64()),
        }
    )


@pytest.fixture
def made(lake: Lake) -> Lake:
    lake.ensure(CONTRACT)
    return lake


def appended(draft: Draft, *given: tuple[int, str | None, int]) -> int:
    return draft.append(TABLE, rows(*given), bookmark={"n": 1}, operation="ingest")


def ids(lake: Lake, ref: str = "main") -> list[int]:
    table = lake.iceberg(TABLE)
    return sorted(table.scan(snapshot_id=lake.state(TABLE).head(ref)).to_arrow()["id"].to_pylist())


def files(lake: Lake, run: str, read: Callable[[Path], Any] = pq.read_table) -> dict[str, Any]:
    """What a run's draft added, by the folder of each file."""
    head = lake.state(TABLE).head(lake.draft(run).branch)
    tasks = lake.iceberg(TABLE).scan(snapshot_id=head).plan_files()
    paths = [location_path(task.file.file_path) for task in tasks]
    return {path.parent.name: read(path) for path in paths}


def test_rows_are_on_the_draft_with_their_bookmark_until_it_is_published(made: Lake) -> None:
    draft = made.draft("RUN")
    snapshot = appended(draft, (1, "a", 1), (2, None, 2))
    assert (ids(made), ids(made, draft.branch)) == ([], [1, 2])
    found = made.state(TABLE).snapshot(snapshot)
    assert bookmarks.parse_bookmark(found) == {"n": 1}
    assert (found.summary[bookmarks.RUN], found.summary[bookmarks.OPERATION]) == ("RUN", "ingest")
    assert found.count("added-records") == 2
    draft.publish()
    assert ids(made) == [1, 2]


def test_files_hold_one_partition_each_in_the_tables_order(made: Lake) -> None:
    appended(
        made.draft("RUN"),
        (5, "b", 1), (4, "c", 2), (3, "b", 1), (2, None, 1), (1, "a", 1), (6, "d", 1),
    )  # fmt: skip
    assert {day: rows["id"].to_pylist() for day, rows in files(made, "RUN").items()} == {
        "at_day=2026-03-01": [6, 3, 5, 1, 2],  # falling names, then rising ids; nulls last
        "at_day=2026-03-02": [4],
    }
    metadata = next(iter(files(made, "RUN", pq.read_metadata).values()))
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_nulls_stay_nulls_and_every_engine_finds_the_columns(lake: Lake) -> None:
    member = Struct((Field("key", Primitive("string")), Field("value", Primitive("binary"))))
    columns = (
        Column("id", Primitive("long"), True),
        Column("list of", List(member)),
        Column("map", Map(Primitive("string"), Primitive("string"))),
        Column("part", Primitive("string")),
    )
    keyed = (PartitionField("part", "truncate", 1), PartitionField("id", "bucket", 4))
    lake.ensure(Contract(TABLE, columns, partition=keyed))
    kinds = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    given = pa.table(
        {
            "part": ["ab", None, "ac", None],
            "list of": pa.array([None, [], [{"key": "k", "value": None}], [None]], kinds),
            "map": pa.array([None, {}, {"a": None}, {"b": "c"}], pa.map_(pa.string(), pa.string())),
            "id": [1, 2, 3, 4],
        }
    )
    draft = lake.draft("RUN")
    draft.append(TABLE, given, bookmark=None, operation="ingest")
    draft.publish()
    state = lake.state(TABLE)
    lake.duck.view("t", state.metadata_location, state.head() or 0)
    found = lake.duck.query("select * from t order by id").to_pylist()
    assert [(row["list of"], row["map"], row["part"]) for row in found] == [
        (None, None, "ab"), ([], [], None), ([{"key": "k", "value": None}], [("a", None)], "ac"),
        ([None], [("b", "c")], None),
    ]  # fmt: skip
    table = lake.iceberg(TABLE)
    parts = {tuple(task.file.partition) for task in table.scan().plan_files()}
    assert {first for first, _ in parts} == {"a", None}
    assert [r["id"] for r in table.scan(row_filter="part = 'ac'").to_arrow().to_pylist()] == [3]
    assert [r["id"] for r in table.scan(row_filter="id = 4").to_arrow().to_pylist()] == [4]


def test_somebody_who_commits_meanwhile_is_waited_out(
    made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = made.draft("RUN")
    draft.begin(TABLE)
    real = atomic_commit.commit_all
    others = iter(range(2))

    def beaten(*args: Any) -> None:
        if next(others, None) is not None:
            made.iceberg(TABLE).append(rows((9, "other", 1)).select(["id", "name", "at"]).cast(
                pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()),
                           ("at", pa.timestamp("us", "UTC"))])
            ))  # fmt: skip
        real(*args)

    monkeypatch.setattr(atomic_commit, "commit_all", beaten)
    appended(draft, (1, "a", 1))
    assert (ids(made), ids(made, draft.branch)) == ([9, 9], [1])


@pytest.mark.parametrize("failure", [ConnectionError, ValueError])
@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_that_fails_is_looked_for_before_that_is_believed(
    made: Lake, monkeypatch: pytest.MonkeyPatch, failure: type[Exception], *, lands: bool
) -> None:
    real = atomic_commit.commit_all

    def cut_off(*args: Any) -> None:
        if lands:
            real(*args)
        raise failure("cut off")

    draft = made.draft("RUN")
    draft.begin(TABLE)
    monkeypatch.setattr(atomic_commit, "commit_all", cut_off)
    if lands:
        assert appended(draft, (1, "a", 1)) == draft.head(TABLE)
        assert ids(made, draft.branch) == [1]
    else:
        # A connection that breaks says nothing of the commit: retrying it can help.
        expected = Transient if failure is ConnectionError else Permanent
        with pytest.raises(expected, match="cut off"):
            appended(draft, (1, "a", 1))
        assert ids(made, draft.branch) == []


def test_a_commit_that_cannot_be_looked_for_is_unknown(
    made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*args: Any) -> None:
        raise CatalogUnavailable("The catalog is away.", "")

    def cut_off(*args: Any) -> None:
        monkeypatch.setattr(bookmarks, "find_commit", gone)
        raise ConnectionError("cut off")

    draft = made.draft("RUN")
    draft.begin(TABLE)
    monkeypatch.setattr(atomic_commit, "commit_all", cut_off)
    with pytest.raises(CommitUnknown, match="not known whether"):
        appended(draft, (1, "a", 1))


def test_who_loses_every_race_is_told_of_a_conflict(
    made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beaten(*args: Any) -> None:
        raise CommitConflict("others", "Run again.")

    draft = made.draft("RUN")
    draft.begin(TABLE)
    monkeypatch.setattr(atomic_commit, "commit_all", beaten)
    with pytest.raises(CommitConflict, match="others"):
        appended(draft, (1, "a", 1))


def test_rows_of_other_columns_are_refused(made: Lake) -> None:
    given = rows((1, "a", 1)).rename_columns(["name", "extra", "number"])
    with pytest.raises(Permanent, match="do not match its columns: extra, id, number"):
        made.draft("RUN").append(TABLE, given, bookmark=None, operation="ingest")


def test_a_column_that_was_added_meanwhile_is_null(made: Lake) -> None:
    draft = made.draft("RUN")
    draft.begin(TABLE)
    with made.iceberg(TABLE).update_schema() as update:
        update.add_column("more", StringType())
    appended(draft, (1, "a", 1))
    [found] = files(made, "RUN").values()
    assert found.select(["id", "more"]).to_pylist() == [{"id": 1, "more": None}]


def test_manifests_do_not_become_more_without_end(made: Lake) -> None:
    wanted = {"commit.manifest.min-count-to-merge": "3"}
    made.iceberg(TABLE).transaction().set_properties(wanted).commit_transaction()
    draft = made.draft("RUN")
    for number in range(8):
        appended(draft, (number, "a", 1))
    table = made.iceberg(TABLE)
    snapshot = table.snapshot_by_id(draft.head(TABLE))
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 3
    assert ids(made, draft.branch) == list(range(8))


def test_rows_take_the_place_of_a_file_and_the_others_stay(made: Lake) -> None:
    draft = made.draft("RUN")
    first = appended(draft, (1, "a", 1), (2, "b", 2))
    tasks = made.iceberg(TABLE).scan(snapshot_id=first).plan_files()
    old = {task.file.partition[0]: task.file.file_path for task in tasks}
    gone, stays = old[min(old)], old[max(old)]
    pieces = [rows((3, "c", 1)), rows((4, "d", 3))]
    second = draft.replace_files(TABLE, pieces, [gone], bookmark={"n": 2}, operation="replace")
    assert ids(made, draft.branch) == [2, 3, 4]
    now = {t.file.file_path for t in made.iceberg(TABLE).scan(snapshot_id=second).plan_files()}
    assert (stays in now, gone in now, len(now)) == (True, False, 3)
    found = made.state(TABLE).snapshot(second)
    assert (found.count("added-records"), found.count("deleted-records")) == (2, 1)
    assert (bookmarks.parse_bookmark(found), found.count("total-records")) == ({"n": 2}, 3)


def test_a_file_that_the_branch_does_not_have_is_not_replaced(made: Lake) -> None:
    draft = made.draft("RUN")
    head = appended(draft, (1, "a", 1))
    with pytest.raises(Permanent, match=r"Files that were read from silver\.t are not in it"):
        draft.replace_files(
            TABLE, rows((3, "c", 1)), ["nowhere"], bookmark=None, operation="replace"
        )
    assert draft.head(TABLE) == head

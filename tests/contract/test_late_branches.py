"""A draft that makes no branch before it must: one commit of the catalog for all that it wrote."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import update_table_metadata
from pyiceberg.types import StringType

from thermocline.contract import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.lake import Draft, Lake, MainMoved, atomic_commit, metadata_updates, refs
from thermocline.lake.orphans import find_orphans

TABLE, OTHER = "bronze.t", "quarantine.t"


def contract(table: str) -> Contract:
    return Contract(table, (Column("id", Primitive("long"), True),))


@pytest.fixture
def late(lake: Lake) -> Draft:
    lake.ensure(contract(TABLE))
    lake.ensure(contract(OTHER))
    return lake.draft("RUN", late_branches=True)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def add(draft: Draft, *ids: int, table: str = TABLE) -> int:
    draft.begin(table)
    with draft.open_writer(table) as files:
        files.add(rows(*ids))
    return draft.add(table, files, bookmark={"n": len(ids)}, operation="ingest")


def ids(lake: Lake, table: str = TABLE) -> list[int]:
    return sorted(lake.iceberg(table).scan().to_arrow()["id"].to_pylist())


def left(lake: Lake) -> set[str]:
    """Files of the table that nobody needs, but for metadata files."""
    return {path for path, _ in find_orphans(lake.iceberg(TABLE)) if not path.endswith(".json")}


def test_a_batch_is_one_commit_of_each_table_and_no_branch(
    late: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = late.lake
    before = {table: lake.state(table) for table in (TABLE, OTHER)}
    real, commits = atomic_commit.commit_all, []

    def counted(*given: Any, **more: Any) -> None:
        commits.append([change.table for change in given[1]])
        real(*given, **more)

    monkeypatch.setattr(atomic_commit, "commit_all", counted)
    number = add(late, 1, 2)
    late.append(OTHER, rows(3), bookmark=None, operation="quarantine")
    assert commits == []
    assert (ids(lake), ids(lake, OTHER)) == ([], [])

    published = late.publish()
    assert commits == [[TABLE, OTHER]]
    assert published.tables[TABLE] == (before[TABLE].head(), number)
    assert (ids(lake), ids(lake, OTHER)) == ([1, 2], [3])
    for table, state in before.items():
        now = lake.state(table)
        assert list(now.refs) == ["main"]
        assert len(now.raw["metadata-log"]) == len(state.raw["metadata-log"]) + 1


def test_a_commit_to_another_branch_meanwhile_changes_nothing(late: Draft) -> None:
    lake = late.lake
    number = add(late, 1)
    aside = lake.draft("ASIDE")
    aside.append(TABLE, rows(9), bookmark=None, operation="ingest")
    late.publish()
    assert (lake.state(TABLE).head(), ids(lake)) == (number, [1])
    aside_head, main = lake.state(TABLE).snapshot(aside.head(TABLE)), lake.state(TABLE)
    assert main.snapshot(number).sequence > aside_head.sequence


@pytest.mark.parametrize("how", ["rows", "schema"])
def test_what_no_longer_fits_is_refused_and_leaves_nothing(late: Draft, how: str) -> None:
    lake = late.lake
    before = left(lake)
    add(late, 1)
    if how == "rows":
        first = lake.draft("FIRST", late_branches=True)
        add(first, 7)
        first.publish()
    else:
        with lake.iceberg(TABLE).update_schema() as update:
            update.add_column("more", StringType())
    with pytest.raises(MainMoved):
        late.publish()
    late.drop()
    assert ids(lake) == ([7] if how == "rows" else [])
    assert left(lake) == before


def test_who_looks_at_the_head_sees_what_is_pending(late: Draft) -> None:
    number = add(late, 1)
    assert late.head(TABLE) == number
    state = late.lake.state(TABLE)
    assert state.head(late.branch) == number != state.head()
    add(late, 2)
    late.publish()
    assert (ids(late.lake), list(late.lake.state(TABLE).refs)) == ([1, 2], ["main"])


def test_pending_work_that_is_dropped_leaves_no_file(late: Draft) -> None:
    before = left(late.lake)
    add(late, 1)
    assert len(left(late.lake) - before) == 1
    late.drop()
    assert (list(late.lake.state(TABLE).refs), left(late.lake)) == (["main"], before)


def test_the_next_metadata_is_what_pyiceberg_would_write(late: Draft) -> None:
    """The same updates, applied by both: whatever PyIceberg starts to record is noticed here."""
    lake = late.lake
    for number in range(3):
        add(late, number)
        late.publish()
        late.drop()
    state, table = lake.state(TABLE), lake.iceberg(TABLE)
    first = next(iter(state.snapshots))
    head = state.head()
    assert head is not None
    for change in (
        refs.set_ref(TABLE, "tag", first, was=None, tag=True),
        refs.set_ref(TABLE, "main", first, was=head),
        refs.set_ref(TABLE, "side", head, was=None),
    ):
        ours = metadata_updates.apply_updates(
            TABLE, state.raw, state.metadata_location, change.updates
        )
        theirs = update_table_metadata(
            table.metadata, change.updates, metadata_location=state.metadata_location
        )
        found = TableMetadataUtil.parse_obj(dict(ours))
        times = {"last_updated_ms": 0, "snapshot_log": []}
        assert found.model_copy(update=times) == theirs.model_copy(update=times)
        assert [e.snapshot_id for e in found.snapshot_log] == [
            e.snapshot_id for e in theirs.snapshot_log
        ]

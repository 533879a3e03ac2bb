"""Rows that are written piece by piece: laid out as the table asks, committed once or removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import StringType

from thermocline.contract import Column, Contract
from thermocline.contract.definition import PartitionField, SortField
from thermocline.contract.types import Primitive
from thermocline.errors import Permanent
from thermocline.lake import Lake, MainMoved, data_file_writer
from thermocline.lake.metadata import location_path

TABLE = "silver.t"
CONTRACT = Contract(
    TABLE,
    (Column("id", Primitive("long"), True), Column("at", Primitive("timestamptz"))),
    partition=(PartitionField("at", "day"),),
)


def piece(*ids: int) -> pa.Table:
    days = [datetime(2026, 3, 1 + number % 2, tzinfo=UTC) for number in ids]
    return pa.table({"at": pa.array(days, pa.timestamp("us", "UTC")), "id": list(ids)})


def on_disk(lake: Lake) -> list[Path]:
    return sorted((location_path(lake.state(TABLE).location) / "data").rglob("*.parquet"))


def written(lake: Lake, *pieces: pa.Table) -> dict[str, list[list[list[int]]]]:
    """By partition, its files, and of each file the ids in its row groups."""
    draft = lake.draft("RUN")
    with draft.open_writer(TABLE) as files:
        for each in pieces:
            files.add(each)
    snapshot = draft.add(TABLE, files, bookmark={"n": 1}, operation="ingest")
    assert lake.state(TABLE).snapshot(snapshot).count("added-records") == sum(map(len, pieces))
    draft.publish()
    found: dict[str, list[list[list[int]]]] = {}
    for path in on_disk(lake):
        file = pq.ParquetFile(path)
        groups = [file.read_row_group(n)["id"].to_pylist() for n in range(file.num_row_groups)]
        found.setdefault(path.parent.name, []).append(groups)
    return found


def test_pieces_are_gathered_into_one_file_a_partition(lake: Lake) -> None:
    lake.ensure(CONTRACT)
    assert written(lake, piece(1, 2), piece(), piece(3), piece(4, 5)) == {
        "at_day=2026-03-01": [[[2, 4]]],
        "at_day=2026-03-02": [[[1, 3, 5]]],
    }
    found = lake.iceberg(TABLE).scan(row_filter="id = 4").to_arrow()
    assert found["id"].to_pylist() == [4]


def test_what_is_held_is_bounded_and_a_file_goes_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file_writer, "BUFFER_BYTES", piece(1, 2).nbytes)
    lake.ensure(CONTRACT)
    assert written(lake, piece(1, 2), piece(3, 4), piece(5, 6)) == {
        "at_day=2026-03-01": [[[2], [4], [6]]],
        "at_day=2026-03-02": [[[1], [3], [5]]],
    }


@pytest.mark.parametrize("reason", ["size", "order", "many"])
def test_a_file_ends_when_it_is_large_or_must_be_sorted_or_too_many_are_open(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(data_file_writer, "BUFFER_BYTES", 1)
    lake.ensure(
        replace(CONTRACT, sort=(SortField("id", descending=True),) if reason == "order" else ())
    )
    if reason == "many":
        monkeypatch.setattr(data_file_writer, "MAX_OPEN_FILES", 1)
    if reason == "size":
        small = {"write.target-file-size-bytes": "10"}
        lake.iceberg(TABLE).transaction().set_properties(small).commit_transaction()
    found = written(lake, piece(2, 4, 1, 3), piece(6, 5))
    first = [4, 2] if reason == "order" else [2, 4]
    assert sorted(found["at_day=2026-03-01"]) == [[first], [[6]]]
    assert len(found["at_day=2026-03-02"]) == 2


def test_nothing_at_all_is_a_commit_too(lake: Lake) -> None:
    lake.ensure(CONTRACT)
    assert written(lake) == {}
    assert lake.state(TABLE).snapshot(lake.state(TABLE).head() or 0).summary["thermocline.run"]


@pytest.mark.parametrize("failure", [KeyError("x"), OSError("no room"), KeyboardInterrupt()])
def test_what_fails_leaves_no_file(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(data_file_writer, "BUFFER_BYTES", 1)
    lake.ensure(CONTRACT)
    expected = Permanent if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected), lake.draft("RUN").open_writer(TABLE) as files:
        files.add(piece(1, 2))
        assert len(on_disk(lake)) == 2
        raise failure
    assert on_disk(lake) == []


def test_files_that_no_longer_fit_the_table_are_removed(lake: Lake) -> None:
    lake.ensure(CONTRACT)
    draft = lake.draft("RUN")
    draft.begin(TABLE)
    with draft.open_writer(TABLE) as files:
        files.add(piece(1, 2))
    with lake.iceberg(TABLE).update_schema() as update:
        update.add_column("more", StringType())
    with pytest.raises(MainMoved):
        draft.add(TABLE, files, bookmark=None, operation="ingest")
    assert on_disk(lake) == []

"""File numbers of a copy: added and removed with files, dropped with old rows."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from tests.integration.serve.nodes.keeping import NOW, head, make_lake, make_table
from tests.unit.serve.data_files import micros

from thermocline.lake import Lake
from thermocline.serve.file_sums import day_of
from thermocline.serve.replicator.catalog_poller import CatalogPoller, PolledTable
from thermocline.serve.replicator.copy_delta import FileNumbers, compute_delta
from thermocline.serve.replicator.hot_policy import Policy


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path)


def named(table: Table, number: int, at: datetime = NOW) -> DataFile:
    """A data file that is named and not there: nothing here reads one."""
    time_ = micros(at)
    assert time_ is not None
    bound = {2: time_.to_bytes(8, "little", signed=True)}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{number}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(day_of(at)),
        record_count=1,
        file_size_in_bytes=1,
        lower_bounds=bound,
        upper_bounds=bound,
    )
    file.spec_id = table.spec().spec_id
    return file


def change(table: Table, come: list[DataFile], go: list[DataFile]) -> int:
    """Commit that files come and go; gives the snapshot."""
    with (
        table.refresh().transaction() as transaction,
        transaction.update_snapshot().overwrite() as overwrite,
    ):
        for file in come:
            overwrite.append_data_file(file)
        for file in go:
            overwrite.delete_data_file(file)
    return head(table)


def sight(lake: Lake) -> PolledTable:
    return CatalogPoller(lake.settings, Policy(), {}).poll()["gold.t"]


def test_what_came_and_left_is_known_once_it_was_taken_in(lake: Lake) -> None:
    table = make_table(lake, "gold.t")
    files = [named(table, number) for number in range(4)]
    first = change(table, files[:3], [])
    numbers = FileNumbers()
    numbers.apply(compute_delta(sight(lake), None, None, numbers))
    assert sorted(numbers[file.file_path] for file in files[:3]) == [1, 2, 3]
    gone = numbers[files[1].file_path]
    second = change(table, files[3:], files[1:2])
    found = compute_delta(sight(lake), first, None, numbers)
    assert (found.removed_numbers, list(found.added.values())) == ((gone,), [4])
    assert files[1].file_path in numbers and files[3].file_path not in numbers
    numbers.apply(found)
    assert files[1].file_path not in numbers and numbers[files[3].file_path] == 4
    change(table, files[1:2], files[3:])  # a number is never given twice
    again = compute_delta(sight(lake), second, None, numbers)
    assert (again.removed_numbers, list(again.added.values())) == ((4,), [5])


def test_files_that_the_window_has_left_behind_are_forgotten(lake: Lake) -> None:
    table = make_table(lake, "gold.t")
    change(table, [named(table, n, NOW - timedelta(days=n)) for n in range(10)], [])
    numbers, first = FileNumbers(), NOW.replace(hour=0, minute=0, second=0, microsecond=0)
    for days, left in ((8, 9), (3, 4), (1, 2)):
        since = first - timedelta(days=days)
        start = None if days == 8 else head(table)
        numbers.apply(compute_delta(sight(lake), start, since, numbers))
        assert len(numbers) == left
    found = compute_delta(sight(lake), head(table), None, numbers)
    assert not found.removed_numbers and not found.added


def test_a_compaction_costs_what_it_replaces_and_not_its_square(lake: Lake) -> None:
    table = make_table(lake, "gold.t")

    def seconds(count: int, first: int) -> float:
        files = [named(table, first + number) for number in range(count)]
        before = change(table, files, [])
        numbers = FileNumbers()
        numbers.apply(compute_delta(sight(lake), None, None, numbers))
        change(table, [named(table, first - 1)], files)
        seen = sight(lake)
        began = time.process_time()
        found = compute_delta(seen, before, None, numbers)
        numbers.apply(found)
        spent = time.process_time() - began
        assert len(found.removed_numbers) == count
        return spent

    assert seconds(4_000, 10_000) < 10 * seconds(1_000, 20_000)

"""Entries of orders that the group commit's suites hand over."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from tests.contract.catalog_tables import ORDERS, order

from thermocline.lake import Lake
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.groupcommit import CommitEntry, ReplaceFiles, ReplacePartitions

TABLE = ORDERS.table


def files(table: Table, *numbers: int) -> list[DataFile]:
    """Finished files of orders, one for each day."""
    rows = pa.Table.from_pylist(list(map(order, numbers)), table.schema().as_arrow())
    return write_files(table, rows)


def entry(lake: Lake, key: str, *numbers: int, **more: Any) -> CommitEntry:
    table = lake.iceberg(TABLE)
    return CommitEntry.of(table, key, files(table, *numbers), **more)


def overwriting(lake: Lake, key: str, *numbers: int) -> CommitEntry:
    """An entry that replaces the days of its orders; number and number + 28 are of one day."""
    table = lake.iceberg(TABLE)
    new = files(table, *numbers)
    return CommitEntry.of(table, key, new, replaces=ReplacePartitions.of(new))


def compacting(lake: Lake, key: str, *numbers: int) -> CommitEntry:
    """An entry that replaces all files there are by new ones."""
    table = lake.iceberg(TABLE)
    old = [task.file for task in table.scan().plan_files()]
    head = lake.state(TABLE).head()
    assert head is not None
    return CommitEntry.of(table, key, files(table, *numbers), replaces=ReplaceFiles.of(old, head))


def summary(lake: Lake, snapshot: int) -> dict[str, str]:
    return dict(lake.state(TABLE).snapshot(snapshot).summary)

"""Rewrites sort and cluster rows, and change none, whatever else happens to the table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from tests.conftest import SETTINGS, clean_environment
from tests.integration.ordered_tables import play_ordered

from thermocline.config import load_settings
from thermocline.contract import Column, Contract, SortField, WriteMode
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.clustering import CLUSTER_PROPERTY, cluster_columns
from thermocline.lake.file_commit import append_rows, commit_files
from thermocline.lake.live_files import LiveFile, live_files
from thermocline.maintain.file_rewrite import Rewrite, rewrite_files

TABLE = "silver.points"
HISTORIES, STEPS = 8, 30
FILES, ROWS = 6, 4_000
POINTS = Contract(
    TABLE,
    tuple(Column(name, Primitive(kind)) for name, kind in (("x", "long"), ("y", "double"))),
    write=WriteMode.APPEND,
)
CLUSTERED = replace(POINTS, cluster=("x", "y"))


def open_lake(folder: Path, **variables: str) -> Lake:
    """Open the lake of a new or an existing project."""
    folder.mkdir(exist_ok=True)
    (folder / "thermocline.toml").write_text(SETTINGS)
    return Lake(load_settings(folder, environ={**clean_environment(), **variables}))


def test_every_sorted_file_is_sorted_and_no_row_changes(tmp_path: Path) -> None:
    rewrites: Counter[str] = Counter()
    for seed in range(HISTORIES):
        lake = open_lake(tmp_path / str(seed))
        rewrites.update(play_ordered(lake, seed, STEPS))
        lake.close()
    assert rewrites["published"] > 30
    assert rewrites["carried"] > 0
    assert rewrites["sorted files"] > 100
    assert rewrites["clustered files"] > 50


def fill(lake: Lake, contract: Contract) -> list[tuple[int, float]]:
    """Create a table and append files that each have values of the whole range."""
    lake.ensure(contract)
    random = pa.compute.random(FILES * ROWS, initializer=1).to_numpy()
    rows = [(int(value * 1e6), float(other)) for value, other in zip(random, random[::-1])]
    for number in range(FILES):
        some = rows[number * ROWS : (number + 1) * ROWS]
        x, y = zip(*some, strict=True)
        part = pa.table({"x": pa.array(x, pa.int64()), "y": pa.array(y, pa.float64())})
        commit_files(lambda: lake.iceberg(TABLE), append_rows(part), "main", {})
    return rows


def rewrite_all(lake: Lake, target: int) -> list[LiveFile]:
    """Rewrite all files of the table together, and return the new ones."""
    found = main_files(lake)
    paths = frozenset(live.path for live in found)
    rewrite_files(lake, Rewrite(TABLE, found[0].partition, paths, target))
    return main_files(lake)


def main_files(lake: Lake) -> list[LiveFile]:
    """The data files of main."""
    head = lake.state(TABLE).head()
    assert head is not None
    return live_files(lake.iceberg(TABLE), head)


def read(table: Table, live: LiveFile) -> list[tuple[int, float]]:
    """The rows of a file, in its order."""
    with table.io.new_input(live.path).open() as stream:
        return [tuple(row.values()) for row in pq.read_table(stream).to_pylist()]


@pytest.mark.parametrize("memory", ["64KB", "512MB"])
def test_a_rewrite_sorts_all_files_together(tmp_path: Path, memory: str) -> None:
    lake = open_lake(tmp_path / "lake", THERMOCLINE_MAINTAIN__SORT_MEMORY=memory)
    sort = (SortField("x", descending=True),)
    rows = fill(lake, replace(POINTS, sort=sort))
    before = main_files(lake)
    assert len(before) == FILES
    table = lake.iceberg(TABLE)
    order = table.metadata.default_sort_order_id
    assert {live.file.sort_order_id for live in before} == {order}
    after = rewrite_all(lake, target=64 << 10)
    assert len(after) > 2
    assert {live.file.sort_order_id for live in after} == {order}
    parts = sorted((read(table, live) for live in after), reverse=True)
    found = [row for part in parts for row in part]
    assert [x for x, _ in found] == sorted((x for x, _ in rows), reverse=True)
    assert Counter(found) == Counter(rows)
    assert not list((tmp_path / "lake" / ".thermocline").glob("sort-*"))


def test_a_rewrite_clusters_by_all_columns_of_a_z_order(tmp_path: Path) -> None:
    lake = open_lake(tmp_path / "lake")
    rows = fill(lake, CLUSTERED)
    table = lake.iceberg(TABLE)
    after = rewrite_all(lake, target=16 << 10)
    assert len(after) >= 8
    assert {live.file.sort_order_id for live in after} == {None}
    assert all("/zorder-1-2-" in live.path for live in after)
    parts = [read(table, live) for live in after]
    assert Counter(row for part in parts for row in part) == Counter(rows)
    for column in (0, 1):
        value = sorted(row[column] for row in rows)[len(rows) // 3]
        ranges = [(min(r[column] for r in part), max(r[column] for r in part)) for part in parts]
        opened = sum(low <= value <= high for low, high in ranges)
        assert opened <= len(parts) * 0.7, (column, opened, len(parts))


def test_a_z_order_follows_the_contract(tmp_path: Path) -> None:
    lake = open_lake(tmp_path / "lake")

    def columns() -> list[str]:
        return [column.name for column in cluster_columns(lake.iceberg(TABLE))]

    lake.ensure(CLUSTERED)
    assert columns() == ["x", "y"]
    renamed = (replace(POINTS.columns[0], name="z", renamed_from="x"), POINTS.columns[1])
    lake.ensure(replace(CLUSTERED, columns=renamed, cluster=("y", "z")))
    assert columns() == ["y", "z"]
    lake.ensure(replace(POINTS, columns=renamed, sort=(SortField("z"),)))
    assert columns() == []
    assert CLUSTER_PROPERTY not in lake.state(TABLE).properties
    assert [field["source-id"] for field in lake.state(TABLE).sort_fields] == [1]

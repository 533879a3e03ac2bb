"""Random histories of a table whose rows are sorted or clustered when files are rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform
from tests.integration.maintained_tables import POLICY, TABLE, MaintainedTable

from thermocline.lake import Lake
from thermocline.lake.clustering import CLUSTER_PROPERTY, ZORDER_PREFIX
from thermocline.lake.live_files import LiveFile, live_files
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.maintenance_plan import CompactTask, plan_tables

COLUMNS = ("id", "kind", "n")


class OrderedTable(MaintainedTable):
    """A maintained table that changes its order now and then.

    After each step every file that is recorded as sorted must be sorted.
    """

    def __init__(self, lake: Lake, seed: int) -> None:
        super().__init__(lake, seed)
        if seed % 4 < 3:
            self.sort_by()
        else:
            self.cluster_by()

    def maintain(self) -> None:
        """Plan a pass, and apply its rewrites."""
        plan = plan_tables(self.lake, self.lake.states([TABLE]), FileStatsReader(), POLICY)
        for task in plan.tasks:
            if isinstance(task, CompactTask):
                self._apply(task.rewrite)

    def evolve(self) -> None:
        """Change the schema, the sort order or the z-order."""
        choice = self.random.random()
        if choice < 0.4:
            self.sort_by()
        elif choice < 0.7:
            self.cluster_by()
        else:
            super().evolve()

    def sort_by(self) -> None:
        """Sort new files by one or two columns, or by none."""
        chosen = self.random.sample(COLUMNS, self.random.randint(0, 2))
        with self._table().update_sort_order() as update:
            for name in chosen:
                add = self.random.choice([update.asc, update.desc])
                nulls = self.random.choice([NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST])
                add(name, IdentityTransform(), nulls)

    def cluster_by(self) -> None:
        """Cluster rewritten files by some columns, or by none."""
        chosen = self.random.sample(COLUMNS, self.random.choice([0, 2, 3]))
        with self._table().transaction() as transaction:
            transaction.set_properties({CLUSTER_PROPERTY: json.dumps(chosen) if chosen else ""})

    def compare(self) -> None:
        """Compare all rows, and the order of each file of main."""
        super().compare()
        table = self._table()
        for live in live_files(table, self._head()):
            self.rewrites["clustered files"] += ZORDER_PREFIX in live.path
            order = table.metadata.sort_order_by_id(live.file.sort_order_id or 0)
            if order is None or not order.fields:
                continue
            self.rewrites["sorted files"] += 1
            names = {field.field_id: field.name for field in table.schema().fields}
            keys = [
                (names[f.source_id], f.direction is SortDirection.DESC,
                 f.null_order is NullOrder.NULLS_FIRST)
                for f in order.fields
            ]  # fmt: skip
            found = list(self._rows(live))
            assert found == sort_rows(found, keys), (live.path, keys)

    def _rows(self, live: LiveFile) -> Iterator[dict[str, Any]]:
        with self._table().io.new_input(live.path).open() as stream:
            yield from pq.read_table(stream, columns=list(COLUMNS)).to_pylist()


def sort_rows(
    rows: list[dict[str, Any]], keys: list[tuple[str, bool, bool]]
) -> list[dict[str, Any]]:
    """Sort rows by columns, each with its direction and the place of nulls."""
    for name, descending, nulls_first in reversed(keys):
        present = [row for row in rows if row[name] is not None]
        absent = [row for row in rows if row[name] is None]
        present.sort(key=lambda row: row[name], reverse=descending)
        rows = absent + present if nulls_first else present + absent
    return rows


def play_ordered(lake: Lake, seed: int, steps: int) -> Mapping[str, int]:
    """Play one history; raise with its steps when a snapshot is wrong or a file is not sorted."""
    table = OrderedTable(lake, seed)
    try:
        for _ in range(steps):
            table.step()
    except Exception as error:
        raise AssertionError(f"seed {seed}, steps {table.steps}: {error}") from error
    return table.rewrites

"""The order in which a rewrite puts its rows: the table's z-order, else its sort order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from thermocline.config import private_files, quantities
from thermocline.config.scratch import ScratchFolder
from thermocline.lake.clustering import cluster_columns
from thermocline.lake.data_file_reader import NO_POSITIONS, DataFileReader
from thermocline.lake.data_file_writer import conform_columns
from thermocline.lake.external_sort import ExternalSort
from thermocline.lake.row_order import RowOrder, SortedBy, ZOrder

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

    from thermocline.lake import Lake
    from thermocline.lake.live_files import LiveFile

_SAMPLE_ROWS = 1 << 16
_SEED = 7


@contextmanager
def open_sort(
    lake: Lake, table: Table, inputs: Sequence[LiveFile]
) -> Iterator[ExternalSort | None]:
    """Provide a sort of the rows of these files in the table's order; None if it has no order.

    What does not fit into `maintain.sort_memory` is spilled to the project's private folder.
    """
    order = _find_order(table, inputs)
    if order is None:
        yield None
        return
    memory = quantities.parse_size(lake.settings.maintain.sort_memory)
    with ScratchFolder(private_files.ensure_folder(lake.settings.project), "sort-") as folder:
        yield ExternalSort(order, folder, memory)


def _find_order(table: Table, inputs: Sequence[LiveFile]) -> RowOrder | None:
    columns = cluster_columns(table)
    if columns:
        return ZOrder.from_sample(columns, _sample(table, columns, inputs))
    return SortedBy.of_table(table)


def _sample(table: Table, columns: Sequence[NestedField], inputs: Sequence[LiveFile]) -> pa.Table:
    """Return some rows of the files; deleted rows may be among them."""
    reader = DataFileReader(table, Schema(*columns))
    total = sum(live.file.record_count for live in inputs)
    step = max(1, total // _SAMPLE_ROWS)
    random = np.random.default_rng(_SEED)
    found = [reader.empty]
    for live in inputs:
        for _, part in reader.live_parts(live.file, NO_POSITIONS):
            count = -(-part.num_rows // step)
            found.append(part.take(pa.array(random.integers(part.num_rows, size=count))))
    return conform_columns(columns, pa.concat_tables(found))

"""Distinct values of columns as a Puffin file of the table, which query planners read.

Spark computes them: a sketch of each column, of all rows of main. The file belongs to a snapshot
and is kept while the snapshot is; later commits keep it, and planners use the newest one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, Transient
from thermocline.lake.row_counts import sum_counts
from thermocline.telemetry import safe_first_line

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState

CHANGED_SHARE = 0.1
"""The share of rows that must have changed before statistics are computed again."""
_SKETCH = "apache-datasketches-theta-v1"


@dataclass(frozen=True)
class ColumnStatistics:
    """The statistics of a table: their snapshot, their file, and distinct values by column.

    `is_new` is whether they were computed now; otherwise the table has hardly changed since.
    """

    table: str
    snapshot: int
    path: str
    distinct: dict[str, int]
    is_new: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        return asdict(self) | {"snapshot": str(self.snapshot)}


def compute_statistics(lake: Lake, table: str) -> ColumnStatistics:
    """Compute the distinct values of all columns of main, unless it has hardly changed since."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from thermocline.engine.spark import CATALOG

    state = lake.state(table)
    if state.head() is None:
        raise BadInput(f"{table} has no rows yet.", "Statistics are computed from rows.")
    known = find_statistics(state)
    if known is not None and _changed_share(state, known.snapshot) < CHANGED_SHARE:
        return known
    try:
        lake.spark.sql(f"CALL {CATALOG}.system.compute_table_stats(table => '{table}')").collect()
    except (PySparkException, Py4JError) as error:
        reason = safe_first_line(error)
        raise Transient(
            f"The statistics of {table} could not be computed: {reason}", "Run again."
        ) from error
    found = find_statistics(lake.state(table))
    if found is None:
        raise Transient(f"Spark left no statistics of {table}.", "Does it have rows?")
    return ColumnStatistics(table, found.snapshot, found.path, found.distinct, is_new=True)


def find_statistics(state: TableState) -> ColumnStatistics | None:
    """Return the newest statistics of main; None if it has none."""
    by_snapshot = {each["snapshot-id"]: each for each in state.raw.get("statistics") or ()}
    names = {field["id"]: field["name"] for field in state.schema["fields"]}
    for snapshot in state.ancestry(state.head()):
        entry = by_snapshot.get(snapshot.id)
        if entry is None:
            continue
        distinct = {
            names[blob["fields"][0]]: int(blob["properties"]["ndv"])
            for blob in entry["blob-metadata"]
            if blob["type"] == _SKETCH and "ndv" in (blob.get("properties") or {})
            and len(blob["fields"]) == 1 and blob["fields"][0] in names
        }  # fmt: skip
        return ColumnStatistics(state.table, snapshot.id, entry["statistics-path"], distinct)
    return None


def _changed_share(state: TableState, snapshot: int) -> float:
    """Return the changed rows since a snapshot over the rows of the table."""
    since = state.between(snapshot, state.head())
    if since is None:
        return 1.0
    counts = sum_counts(since)
    head = state.snapshot(since[0].id if since else snapshot)
    changed = counts.added + counts.changed + counts.removed
    return changed / max(1, head.count("total-records"))

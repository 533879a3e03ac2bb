"""What maintenance did: one row per task in the Iceberg table `ops.maintenance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.contract import Contract
from thermocline.contract.definition import Column, WriteMode
from thermocline.contract.types import Primitive
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.file_commit import append_rows, commit_files
from thermocline.lake.metadata import MAIN
from thermocline.maintain.task import COUNTS

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.maintain.service import TaskResult

JOURNAL = "ops.maintenance"
_COLUMNS = {
    "started_at": "timestamptz", "kind": "string", "table_name": "string", "partition": "string",
    "outcome": "string", "reason": "string", "seconds": "double", "cpu_seconds": "double",
    "snapshot": "long", **dict.fromkeys(COUNTS, "long"),
}  # fmt: skip
_CONTRACT = Contract(
    table=JOURNAL,
    columns=tuple(Column(name, Primitive(kind)) for name, kind in _COLUMNS.items()),
    description="The tasks of table maintenance, and what became of them.",
    write=WriteMode.APPEND,
)


def record_results(lake: Lake, results: Sequence[TaskResult]) -> None:
    """Append the results of a pass in one commit; a pass without tasks writes nothing."""
    import pyarrow as pa

    if not results:
        return
    lake.ensure(_CONTRACT)
    rows = [_to_row(result) for result in results]
    names = list(_COLUMNS)
    arrays = [pa.array([row[name] for row in rows], _arrow(_COLUMNS[name])) for name in names]
    commit_files(
        lambda: lake.iceberg(JOURNAL),
        append_rows(pa.table(arrays, names)),
        MAIN,
        {bookmarks.COMMIT: uuid4().hex, bookmarks.OPERATION: "journal"},
    )


def read_history(lake: Lake, limit: int) -> list[dict[str, Any]]:
    """Return the newest tasks first."""
    if not lake.exists(JOURNAL):
        return []
    state = lake.state(JOURNAL)
    head = state.head()
    if head is None:
        return []
    relation = lake.duck.read(state.metadata_location, head)
    found = relation.order("started_at DESC").limit(limit)
    names = relation.columns
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _to_row(result: TaskResult) -> Mapping[str, Any]:
    return {
        "started_at": result.started_at,
        "kind": str(result.task.kind),
        "table_name": result.task.table,
        "partition": result.task.partition,
        "outcome": result.outcome,
        "reason": result.reason,
        "seconds": result.seconds,
        "cpu_seconds": result.cpu_seconds,
        "snapshot": result.effect.snapshot,
        **result.counts,
    }


def _arrow(kind: str) -> Any:
    import pyarrow as pa

    kinds = {
        "string": pa.string(), "long": pa.int64(), "double": pa.float64(),
        "timestamptz": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    return kinds[kind]

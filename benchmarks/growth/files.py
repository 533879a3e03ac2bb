"""Measure the overwrite of one partition and the merge of one key in a table of many files.

    python -m benchmarks.growth.files [--sizes 6000 25000 100000]

A table of orders by day, twenty files a day. Only the newest days are written with rows; all other
files are listed in manifests with the statistics that they would have, and are not there: whatever
opens one of them fails here, and is then counted as "opens all". Manifests are those that commits
of ten days each leave, merged as the table's properties say. Each figure is of a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, TimestamptzType

from benchmarks.growth.plan import columns, peak_mb
from thermocline.config import load_settings
from thermocline.contract import Column, Contract
from thermocline.contract.definition import PartitionField, Rule, UpdateMode
from thermocline.contract.types import Primitive
from thermocline.lake import Lake, atomic_commit, snapshot_producer
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.naming import new_run_id
from thermocline.lake.snapshot_producer import FileChange

SIZES = (6_000, 25_000, 100_000)
A_DAY = 20
DAYS_A_COMMIT = 10
IDS_A_FILE = 1_000
LAST = date(2026, 11, 1)
TABLE = "silver.orders"
CONTRACT = Contract(
    TABLE,
    (
        Column("id", Primitive("long"), True),
        Column("at", Primitive("timestamptz")),
        Column("note", Primitive("string")),
    ),
    key=("id",),
    partition=(PartitionField("at", "day"),),
    updates=UpdateMode.MERGE_ON_READ,
)
RULED = replace(
    CONTRACT,
    key=(),
    rules=(
        Rule("range", ("id",), (("min", 0),)),
        Rule("length", ("note",), (("max", 9),)),
    ),
)


def run(sizes: Sequence[int] = SIZES) -> None:
    """Measure each number of files and print the growth."""
    found: dict[str, list[dict[str, float]]] = {}
    listed = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="growth-files-") as name:
            project = Path(name)
            listed.append(_make(project, size))
            for what in ACTS:
                for label, cost in _in_a_process(project, what).items():
                    found.setdefault(label, []).append(cost)
    print(f"\n{' / '.join(f'{size:,}' for size in sizes)} files,"
          f" {' / '.join(map(str, listed))} manifests")  # fmt: skip
    print(f"  {'':28}{'CPU ms':>26}{'ratio':>8}{'wall ms':>28}{'ratio':>8}{'MB':>18}")
    for label, costs in found.items():
        print(f"  {label:28}" + "".join(columns(costs)), flush=True)


def _make(project: Path, size: int) -> int:
    """Create the table; return how many manifests list its files."""
    (project / "thermocline.toml").write_text('[lake]\nname = "growth"\n')
    lake = _lake(project)
    lake.ensure(CONTRACT)
    days = size // A_DAY
    table = lake.iceberg(TABLE)
    for first in range(0, days, DAYS_A_COMMIT):
        files = [
            _file(table, day, number)
            for day in range(first, min(first + DAYS_A_COMMIT, days))
            for number in range(A_DAY)
        ]
        head = table.current_snapshot()
        parent = None if head is None else head.snapshot_id
        made = snapshot_producer.write_snapshot(table, FileChange(files, appends=True), parent, {})
        atomic_commit.commit_all(table.catalog, snapshot_changes(table, made, "main", parent))
        table = lake.iceberg(TABLE)
    draft = lake.draft(new_run_id())
    draft.append(TABLE, _rows(size), bookmark=None, operation="ingest")
    draft.publish()
    return len(lake.iceberg(TABLE).current_snapshot().manifests(table.io))  # type: ignore[union-attr]


def _lake(project: Path) -> Lake:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("THERMOCLINE_")}
    return Lake(load_settings(project, environ=clean))


def _rows(size: int, note: str = "new") -> pa.Table:
    """Return rows of the last day, with ids above all others."""
    ids = [size * IDS_A_FILE + number for number in range(1_000)]
    moment = datetime(LAST.year, LAST.month, LAST.day, 12, tzinfo=UTC)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([moment] * len(ids), pa.timestamp("us", "UTC")),
            "note": [note] * len(ids),
        }
    )


def _file(table: Table, day: int, number: int) -> DataFile:
    """Return the manifest entry of a file with a thousand ids of one day."""
    place = day * A_DAY + number
    ordinal = (LAST - timedelta(days=1 + day) - date(1970, 1, 1)).days
    first, micros = place * IDS_A_FILE, ordinal * 86_400_000_000
    name = f"data/at_day={ordinal}/00000-{number}-6f0f3a52-{place:012}.parquet"
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/{name}",
        file_format=FileFormat.PARQUET,
        partition=Record(ordinal),
        record_count=IDS_A_FILE,
        file_size_in_bytes=20_000,
        column_sizes={1: 8000, 2: 8000, 3: 4000},
        value_counts={1: IDS_A_FILE, 2: IDS_A_FILE, 3: IDS_A_FILE},
        null_value_counts={1: 0, 2: 0, 3: 0},
        lower_bounds={1: to_bytes(LongType(), first), 2: to_bytes(TimestamptzType(), micros),
                      3: b"a"},
        upper_bounds={1: to_bytes(LongType(), first + IDS_A_FILE - 1),
                      2: to_bytes(TimestamptzType(), micros + 86_399_999_999), 3: b"z"},
    )  # fmt: skip
    file.spec_id = 0
    return file


def _overwrite(lake: Lake) -> None:
    draft = lake.draft(new_run_id())
    wanted = [{"at": LAST}]
    draft.replace_partitions(TABLE, _rows(0, "b"), wanted, bookmark=None, operation="partitions")
    draft.publish()


def _warn(lake: Lake) -> None:
    from thermocline.lake.partition_cardinality import partition_warnings

    head = lake.state(TABLE).head()
    assert head is not None
    partition_warnings(lake, CONTRACT, head)


def _merge(lake: Lake) -> None:
    from thermocline.transform.duck import merge
    from thermocline.transform.duck.session import Session

    newest = lake.state(TABLE).snapshot(lake.state(TABLE).head() or 0)
    ids = (newest.count("total-data-files") - 1) * IDS_A_FILE + 7
    session, draft = Session(lake), lake.draft(new_run_id())
    draft.begin(TABLE)
    row = f"SELECT {ids}::BIGINT AS id, TIMESTAMPTZ '{LAST} 13:00:00+00' AS at, 'merged' AS note"
    try:
        merge.write_events(session, row, CONTRACT, draft, bookmark=None, full=False)
        draft.publish()
    finally:
        session.clear()
        session.close()


def _difference(lake: Lake) -> None:
    from thermocline.lake.changes import diff_snapshots

    state = lake.state(TABLE)
    chain = [snapshot.id for snapshot in state.ancestry(state.head())]
    diff_snapshots(lake.iceberg(TABLE), chain[1], chain[0], key=["id"])


def _check(lake: Lake) -> None:
    """Check what the last change touched; what was measured before it is made up here."""
    from thermocline.check import measures
    from thermocline.check.table_checks import check_tables

    state = lake.state(TABLE)
    head, before = [snapshot.id for snapshot in state.ancestry(state.head())][:2]
    rows = state.snapshot(before).count("total-records")
    rows -= state.snapshot(before).count("total-position-deletes")
    measures.store(lake, RULED, state, before, rows, [0, 0, 0])
    (report,) = check_tables(lake, [RULED], {TABLE: head})
    assert report.passed, report


ACTS: dict[str, Callable[[Lake], None]] = {
    "merge one key": _merge,
    "read what it changed": _difference,
    "overwrite one partition": _overwrite,
    "check what it changed": _check,
    "look at the partitioning": _warn,
}


def _in_a_process(project: Path, what: str) -> dict[str, dict[str, float]]:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth.files", "--one", what, str(project)],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if found.returncode:
        return {f"{what} (opens all)": {"cpu": 0, "wall": 0, "memory": 0}}
    costs: dict[str, dict[str, float]] = json.loads(found.stdout)
    return costs


def _one(what: str, project: Path) -> None:
    lake: Any = _lake(project)
    with closing(lake):
        lake.iceberg(TABLE)
        _ = lake.duck.connection  # what is loaded once is not what grows
        wall, cpu, before = time.perf_counter(), time.process_time(), peak_mb()
        ACTS[what](lake)
        cost = {
            "wall": (time.perf_counter() - wall) * 1000,
            "cpu": (time.process_time() - cpu) * 1000,
            "memory": peak_mb() - before,
        }
    print(json.dumps({what: cost}))


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "PROJECT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        _one(asked.one[0], Path(asked.one[1]))
    else:
        run(asked.sizes)


if __name__ == "__main__":
    main()

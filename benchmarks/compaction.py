"""Joining small files: `thermo maintain` beside Spark's rewrite_data_files.

    make bench-compaction            COMPACTION="--files 400 --rows 500" shortens it.

Two tables of the same small files are made for each case: without deletes, with position deletes
of 10 % of the rows of every file, and with an equality delete of 10 % of the keys. Ours is the
command, with its start, planning, verification and commit; Spark's session is warm and does not
verify. Afterwards both must hold the same rows in the same number of files, give or take one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

import thermocline as tc
from benchmarks.measure import machine, measured
from thermocline.contract import Column, Contract, WriteMode
from thermocline.contract.types import Decimal, Primitive
from thermocline.lake import Lake
from thermocline.lake.bookmark import COMMIT
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.file_commit import commit_files
from thermocline.lake.live_files import live_files
from thermocline.lake.metadata import MAIN
from thermocline.lake.overwrite import write_delete_file
from thermocline.lake.snapshot_producer import FileChange

GOAL = 5.0
SETTINGS = """\
[lake]
name = "compaction"
[engine.spark]
master = "local[2]"
memory = "4g"
[maintain]
cool_down = "0s"
min_files = 2
budget = "1h"
"""
COLUMNS = (
    Column("id", Primitive("long"), True),
    Column("at", Primitive("timestamptz")),
    Column("kind", Primitive("string")),
    Column("amount", Decimal(12, 2)),
    Column("payload", Primitive("string")),
)


@dataclass(frozen=True)
class Figures:
    """What one side of a case cost."""

    wall: float
    cpu: float
    peak: int
    files: int


def main() -> int:
    """Run every case and print a table; fail when rows differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[400, 5_000])
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a file")
    parser.add_argument("--deletes", choices=CASES, nargs="+", default=list(CASES))
    options = parser.parse_args()
    print(f"{machine()}   {options.rows:,} rows a file", flush=True)
    print("| files | deletes | ours CPU s | Spark CPU s | ratio | ours wall s | Spark wall s "
          "| ours peak GB | files after |")  # fmt: skip
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "thermocline.toml").write_text(SETTINGS)
        lake = Lake(tc.open(project).settings)
        _warm_up(lake)
        for files in options.files:
            for kind in options.deletes:
                failures += not _run_case(lake, project, kind, files, options.rows)
        lake.close()
    return 1 if failures else 0


def _run_case(lake: Lake, project: Path, kind: str, files: int, rows: int) -> bool:
    ours, peer = f"bronze.ours_{kind}_{files}", f"bronze.spark_{kind}_{files}"
    for table in (ours, peer):
        build(lake, table, kind, files, rows)
    before = _checksum(lake, ours)
    left = _maintain(lake, project, ours)
    right = _rewrite_on_spark(lake, peer)
    after = _checksum(lake, ours), _checksum(lake, peer)
    same = after == (before, before)
    print(
        f"| {files:,} | {kind} | {left.cpu:.1f} | {right.cpu:.1f} | {right.cpu / left.cpu:.1f} "
        f"| {left.wall:.1f} | {right.wall:.1f} | {left.peak / 1e9:.2f} "
        f"| {left.files}, {right.files} |" + ("" if same else " ROWS DIFFER"),
        flush=True,
    )
    if right.cpu / left.cpu < GOAL:
        print(f"  below the goal of {GOAL:.0f}×", flush=True)
    return same


def build(lake: Lake, name: str, kind: str, files: int, rows: int) -> None:
    """Create a table of small files and their deletes."""
    lake.ensure(Contract(name, COLUMNS, write=WriteMode.APPEND))
    table = lake.iceberg(name)
    found: list[DataFile] = []
    for number in range(files):
        found += write_files(table, make_rows(number, rows))
    _commit(lake, name, FileChange(found, appends=True))
    deletes = list(CASES[kind](lake, name, files, rows))
    if deletes:
        _commit(lake, name, FileChange(deletes))


def make_rows(number: int, rows: int) -> pa.Table:
    """Return the rows of one file: keys of its own, and a payload that compresses badly."""
    chance = np.random.default_rng(number)
    ids = np.arange(number * rows, (number + 1) * rows)
    cents = chance.integers(1, 1_000_000, rows)
    return pa.table({
        "id": ids,
        "at": pa.array(1_760_000_000_000_000 + ids * 1_000, pa.timestamp("us", "UTC")),
        "kind": [f"kind {each}" for each in chance.integers(0, 20, rows)],
        "amount": pa.array([f"{each / 100:.2f}" for each in cents]).cast(pa.decimal128(12, 2)),
        "payload": [chance.bytes(20).hex() for _ in range(rows)],
    })  # fmt: skip


def _no_deletes(*_: Any) -> Iterator[DataFile]:
    yield from ()


def _position_deletes(lake: Lake, name: str, _: int, rows: int) -> Iterator[DataFile]:
    table = lake.iceberg(name)
    for live in live_files(table, _head(lake, name)):
        gone = np.arange(0, rows, 10, dtype=np.int64)
        yield write_delete_file(table, live.file.partition, {live.path: gone})


def _equality_delete(lake: Lake, name: str, files: int, rows: int) -> Iterator[DataFile]:
    table = lake.iceberg(name)
    keys = np.arange(0, files * rows, 10)
    schema = pa.schema([pa.field("id", pa.int64(), False, {"PARQUET:field_id": "1"})])
    output = table.io.new_output(f"{table.location()}/data/eq-{uuid4()}.parquet")
    with output.create() as stream:
        pq.write_table(pa.table([keys], schema=schema), stream)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES, file_path=output.location,
        file_format=FileFormat.PARQUET, partition=Record(), record_count=len(keys),
        file_size_in_bytes=len(output), equality_ids=[1], sort_order_id=None, key_metadata=None,
    )  # fmt: skip
    file.spec_id = 0
    yield file


CASES: dict[str, Callable[[Lake, str, int, int], Iterator[DataFile]]] = {
    "none": _no_deletes,
    "positions": _position_deletes,
    "equality": _equality_delete,
}


def _maintain(lake: Lake, project: Path, table: str) -> Figures:
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "thermocline", "maintain", table],
        cwd=project, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"thermo maintain {table} ended with {process.returncode}")
    wall, cpu = time.perf_counter() - began, used.ru_utime + used.ru_stime
    return Figures(wall, cpu, used.ru_maxrss * 1024, _count_files(lake, table))


def _rewrite_on_spark(lake: Lake, table: str) -> Figures:
    with measured() as cost:
        lake.spark.session.sql(
            f"CALL lake.system.rewrite_data_files(table => '{table}', options => "
            "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true', "
            f"'target-file-size-bytes', '{256 << 20}'))"
        ).collect()
    return Figures(cost.wall, cost.cpu, cost.peak, _count_files(lake, table))


def _warm_up(lake: Lake) -> None:
    build(lake, "bronze.warm", "positions", 40, 100)
    for _ in range(3):
        _rewrite_on_spark(lake, "bronze.warm")


def _checksum(lake: Lake, table: str) -> Any:
    columns = ", ".join(column.name for column in COLUMNS)
    [found] = lake.spark.session.sql(
        f"select count(*), sum(cast(xxhash64({columns}) as decimal(38))) from lake.{table}"
    ).collect()
    return tuple(found)


def _commit(lake: Lake, name: str, change: FileChange) -> None:
    commit_files(lambda: lake.iceberg(name), lambda _: change, MAIN, {COMMIT: uuid4().hex})


def _head(lake: Lake, name: str) -> int:
    head = lake.state(name).head()
    assert head is not None
    return head


def _count_files(lake: Lake, name: str) -> int:
    return len(live_files(lake.iceberg(name), _head(lake, name)))


if __name__ == "__main__":
    raise SystemExit(main())

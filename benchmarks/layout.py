"""Sort one large group of files with limited memory, and look rows up before and after.

    python -m benchmarks.layout [--mb 1000] [--memory 256MB] [--order sort|zorder] [--seed 1]

The rows are random, so that each file has values of the whole range. The rewrite runs in a process
of its own, whose peak memory is reported; the rows are verified as in any rewrite.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.conftest import SETTINGS, clean_environment

from benchmarks.measure import machine, measured
from thermocline.config import load_settings
from thermocline.contract import Column, Contract, SortField, WriteMode
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.file_commit import append_rows, commit_files
from thermocline.lake.live_files import LiveFile, live_files
from thermocline.maintain.file_rewrite import Rewrite, rewrite_files
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.table_health import evaluate_table

TABLE = "silver.points"
POINTS = Contract(
    TABLE,
    tuple(Column(name, Primitive(kind)) for name, kind in
          (("x", "long"), ("y", "double"), ("name", "string"))),
    write=WriteMode.APPEND,
)  # fmt: skip
ORDERS = {
    "sort": replace(POINTS, sort=(SortField("x"),)),
    "zorder": replace(POINTS, cluster=("x", "y")),
}
PART_ROWS = 500_000
TARGET = 64 << 20
LOOKUPS = 20


def main() -> int:
    """Build the table, rewrite it, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--memory", default="256MB")
    parser.add_argument("--order", choices=[*ORDERS], default="sort")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rewrite", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rewrite is not None:
        _rewrite(options.rewrite, options.memory)
        return 0
    print(f"{machine()}   seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="layout-") as folder:
        project = Path(folder)
        (project / "thermocline.toml").write_text(SETTINGS)
        lake = _open(project, options.memory)
        rows = _fill(lake, ORDERS[options.order], options.mb << 20, options.seed)
        print(f"{rows:,} rows, {_describe(lake, options.seed)}", flush=True)
        lake.close()
        arguments = ["--rewrite", folder, "--memory", options.memory]
        print(f"{options.order} with {options.memory}: ", end="", flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.layout", *arguments], check=True)
        print(_describe(_open(project, options.memory), options.seed))
    return 0


def _open(project: Path, memory: str) -> Lake:
    environment = {**clean_environment(), "THERMOCLINE_MAINTAIN__SORT_MEMORY": memory}
    return Lake(load_settings(project, environ=environment))


def _fill(lake: Lake, contract: Contract, size: int, seed: int) -> int:
    random, rows = np.random.default_rng(seed), 0
    lake.ensure(contract)
    while sum(live.file.file_size_in_bytes for live in _files(lake)) < size:
        x = random.integers(0, 1 << 40, PART_ROWS)
        names = pa.array(np.char.mod("name %d", random.integers(0, 1 << 30, PART_ROWS)))
        part = pa.table({"x": x, "y": random.random(PART_ROWS), "name": names})
        commit_files(lambda: lake.iceberg(TABLE), append_rows(part), "main", {})
        rows += PART_ROWS
    return rows


def _files(lake: Lake) -> list[LiveFile]:
    head = lake.state(TABLE).head()
    return [] if head is None else live_files(lake.iceberg(TABLE), head)


def _rewrite(project: Path, memory: str) -> None:
    lake = _open(project, memory)
    found = _files(lake)
    paths = frozenset(live.path for live in found)
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with measured() as cost:
        rewrite_files(lake, Rewrite(TABLE, found[0].partition, paths, TARGET))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak {peak * 1024 / 1e9:.2f} GB, {idle * 1024 / 1e9:.2f} GB before it   {cost}")


def _describe(lake: Lake, seed: int) -> str:
    """Describe the files, and look values up by each column."""
    state, random = lake.state(TABLE), np.random.default_rng(seed)
    health = evaluate_table(lake, state, FileStatsReader(), MaintenancePolicy(target_bytes=TARGET))
    head = state.head()
    assert head is not None
    taken = []
    for column in ("x", "y"):
        relation = lake.duck.read(state.metadata_location, head)
        values = random.integers(0, 1 << 40, LOOKUPS) if column == "x" else random.random(LOOKUPS)
        began = time.perf_counter()
        for value in values.tolist():
            relation.filter(f"{column} = {value!r}").fetchall()
        taken.append(f"{column} {(time.perf_counter() - began) / LOOKUPS * 1000:,.0f} ms")
    opened = health.sort.opened if health.sort else 0.0
    return (
        f"{health.files.files:,} files, {health.files.bytes / 1e9:.2f} GB; a lookup opens"
        f" {opened:.1f} files; {', '.join(taken)}"
    )


if __name__ == "__main__":
    sys.exit(main())

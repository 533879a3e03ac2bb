"""Ingest the shop's landing files with Spark and with the Arrow lane, source by source.

One process, one JVM and the same files, lane after lane and round after round. Run it with
`make bench-files`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import thermocline as tc
from benchmarks.measure import Cost, machine, measured
from benchmarks.pipeline import SETTINGS
from thermocline.api.example import _load_generator

LANES = ("spark", "auto")
Costs = dict[tuple[str, str], list[Cost]]


def main() -> None:
    """Generate, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--customers", type=int, default=50_000)
    parser.add_argument("--format", default="parquet", choices=("parquet", "jsonl"))
    parser.add_argument("--memory", default="3g")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-files-"))
    try:
        _measure_lanes(_project(folder / "warm", options, orders=5_000, customers=500), {})
        project = _project(folder / "shop", options, options.orders, options.customers)
        costs: Costs = {}
        for _ in range(options.rounds):
            _measure_lanes(project, costs)
        _report(options, costs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _project(folder: Path, options: argparse.Namespace, orders: int, customers: int) -> Path:
    tc.init(folder)
    (folder / "thermocline.toml").write_text(SETTINGS.format(memory=options.memory))
    with _load_generator(folder) as generator:
        summary = generator.generate(
            folder, orders=orders, customers=customers, events=customers, products=2_000,
            orders_format=options.format,
        )  # fmt: skip
    print(summary, file=sys.stderr)
    return folder


def _measure_lanes(project: Path, costs: Costs) -> None:
    """Ingest every source with both lanes, each into a new lake."""
    for lane, source in _iter_runs(project):
        shutil.rmtree(project / "lake", ignore_errors=True)
        lakehouse = tc.open(project)
        lakehouse.lake.spark.session  # noqa: B018  started before measuring, for both lanes
        with measured() as cost:
            [target] = lakehouse.ingest([source]).targets
        lakehouse.lake.duck.stop()
        counts = f"{target.rows:,} rows, {target.quarantined:,} bad"
        print(f"{lane:<6}{source:<11}{cost}  {counts}", file=sys.stderr)
        costs.setdefault((source, lane), []).append(cost)


def _iter_runs(project: Path) -> Iterator[tuple[str, str]]:
    for lane in LANES:
        for path in sorted((project / "sources").glob("*.yaml")):
            lines = [line for line in path.read_text().splitlines() if not line.startswith("lane:")]
            path.write_text("\n".join([*lines, f"lane: {lane}", ""]))
            yield lane, path.stem


def _report(options: argparse.Namespace, costs: Costs) -> None:
    print(f"\n{options.orders:,} orders as {options.format}, {options.customers:,} customers, "
          f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n")  # fmt: skip
    print("| | Spark wall s | CPU s | Arrow wall s | CPU s | peak GB | Arrow ÷ Spark, CPU |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for source in sorted({source for source, _ in costs}):
        spark, arrow = (min(costs[source, lane], key=lambda c: c.cpu) for lane in LANES)
        ratio = arrow.cpu / spark.cpu
        print(
            f"| {source} | {spark.wall:.1f} | {spark.cpu:.1f} | {arrow.wall:.1f} | "
            f"{arrow.cpu:.1f} | {arrow.peak / 1e9:.2f} | {ratio:.2f} |"
        )


if __name__ == "__main__":
    main()

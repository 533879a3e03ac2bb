"""The shop's landing files into bronze, by Spark's lane and by the swift one, source by source.

One process, one JVM, the same files, lane after lane and round after round. Run it with
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
        _take(_project(folder / "warm", options, orders=5_000, customers=500), {})
        project = _project(folder / "shop", options, options.orders, options.customers)
        costs: Costs = {}
        for _ in range(options.rounds):
            _take(project, costs)
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


def _take(project: Path, costs: Costs) -> None:
    """Every source by both lanes, each into a lake of its own."""
    for lane, source in _each(project):
        shutil.rmtree(project / "lake", ignore_errors=True)
        house = tc.open(project)
        house.lake.spark.session  # noqa: B018  started before, for both alike
        with measured() as cost:
            [target] = house.ingest([source]).targets
        house.lake.duck.stop()
        told = f"{target.rows:,} rows, {target.quarantined:,} bad"
        print(f"{lane:<6}{source:<11}{cost}  {told}", file=sys.stderr)
        costs.setdefault((source, lane), []).append(cost)


def _each(project: Path) -> Iterator[tuple[str, str]]:
    for lane in LANES:
        for path in sorted((project / "sources").glob("*.yaml")):
            kept = [line for line in path.read_text().splitlines() if not line.startswith("lane:")]
            path.write_text("\n".join([*kept, f"lane: {lane}", ""]))
            yield lane, path.stem


def _report(options: argparse.Namespace, costs: Costs) -> None:
    print(f"\n{options.orders:,} orders as {options.format}, {options.customers:,} customers, "
          f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n")  # fmt: skip
    print("| | Spark wall s | CPU s | swift wall s | CPU s | peak GB | swift ÷ Spark, CPU |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for source in sorted({source for source, _ in costs}):
        spark, swift = (min(costs[source, lane], key=lambda c: c.cpu) for lane in LANES)
        ratio = swift.cpu / spark.cpu
        print(
            f"| {source} | {spark.wall:.1f} | {spark.cpu:.1f} | {swift.wall:.1f} | "
            f"{swift.cpu:.1f} | {swift.peak / 1e9:.2f} | {ratio:.2f} |"
        )


if __name__ == "__main__":
    main()

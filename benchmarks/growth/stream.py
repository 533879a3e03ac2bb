"""Stream for an hour: compare the last ten minutes with the first, and the growth of metadata.

    python -m benchmarks.growth.stream [--minutes 60] [--windows 6] [--rate 1000] [--every 1s]

`thermo stream` reads JSON events from a broker of our own. For each window of time: the age of the
events when they became queryable, what the process used, and what lies in the table's metadata
folder at its end.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.freshness import Sample, Stream, from_kafka
from benchmarks.measure import machine


def main() -> None:
    """Stream, and print a row for each window."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--every", default="1s")
    parser.add_argument("--memory", default="2g")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="growth-stream-") as folder:
        stream = from_kafka(Path(folder), options)
        print(f"\n{options.rate:,} events/s from Kafka, a look every {options.every}, "
              f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n")  # fmt: skip
        _print(stream, options.minutes * 60, options.windows)


def _print(stream: Stream, seconds: float, windows: int) -> None:
    events, ages = stream.ages()
    commits = np.array(sorted(stream.published.values()))
    print("| minutes | events | commits | p50 s | p95 s | CPU ms a commit | MB of the process "
          "| metadata files | metadata MB |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    tails = []
    for number in range(windows):
        start, end = (stream.started + seconds * n / windows for n in (number, number + 1))
        these = ages[(events >= start) & (events < end)]
        made = int(((commits >= start) & (commits < end)).sum())
        first, last = _at(stream.samples, start), _at(stream.samples, end)
        p50, p95 = np.percentile(these, (50, 95))
        tails.append(p95)
        cpu = (last.cpu - first.cpu) * 1e3 / max(made, 1)
        print(f"| {(start - stream.started) / 60:.0f}–{(end - stream.started) / 60:.0f} "
              f"| {len(these):,} | {made:,} | {p50:.2f} | {p95:.2f} | {cpu:.0f} "
              f"| {last.memory / 1e6:.0f} | {last.metadata_files:,} "
              f"| {last.metadata_bytes / 1e6:.1f} |")  # fmt: skip
    print(f"\np95 of the last window ÷ the first: {tails[-1] / tails[0]:.2f}")


def _at(samples: list[Sample], moment: float) -> Sample:
    """Return the sample nearest to a moment."""
    return min(samples, key=lambda each: abs(each.at - moment))


if __name__ == "__main__":
    main()

"""Random histories of tables and their companions, compared with a model in Python.

    python -m benchmarks.histories --count 2000 --seed 1

After every step the table and its companions hold what the model says
(`tests/integration/table_histories.py`); with an even seed all snapshots expire that may. A broken
history is named by its kind and seed, with all its steps; the command then ends with 1.
`--engine spark` computes on Spark.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.integration.table_histories import KINDS, Broken, History


def main() -> int:
    """Run random histories of all kinds in turn, and print the number of operations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--engine", choices=["duckdb", "spark"], default="duckdb")
    asked = parser.parse_args()
    began, broken, done = time.monotonic(), 0, Counter[str]()
    for number in range(asked.count):
        kind, seed = KINDS[number % len(KINDS)], asked.seed + number // len(KINDS)
        with tempfile.TemporaryDirectory() as folder:
            expiring = seed % 2 == 0
            history = History(Path(folder), seed, kind, asked.engine, expiring=expiring)
            try:
                history.play(asked.steps)
            except Broken as error:
                broken += 1
                print(f"BROKEN seed {seed}{' expiring' * expiring} {error}", flush=True)
            finally:
                history.close()
        done.update(step.split(" ")[0] for step in history.log)
        if (number + 1) % 50 == 0 or number + 1 == asked.count:
            seconds = time.monotonic() - began
            print(f"{number + 1} histories, {broken} broken, {seconds:,.0f} s", flush=True)
    print(", ".join(f"{count} × {step}" for step, count in done.most_common()))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

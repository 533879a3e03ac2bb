"""Random histories of a table with maintenance: after every step every ref equals a model.

    python -m benchmarks.maintenance_histories [--count 10000] [--seed 1] [--steps 40]

A step appends, merges, deletes by position or equality, replaces files, branches, tags, rolls back,
changes schema or partitioning, begins, publishes or fails a run, holds or leaves files, or has
maintenance rewrite files or manifests, expire or remove while another step happens. It prints the
seed of a history that fails, and ends with an error. In half of them rewrites sort, and each sorted
file must be sorted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.conftest import SETTINGS, clean_environment
from tests.integration.maintained_histories import play
from tests.integration.ordered_tables import play_ordered

from benchmarks.measure import machine, measured
from thermocline.config import load_settings
from thermocline.lake import Lake


def main() -> int:
    """Play histories, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    print(f"{machine()}   seed {options.seed}", flush=True)
    rewrites, failed = Counter[str](), 0
    with measured() as cost:
        for seed in range(options.seed, options.seed + options.count):
            try:
                rewrites.update(_play(seed, options.steps))
            except AssertionError as failure:
                failed += 1
                print(f"{failure}\n  again: python -m benchmarks.maintenance_histories --count 1"
                      f" --seed {seed} --steps {options.steps}", flush=True)  # fmt: skip
    print(f"{options.count} histories of {options.steps} steps, {failed} failed   "
          f"rewrites {dict(rewrites)}   {cost}")  # fmt: skip
    return 1 if failed else 0


def _play(seed: int, steps: int) -> Counter[str]:
    with tempfile.TemporaryDirectory(prefix="maintained-") as folder:
        (Path(folder) / "thermocline.toml").write_text(SETTINGS)
        lake = Lake(load_settings(Path(folder), environ=clean_environment()))
        try:
            played = play_ordered if seed % 4 in (1, 2) else play
            return Counter(played(lake, seed, steps))
        finally:
            lake.close()


if __name__ == "__main__":
    sys.exit(main())

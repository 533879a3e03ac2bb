"""Play thousands of random models: incremental equals full after every batch, on both engines.

Run it with `python -m benchmarks.models --models 3000 --spark 300 --queries 10000 --seed 1`;
without a seed it takes the date. Models are chains of CTEs (tests/random_chains.py), ten to a
lake, each lake with four small batches after the first. `--queries` are held against the impact
analysis alone, without a lake. `--mutants` takes each guard of the analysis out and looks for a
query that finds it missing. It fails when any model is wrong, when half of them or more are
computed whole, or when a mutant is not found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from tests.integration.chain_lake import Wrong, chains, play
from tests.unit.transform.impact_mutants import MUTANTS, mutant
from tests.unit.transform.impact_trial import Trial, failed, verdict

from benchmarks.measure import machine, measured

PER_LAKE, BATCHES = 10, 5
MOST_FOR_A_MUTANT = 5_000


def main() -> int:
    """Play lakes on DuckDB and on Spark, analyze queries, and report the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=3_000, help="on DuckDB")
    parser.add_argument("--spark", type=int, default=300, help="on Spark")
    parser.add_argument("--queries", type=int, default=10_000, help="of the analysis alone")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--seed", type=int, default=int(f"{datetime.now(UTC):%y%m%d}") * 1_000)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="Delete operation did not match any records")
    print(f"{machine()}   seed {given.seed}", flush=True)
    wrong = _queries(given.seed, given.queries)
    for engine, count in (("duckdb", given.models), ("spark", given.spark)):
        wrong += _lakes(engine, given.seed, count)
    wrong += _mutants() if given.mutants else 0
    print(f"{wrong} wrong")
    return 1 if wrong else 0


def _queries(seed: int, count: int) -> int:
    trial, seen = Trial(), Counter[str]()
    with measured() as cost:
        for number in range(seed, seed + count):
            found = verdict(trial, number)
            seen[found.partition(":")[0].partition(" ")[0]] += 1
            if failed(found):
                print(f"query of seed {number}: {found}", flush=True)
    print(f"queries   {dict(seen)}   {cost}", flush=True)
    few = count > 0 and seen["incremental"] * 2 < count
    return sum(seen[each] for each in ("MISSED", "PRUNED", "REFUSED")) + few


def _lakes(engine: str, seed: int, count: int) -> int:
    taken, wrong, models = Counter[str](), 0, 0
    with measured() as cost, tempfile.TemporaryDirectory(prefix="models-") as folder:
        lake = seed
        while models < count:
            try:
                taken += play(
                    Path(folder) / str(lake), lake, engine=engine, count=PER_LAKE, batches=BATCHES
                )
            except Wrong as failure:
                wrong += 1
                print(f"{failure}\n  again: python -m benchmarks.models --queries 0 --seed {lake} "
                      f"--{'models' if engine == 'duckdb' else 'spark'} 1", flush=True)  # fmt: skip
            models += len(chains(lake, PER_LAKE))  # those that are queries
            lake += 1
    if count:
        print(f"{engine}   {models} models, {wrong} wrong   {dict(taken)}   {cost}", flush=True)
    return wrong + (count > 100 and taken["incremental"] <= taken["whole"])


def _mutants() -> int:
    trial, missed = Trial(), 0
    for name in MUTANTS:
        with mutant(name) as (first, asked):
            seeds = range(first, first + MOST_FOR_A_MUTANT)
            found = next((seed for seed in seeds if failed(verdict(trial, seed, asked))), None)
        missed += found is None
        print(f"mutant    {name}: {'not found' if found is None else f'seed {found}'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())

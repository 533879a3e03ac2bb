"""Races of maintenance against writers: no ref is lost, and no deleted row comes back.

    python -m benchmarks.maintenance_races [--expiry 1000] [--compaction 500] [--seed 1]

In a race of expiry another writer makes, moves or drops a ref, rolls back or appends between the
plan and the swap of the pointer. In a race of compaction rows are deleted, by position, by equality
or by replacing their file, after files were read and before the rewrite is committed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.conftest import SETTINGS, clean_environment
from tests.integration.expiry_races import HARSHEST, race
from tests.integration.maintained_tables import MaintainedTable

from benchmarks.measure import machine, measured
from thermocline.config import load_settings
from thermocline.lake import Lake


def main() -> int:
    """Run the races, and print who was first how often."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expiry", type=int, default=1000)
    parser.add_argument("--compaction", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{machine()}   seed {options.seed}", flush=True)
    with measured() as cost:
        expiry = _race_expiry(options.seed, options.expiry)
    print(f"{options.expiry} races of expiry, 0 refs lost   {dict(expiry)}   {cost}", flush=True)
    with measured() as cost:
        rewrites = _race_compaction(options.seed, options.compaction)
    print(f"{options.compaction} races of compaction, 0 rows came back   {dict(rewrites)}   {cost}")
    return 0


def _race_expiry(seed: int, count: int) -> Counter[str]:
    with tempfile.TemporaryDirectory(prefix="races-") as folder:
        one, other = (_open(Path(folder), HARSHEST) for _ in range(2))
        try:
            return race(one, other, range(seed, seed + count))
        finally:
            one.disconnect()
            other.disconnect()


def _race_compaction(seed: int, count: int) -> Counter[str]:
    found = Counter[str]()
    for number in range(seed, seed + count):
        with tempfile.TemporaryDirectory(prefix="races-") as folder:
            lake = _open(Path(folder), {})
            table = MaintainedTable(lake, number)
            table.append()
            acts = [table.delete_rows, table.delete_rows, table.delete_equal, table.replace]
            table.rewrite_beside(table.random.choice(acts))
            table.compare()
            found.update(table.rewrites)
            lake.disconnect()
    return found


def _open(folder: Path, variables: dict[str, str]) -> Lake:
    (folder / "thermocline.toml").write_text(SETTINGS)
    return Lake(load_settings(folder, environ={**clean_environment(), **variables}))


if __name__ == "__main__":
    sys.exit(main())

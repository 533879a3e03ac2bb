"""Random table histories: compare reads with pruned manifests to reads of all manifests.

    python -m benchmarks.pruning --count 500 --seed 1 [--steps 40]

A table that is read differently is named by its seed, with all that was done to it; the command
then ends with 1. `tests/contract/random_files.py` says what is done and what is held against what.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from tests.contract.random_files import Differs, trial

from thermocline.config import load_settings
from thermocline.lake import Lake


def main() -> int:
    """Run random histories and print how many were read differently."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("THERMOCLINE_")}
    began, broken = time.monotonic(), 0
    for number in range(asked.count):
        with tempfile.TemporaryDirectory() as name:
            project = Path(name)
            (project / "thermocline.toml").write_text('[lake]\nname = "pruning"\n')
            with closing(Lake(load_settings(project, environ=clean))) as lake:
                try:
                    trial(lake, asked.seed + number, asked.steps)
                except Differs as error:
                    broken += 1
                    print(f"BROKEN seed {asked.seed + number} {error}", flush=True)
        if (number + 1) % 50 == 0 or number + 1 == asked.count:
            seconds = time.monotonic() - began
            print(f"{number + 1} tables, {broken} broken, {seconds:,.0f} s", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run all growth benchmarks, one after the other: `make bench-growth`.

    python -m benchmarks.growth [--only commits files plan router stream] [--minutes 60]

Each prints what an operation costs at N, 4N and 16N, side by side. `stream` takes an hour; the
others about half of one together.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import UTC, datetime

from benchmarks.measure import machine

PARTS = ("commits", "files", "plan", "router", "stream")


def main() -> int:
    """Run the selected benchmarks, each in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the stream")
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}", flush=True)
    failed = 0
    for part in options.only:
        print(f"\n## {part}", flush=True)
        more = ["--minutes", str(options.minutes)] if part == "stream" else []
        command = [sys.executable, "-m", f"benchmarks.growth.{part}", *more]
        failed += subprocess.run(command, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

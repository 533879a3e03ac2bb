"""The long trial: a broker and a database of our own, which are crashed as well.

`python -m benchmarks.torture --kills 270 --events 2000000` takes about two hours on two cores. The
pipeline under it is what `thermo torture` would start; only the servers are ours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.servers import kafka, postgres
from tests.servers.trial import SECRET, crashes, name_servers

import thermocline as tc
from thermocline.cli.output import print_json, print_text
from thermocline.cli.progress import show_progress
from thermocline.cli.torture import render_verdict
from thermocline.torture import Order, Verdict, torture

LANES = ("kafka", "postgres")
SETTINGS = """\
[lake]
name = "torture"
[engine.spark]
master = "local[2]"
memory = "2g"
shuffle_partitions = 2
"""


def main() -> int:
    """Run the trial and print its report; 1 when an event went astray."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=270, help="things done; three in four are kills"
    )
    parser.add_argument("--events", type=int, default=2_000_000, help="down each lane")
    parser.add_argument("--minutes", type=float, default=180.0, help="at most")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--lane", action="append", help="only these; kafka and postgres, if none")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="the project and its tables")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="thermocline-torture-"))
    passed = False
    try:
        verdict = _tried(folder, asked)
        passed = verdict.passed
    finally:
        if passed and not asked.keep:
            shutil.rmtree(folder)
        else:
            print(f"Kept in {folder}.", file=sys.stderr)
    if asked.json:
        print_json(verdict)
    else:
        print_text(render_verdict(verdict))
    return 0 if passed else 1


def _tried(folder: Path, asked: argparse.Namespace) -> Verdict:
    """The trial on servers of its own, which end with it."""
    (folder / "broker").mkdir()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(kafka.serve(folder / "broker"))
        database = stack.enter_context(postgres.serve())
        os.environ[SECRET] = database.password
        order = Order(
            asked.minutes, asked.seed, asked.kills, asked.events,
            tuple(asked.lane or LANES), crashes(broker, database), keep=asked.keep,
        )  # fmt: skip
        progress = stack.enter_context(show_progress())
        house = tc.open(_project(folder / "project", broker, database))
        return torture(house, order, progress=progress)


def _project(folder: Path, broker: kafka.Kafka, database: postgres.Postgres) -> Path:
    """A project that names the servers, from which the trial learns of them."""
    name_servers(folder, broker, database)
    (folder / "thermocline.toml").write_text(SETTINGS)
    return folder


if __name__ == "__main__":
    sys.exit(main())

"""The long trial, with a broker and a database of its own that crash, too.

`python -m benchmarks.torture --kills 270 --events 2000000` takes about two hours on two cores. The
pipeline is the one of `thermo torture`; only the servers belong to the benchmark.
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
from thermocline.torture import TrialOptions, Verdict, torture

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
    """Run the trial and print its report; return 1 if an event was lost, duplicated or altered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=270, help="actions; three in four are kills")
    parser.add_argument("--events", type=int, default=2_000_000, help="to each lane")
    parser.add_argument("--minutes", type=float, default=180.0, help="maximum")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument(
        "--lane", action="append", help="only these lanes; by default kafka and postgres"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the project and its tables")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="thermocline-torture-"))
    passed = False
    try:
        verdict = _run_trial(folder, arguments)
        passed = verdict.passed
    finally:
        if passed and not arguments.keep:
            shutil.rmtree(folder)
        else:
            print(f"Kept in {folder}.", file=sys.stderr)
    if arguments.json:
        print_json(verdict)
    else:
        print_text(render_verdict(verdict))
    return 0 if passed else 1


def _run_trial(folder: Path, arguments: argparse.Namespace) -> Verdict:
    """Run the trial on its own servers, which end with it."""
    (folder / "broker").mkdir()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(kafka.serve(folder / "broker"))
        database = stack.enter_context(postgres.serve())
        os.environ[SECRET] = database.password
        options = TrialOptions(
            arguments.minutes, arguments.seed, arguments.kills, arguments.events,
            tuple(arguments.lane or LANES), crashes(broker, database), keep=arguments.keep,
        )  # fmt: skip
        progress = stack.enter_context(show_progress())
        house = tc.open(_project(folder / "project", broker, database))
        return torture(house, options, progress=progress)


def _project(folder: Path, broker: kafka.Kafka, database: postgres.Postgres) -> Path:
    """Create a project whose sources name the servers."""
    name_servers(folder, broker, database)
    (folder / "thermocline.toml").write_text(SETTINGS)
    return folder


if __name__ == "__main__":
    sys.exit(main())

"""The long trial: files and a broker of our own, which is killed as well.

`python -m benchmarks.torture --kills 200 --events 2000000` takes about an hour on two cores. The
pipeline under it is what `thermo torture` would start; only the broker is ours.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.servers import kafka

import thermocline as tc
from thermocline.cli.output import print_json, print_text
from thermocline.cli.progress import watched
from thermocline.cli.torture import told
from thermocline.torture import Order, torture

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
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--events", type=int, default=2_000_000, help="down each lane")
    parser.add_argument("--minutes", type=float, default=180.0, help="at most")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--lane", action="append", default=[], help="only this one, repeatable")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thermocline-torture-") as name:
        folder = Path(name)
        (folder / "broker").mkdir()
        with kafka.serve(folder / "broker") as broker, watched() as progress:

            def restart() -> None:
                broker.kill()
                broker.start()

            order = Order(
                asked.minutes, asked.seed, asked.kills, asked.events, tuple(asked.lane), (restart,)
            )
            house = tc.open(_project(folder / "project", broker))
            verdict = torture(house, order, progress=progress)
    if asked.json:
        print_json(verdict)
    else:
        print_text(told(verdict))
    return 0 if verdict.passed else 1


def _project(folder: Path, broker: kafka.Kafka) -> Path:
    """A project that names the broker, from which the trial learns of it."""
    source = {"kind": "kafka", "target": "bronze.none", "topic": "none"}
    (folder / "sources").mkdir(parents=True)
    text = json.dumps({**source, "servers": broker.servers})
    (folder / "sources" / "broker.yaml").write_text(text)
    (folder / "thermocline.toml").write_text(SETTINGS)
    return folder


if __name__ == "__main__":
    sys.exit(main())

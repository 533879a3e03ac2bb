"""Measure a plan in a lake of 60, 250 and 1,000 unchanged tables.

    python -m benchmarks.growth.plan [--sizes 60 250 1000] [--catalogs sqlite postgres rest]

Half of the tables are models that read the other half, one each. One pair is written by real runs;
the others are copies of its metadata under names and ids of their own, with older snapshots made up
before it, as a daily run of three months leaves them. What is measured reads no data file.
Each figure is of a new process: what a command costs, and what the same costs a second time in
that process, as the models of a stream do after each batch.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.integration.odcs import HEAD
from tests.servers import postgres, rest_catalog, settings

import thermocline as tc
from thermocline.lake.metadata import location_path
from thermocline.lake.naming import new_run_id

SIZES = (60, 250, 1000)
CATALOGS = ("sqlite", "postgres", "rest")
HISTORY = 90
COLUMNS = """\
      - {name: id, logicalType: integer, physicalType: long, required: true, primaryKey: true}
      - {name: amount, logicalType: number, physicalType: "decimal(12,2)"}
customProperties:
  - {property: write, value: %s}
"""


def run(sizes: Sequence[int] = SIZES, catalogs: Sequence[str] = CATALOGS) -> None:
    """Measure each catalog at each number of tables and print the growth."""
    for kind in catalogs:
        found: dict[str, list[dict[str, float]]] = {}
        for size in sizes:
            for name, cost in _measured(kind, size).items():
                found.setdefault(name, []).append(cost)
        print(f"\n{kind}: {' / '.join(f'{size:,}' for size in sizes)} tables")
        print(f"  {'':28}{'CPU ms':>26}{'ratio':>8}{'wall ms':>28}{'ratio':>8}{'MB':>18}")
        for name, costs in found.items():
            print(f"  {name:28}" + "".join(columns(costs)), flush=True)


def columns(costs: Sequence[dict[str, float]]) -> Iterator[str]:
    """Return the cells of a row: CPU and wall time with their growth, and memory."""
    for key, width in (("cpu", 26), ("wall", 28), ("memory", 18)):
        values = [cost[key] for cost in costs]
        yield f"{' / '.join(f'{value:,.0f}' for value in values):>{width}}"
        if key != "memory":
            yield f"{values[-1] / max(values[0], 0.1):>7.1f}×"


def _measured(kind: str, size: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="growth-plan-") as name:
        folder = Path(name)
        with _catalog(kind, folder) as environ:
            project = folder / "project"
            _make(project, environ, size)
            return {
                label: cost
                for what in ("run", "tables")
                for label, cost in _in_a_process(project, environ, what).items()
            }


@contextmanager
def _catalog(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    if kind == "postgres":
        with postgres.serve() as server:
            yield settings.postgres_lake_settings(server, folder)
    elif kind == "rest":
        place = folder / "rest"
        place.mkdir()
        with rest_catalog.serve(place) as server:
            yield settings.rest_lake_settings(server)
    else:
        yield {}


def _make(project: Path, environ: dict[str, str], size: int) -> None:
    for number in range(size // 2):
        _write_pair(project, f"t{number:04}")
    (project / "thermocline.toml").write_text('[lake]\nname = "growth"\n')
    os.environ.update(environ)
    with closing(tc.open(project)) as house:
        pair = {
            f"{layer}.t0000": house.contracts[f"{layer}.t0000"] for layer in ("bronze", "silver")
        }
        for contract in pair.values():
            house.lake.ensure(contract)
        draft = house.lake.draft(new_run_id())
        rows = pa.table({"id": pa.array(range(10)), "amount": pa.nulls(10, pa.decimal128(12, 2))})
        draft.append("bronze.t0000", rows, bookmark=None, operation="ingest")
        draft.publish()
        house.run(["silver.t0000"])
        layers = ("bronze", "silver")
        first = {layer: dict(house.lake.state(f"{layer}.t0000").raw) for layer in layers}
        for layer in layers:
            house.lake.catalog.create_namespace_if_not_exists(layer)
        for number in range(1, size // 2):
            name = f"t{number:04}"
            fingerprint = house.models[f"silver.{name}"].fingerprint
            for layer in layers:
                raw = _copied(first[layer], name, fingerprint)
                place = location_path(raw["location"]) / "metadata"
                place.mkdir(parents=True)
                path = place / f"00001-{uuid.uuid4()}.metadata.json"
                path.write_text(json.dumps(raw))
                house.lake.catalog.register_table(f"{layer}.{name}", f"file://{path}")
    for key in environ:
        del os.environ[key]


def _write_pair(project: Path, name: str) -> None:
    for layer, write in (("bronze", "append"), ("silver", "merge")):
        path = project / "contracts" / layer / f"{name}.odcs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD.format(name=name) + COLUMNS % write)
    path = project / "models" / "silver" / f"{name}.sql"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"select id, amount from bronze.{name}\n")


def _copied(raw: dict[str, Any], name: str, fingerprint: str) -> dict[str, Any]:
    """A table's metadata as another table's, with a long history before its first snapshot."""
    made = copy.deepcopy(raw)
    made["table-uuid"] = str(uuid.uuid4())
    made["location"] = made["location"].replace("t0000", name)
    made["properties"] = {
        key: value.replace("t0000", name) for key, value in made["properties"].items()
    }
    made.pop("metadata-log", None)
    for snapshot in made["snapshots"]:
        mark = snapshot["summary"].get("thermocline.bookmark")
        if mark is not None:
            marked = json.loads(mark.replace("t0000", name))
            marked["@model"] = fingerprint
            snapshot["summary"]["thermocline.bookmark"] = json.dumps(marked, sort_keys=True)
        snapshot["sequence-number"] += HISTORY
    made["last-sequence-number"] += HISTORY
    first = min(made["snapshots"], key=lambda each: each["sequence-number"])
    older, parent = [], None
    for number in range(HISTORY):
        back = copy.deepcopy(first)
        back["snapshot-id"] = 1000 + number
        back["sequence-number"] = 1 + number
        back["timestamp-ms"] -= HISTORY - number
        if parent is not None:
            back["parent-snapshot-id"] = parent
        parent = back["snapshot-id"]
        older.append(back)
    first["parent-snapshot-id"] = parent
    made["snapshots"] = [*older, *made["snapshots"]]
    return made


def _in_a_process(project: Path, environ: dict[str, str], what: str) -> dict[str, dict[str, float]]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("THERMOCLINE_")}
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth.plan", "--one", what, str(project)],
        env={**clean, **environ},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    costs: dict[str, dict[str, float]] = json.loads(found.stdout)
    return costs


def _one(what: str, project: Path) -> None:
    """Run one operation twice in this process and print the cost of each run."""
    costs: dict[str, dict[str, float]] = {}

    def timed(name: str, act: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        act()
        costs[name] = {
            "wall": (time.perf_counter() - wall) * 1000,
            "cpu": (time.process_time() - cpu) * 1000,
            "memory": peak_mb(),
        }

    with closing(tc.open(project)) as house:
        if what == "run":

            def planned() -> None:
                report = house.run(["silver.t0001"])
                assert report.fresh == ("silver.t0001",), report

            timed("contracts and models", lambda: house.models)
            timed("run --select one, no-op", planned)
            timed("  again in the process", planned)
        else:
            timed("tables", lambda: house.tables())
            timed("  again in the process", house.tables)
    if what == "tables":
        costs = {name.replace("  again", "  tables again"): cost for name, cost in costs.items()}
    print(json.dumps(costs))


def peak_mb() -> float:
    """The most memory that this process has had; `ru_maxrss` would begin with its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--catalogs", nargs="+", choices=CATALOGS, default=list(CATALOGS))
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "PROJECT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        _one(asked.one[0], Path(asked.one[1]))
    else:
        run(asked.sizes, asked.catalogs)


if __name__ == "__main__":
    main()

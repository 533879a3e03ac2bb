"""Upserts for minutes, with the maintenance service and without it, side by side.

    make bench-upserts            UPSERTS="--minutes 3" shortens it.

Two lakes receive the same upserts at the same moments: JSON lines into bronze, merged on read into
a silver table of 200,000 keys. Beside one of them runs the maintenance service, as it does beside a
stream. After each batch the same queries read both silver tables from their files. With the
service, the p95 of the last minute is to be at most 1.3 times that of the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import thermocline as tc
from benchmarks.measure import machine
from thermocline.lake.live_files import delete_entries, live_files

GOAL = 1.3
KEYS = 200_000
TABLE = "silver.items"
SETTINGS = """\
[lake]
name = "upserts"
[transform]
engine = "duckdb"
[maintain]
every = "2s"
cool_down = "5s"
hourly_budget = "1h"
"""
HEAD = """\
apiVersion: v3.1.0
kind: DataContract
id: bench.{name}
version: 1.0.0
status: active
schema:
  - name: {name}
    properties:
      - {{name: id, physicalType: long, required: true{key}}}
      - {{name: kind, physicalType: string}}
      - {{name: amount, physicalType: long}}
      - {{name: version, physicalType: long, required: true}}
customProperties:
"""
FILES = {
    "thermocline.toml": SETTINGS,
    "sources/items.yaml": "name: items\npath: landing\nformat: jsonl\ntarget: bronze.raw_items\n",
    "contracts/bronze/raw_items.odcs.yaml": HEAD.format(name="raw_items", key="")
    + "  - {property: write, value: append}\n",
    "contracts/silver/items.odcs.yaml": HEAD.format(name="items", key=", primaryKey: true")
    + "  - {property: write, value: merge}\n"
    "  - {property: orderBy, value: version}\n"
    "  - {property: updates, value: merge-on-read}\n",
    "models/silver/items.sql": "select id, kind, amount, version from bronze.raw_items\n",
}
QUERIES = (
    "SELECT kind, count(*), sum(amount) FROM rows GROUP BY kind ORDER BY kind",
    "SELECT count(*), max(version) FROM rows WHERE id BETWEEN 100000 AND 101000",
    "SELECT sum(amount) FROM rows",
)


class Contender:
    """One lake, and how long its queries took in each minute."""

    def __init__(self, folder: Path) -> None:
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (folder / "landing").mkdir()
        self.folder = folder
        self.house = tc.open(folder)
        self.milliseconds: list[list[float]] = []
        self.files: list[tuple[int, int]] = []

    def upsert(self, number: int, rows: int) -> None:
        """Land a batch of upserts, and merge it."""
        chance = np.random.default_rng(number)
        ids = np.arange(KEYS) if number == 0 else chance.choice(KEYS, rows, replace=False)
        amounts = chance.integers(0, 1_000, len(ids))
        lines = (
            f'{{"id":{key},"kind":"kind {key % 20}","amount":{amount},"version":{number}}}\n'
            for key, amount in zip(ids.tolist(), amounts.tolist(), strict=True)
        )
        path = self.folder / "landing" / f".{number}.jsonl"
        path.write_text("".join(lines))
        path.rename(path.with_name(f"{number}.jsonl"))
        self.house.ingest()
        self.house.run()

    def query(self, minute: int, rounds: int = 3) -> list[Any]:
        """Run the queries on the files of the newest snapshot; return their rows."""
        while len(self.milliseconds) <= minute:
            self.milliseconds.append([])
        answers = []
        lake = self.house.table(TABLE)._lake
        for _ in range(rounds):
            for sql in QUERIES:
                began = time.perf_counter()
                state = lake.state(TABLE)
                relation = lake.duck.read(state.metadata_location, state.head() or 0)
                answers.append(relation.query("rows", sql).fetchall())
                self.milliseconds[minute].append((time.perf_counter() - began) * 1000)
        return answers

    def count_files(self) -> None:
        """Record the data files and delete files of the table."""
        lake = self.house.table(TABLE)._lake
        table, head = lake.iceberg(TABLE), lake.state(TABLE).head()
        assert head is not None
        self.files.append((len(live_files(table, head)), len(delete_entries(table, head))))

    def p95(self, minute: int) -> float:
        """Return the 95th percentile of a minute's queries in milliseconds."""
        return float(np.percentile(self.milliseconds[minute], 95))


def main() -> int:
    """Send upserts to both lakes; print a line a minute, a plot, and the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--rate", type=int, default=2_000, help="rows a second")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between batches")
    options = parser.parse_args()
    print(f"{machine()}   {options.rate:,} rows/s for {options.minutes} minutes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        on, off = Contender(Path(folder) / "on"), Contender(Path(folder) / "off")
        for each in (on, off):
            each.upsert(0, KEYS)
        service = subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", "thermocline.maintain", str(on.folder)],
            stdin=subprocess.PIPE,
        )
        try:
            differences, late = _drive(on, off, options)
        finally:
            service.kill()
            service.wait()
    _print_plot(on, off)
    growth = {name: each.p95(-1) / each.p95(0) for name, each in (("on", on), ("off", off))}
    print(
        f"p95 of the last minute ÷ first: {growth['on']:.2f} with the service (goal {GOAL}), "
        f"{growth['off']:.2f} without; {late} batches late; {differences} answers differ"
    )
    print(json.dumps({"files_on": on.files, "files_off": off.files}))
    return 1 if differences or growth["on"] > GOAL else 0


def _drive(on: Contender, off: Contender, options: argparse.Namespace) -> tuple[int, int]:
    """Send batches on time; return how many answers differed and how many batches were late."""
    rows, differences, late = round(options.rate * options.every), 0, 0
    print("| minute | p95 ms with | without | files, deletes with | without |\n"
          "|---:|---:|---:|---|---|", flush=True)  # fmt: skip
    began = time.monotonic()
    for number in range(1, round(options.minutes * 60 / options.every) + 1):
        due = began + (number - 1) * options.every
        late += time.monotonic() > due + options.every
        time.sleep(max(0.0, due - time.monotonic()))
        minute = int((number - 1) * options.every // 60)
        sides = (on, off) if number % 2 else (off, on)
        for each in sides:
            each.upsert(number, rows)
        answers = [each.query(minute) for each in sides]
        differences += answers[0] != answers[1]
        if number * options.every % 60 == 0:
            for each in sides:
                each.count_files()
            print(f"| {minute + 1} | {on.p95(minute):.0f} | {off.p95(minute):.0f} "
                  f"| {on.files[-1]} | {off.files[-1]} |", flush=True)  # fmt: skip
    return differences, late


def _print_plot(on: Contender, off: Contender) -> None:
    most = max(each.p95(m) for each in (on, off) for m in range(len(each.milliseconds)))
    for name, each in (("with the service", on), ("without", off)):
        print(f"\n{name}: p95 of each minute, ms")
        for minute in range(len(each.milliseconds)):
            bar = "█" * max(1, round(each.p95(minute) / most * 50))
            print(f"{minute + 1:4} {bar} {each.p95(minute):.0f}")


if __name__ == "__main__":
    raise SystemExit(main())

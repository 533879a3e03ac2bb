"""A small project to be killed in: its files, its stages, and a child process that dies on cue.

Table metadata names absolute paths, so a stage cannot be copied elsewhere. It is saved once and
put back into the same folder before each case.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import MEMORY, clean_environment

import thermocline as tc
from thermocline.lake import bookmark as bookmarks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.api import Lakehouse

SETTINGS = f"""\
[lake]
name = "crash"
[engine.spark]
master = "local[2]"
memory = "{MEMORY}"
shuffle_partitions = 1
[transform]
engine = "spark"
"""
CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: crash.{table}
version: 1.0.0
status: active
schema:
  - name: {name}
    properties:
{columns}
customProperties:
{properties}
"""
KEY = "required: true, primaryKey: true"
CONTRACTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "bronze.raw_orders": (
        {"id": "string, required: true", "day": "date", "amount": '"decimal(12,2)"', "seq": "long",
         "op": "string"},
        {"write": "append"},
    ),
    "bronze.raw_customers": (
        {"id": "string, required: true", "city": "string", "seq": "long"},
        {"write": "append"},
    ),
    "silver.orders": (
        {"id": f"string, {KEY}", "day": "date", "amount": '"decimal(12,2)"', "seq": "long"},
        {"write": "merge", "orderBy": "seq", "deleteWhen": "\"op = 'd'\"",
         "updates": "merge-on-read"},
    ),
    "silver.customers": (
        {"id": f"string, {KEY}", "city": "string", "changed": "timestamptz, required: true"},
        {"write": "scd2", "orderBy": "changed"},
    ),
    "gold.daily": (
        {"day": "date, partitioned: true", "orders": "long", "revenue": '"decimal(38,2)"'},
        {"write": "partitions"},
    ),
}  # fmt: skip
MODELS = {
    "silver/orders.sql": "select id, day, amount, seq, op from bronze.raw_orders",
    "silver/customers.sql": (
        "select id, city, timestamp_seconds(seq) as changed from bronze.raw_customers"
    ),
    "gold/daily.sql": (
        "select day, count(*) as orders, cast(sum(amount) as decimal(38,2)) as revenue "
        "from silver.orders group by day"
    ),
}
SOURCES = {
    name: f"name: {name}\nkind: files\npath: landing/{name}\npattern: '{name}-*'\n"
    f"format: {format_}\ntarget: bronze.raw_{name}\nbadShare: 0.5\n"
    for name, format_ in {"customers": "csv", "orders": "jsonl"}.items()
}
COMMANDS = {
    "load": lambda house: (house.ingest(), house.run()),
    "replay": lambda house: (house.replay("orders", house.settings.project / "mended.jsonl"),),
}
CHILD = """
import os, sys
if "PYSPARK_GATEWAY_PORT" in os.environ:
    # Work in the JVM of the test: its session is there, only not yet in this process.
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession
    gateway = launch_gateway()
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    SparkSession(SparkContext(gateway=gateway, jsc=java))
from tests.e2e.crash_project import COMMANDS
import thermocline as tc
COMMANDS[sys.argv[2]](tc.open(sys.argv[1]))
"""
# Differs from run to run by its nature, in whatever table it appears.
VOLATILE = {"_ingested_at", "quarantined_at", "replayed_at", "run", "replayed_run"}

Rows = list[tuple[str, ...]]


def write_project(folder: Path) -> None:
    """Everything but the data."""
    files = {"thermocline.toml": SETTINGS}
    for table, (columns, properties) in CONTRACTS.items():
        files[f"contracts/{table.replace('.', '/')}.odcs.yaml"] = CONTRACT.format(
            table=table,
            name=table.partition(".")[2],
            columns="\n".join(
                f"      - {{name: {name}, physicalType: {rest}}}" for name, rest in columns.items()
            ),
            properties="\n".join(
                f"  - {{property: {name}, value: {value}}}" for name, value in properties.items()
            ),
        )
    files |= {f"models/{name}": text for name, text in MODELS.items()}
    files |= {f"sources/{name}.yaml": text for name, text in SOURCES.items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def deliver(folder: Path, number: int) -> None:
    """Put the first or second delivery into the landing folders."""
    days = [f"2026-01-{day:02}" for day in range(1, 5)]
    if number == 1:
        orders = [_order(f"o{i}", days[i % 4], f"{i}.50", 10 + i, "c") for i in range(12)]
        customers = [f"c{i},Town {i % 3},{1000 + i}" for i in range(6)]
    else:
        orders = [
            _order("o1", days[1], "100.00", 50, "u"),
            _order("o2", days[3], "7.00", 51, "u"),  # moves from one day to another
            _order("o3", days[3], "3.50", 52, "d"),
            _order("o4", days[0], "999.00", 1, "u"),  # late: an older version than the one known
            _order("o20", "2026-01-09", "20.00", 53, "c"),
        ]
        customers = ["c1,Moved,2000", "c9,Town 9,2001", "c2,Back then,900"]
    orders.append(json.dumps({"id": f"bad{number}", "day": "no day", "seq": 60 + number}))
    for name, lines in {"orders": orders, "customers": ["id,city,seq", *customers]}.items():
        suffix = "jsonl" if name == "orders" else "csv"
        path = folder / "landing" / name / f"{name}-{number}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def _order(id_: str, day: str, amount: str, seq: int, op: str) -> str:
    return json.dumps({"id": id_, "day": day, "amount": amount, "seq": seq, "op": op})


def rows(house: Lakehouse, table: str, snapshot: int | None = None) -> Rows:
    """A table's rows at a snapshot of its own, or now; sorted, without what differs by nature."""
    found = house.table(table).at(snapshot).to_arrow()
    kept = [name for name in found.column_names if name not in VOLATILE]
    return sorted(tuple(repr(v) for v in row.values()) for row in found.select(kept).to_pylist())


@dataclass(frozen=True)
class Picture:
    """What main shows: each table's snapshot and rows. A table just created has no snapshot yet."""

    heads: dict[str, int]
    rows: dict[str, Rows]


def picture(house: Lakehouse) -> Picture:
    """Main as any reader sees it now."""
    heads = {}
    for table in house.lake.tables():
        state = house.lake.state(table)
        head = state.snapshot(state.head() or 0)
        if head.summary.get(bookmarks.OPERATION) != "create":
            heads[table] = head.id
    return Picture(heads, {table: rows(house, table) for table in house.lake.tables()})


class Scene:
    """One project folder, the stages it can be put back to, and what comes out undisturbed."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project"
        self.saved = root / "saved"
        self.lake = self.project / "lake"
        self.pictures: dict[str, Picture] = {}
        self._sqlite = self.lake / "catalog.db"
        write_project(self.project)
        self.lake.mkdir()

    def open(self) -> Lakehouse:
        """The project, opened anew as the next command would."""
        return tc.open(self.project)

    def save(self, stage: str) -> Picture:
        """Remember the folder as it is."""
        house = self.open()
        self.pictures[stage] = picture(house)
        house.lake.duck.stop()
        place = self.saved / stage
        for name in ("lake", "landing"):
            shutil.copytree(self.project / name, place / name, ignore=_catalog_files)
        _copy_database(self._sqlite, place / "catalog.db")
        return self.pictures[stage]

    def restore(self, stage: str) -> None:
        """Put the folder back. The catalog is overwritten inside SQLite, which others have open."""
        place = self.saved / stage
        for name in ("lake", "landing"):
            folder = self.project / name
            for path in sorted(folder.rglob("*"), reverse=True):
                if path.is_dir():
                    path.rmdir()
                elif not path.name.startswith("catalog.db"):
                    path.unlink()
            shutil.copytree(place / name, folder, dirs_exist_ok=True)
        _copy_database(place / "catalog.db", self._sqlite)

    @contextmanager
    def expiring(self) -> Iterator[None]:
        """Have every commit let go each snapshot that it may."""
        path = self.project / "thermocline.toml"
        least = 'snapshots = 1\nage = "0.001s"\nhourly = 0\ndaily = 0\n'
        path.write_text(f"{SETTINGS}[lake.retention]\n{least}")
        try:
            yield
        finally:
            path.write_text(SETTINGS)

    def choose(self, lane: str) -> None:
        """Have the sources go by a lane."""
        for name, text in SOURCES.items():
            (self.project / "sources" / f"{name}.yaml").write_text(f"{text}lane: {lane}\n")

    def start(
        self, command: str, point: str, spark: SparkSession | None, engine: str
    ) -> subprocess.Popen[bytes]:
        """A process that does a command and kills itself at a point.

        It works in the JVM behind `spark`, which outlives it, or else in a JVM of its own.
        """
        ours = {"THERMOCLINE_CRASH_AT": point, "THERMOCLINE_TRANSFORM__ENGINE": engine}
        environment = clean_environment() | ours
        if spark is not None:
            gateway: Any = spark.sparkContext._gateway
            environment["PYSPARK_GATEWAY_PORT"] = str(gateway.gateway_parameters.port)
            environment["PYSPARK_GATEWAY_SECRET"] = gateway.gateway_parameters.auth_token
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, str(self.project), command],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(
        self, command: str, point: str, spark: SparkSession | None = None, engine: str = "spark"
    ) -> None:
        """Have a process die at a point; if it has a JVM of its own, that dies with it."""
        child = self.start(command, point, spark, engine)
        code = child.wait(timeout=180)
        while spark is None and (left := _session(child.pid)):
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            time.sleep(0.02)
        said = child.communicate()[0].decode(errors="replace")
        assert code == -signal.SIGKILL, f"{point} was not reached:\n{said}"


def _session(leader: int) -> list[int]:
    """The processes of a session that still run; a JVM is in it, in a group of its own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def _catalog_files(folder: str, names: list[str]) -> list[str]:
    del folder
    return [name for name in names if name.startswith("catalog.db")]


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database through SQLite: others have the file open, so it must stay the same file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)

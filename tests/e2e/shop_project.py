"""The shop, small, as a project of its own, and `thermo` on it as a person would call it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import MEMORY

from thermocline import config
from thermocline.api import Lakehouse, init

SMALL = ("--customers", "60", "--products", "40", "--orders", "200", "--events", "600")
WHEN_IT_RAN = {"_ingested_at", "quarantined_at", "run"}
"""Columns that say when and by which run a row was taken in: different in every lake."""

PYTHON_MODEL = '''
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from thermocline.transform import model, table


def initials(name):
    return "".join(part[0].upper() for part in name.split())


@model(reads={"customers": table("silver.customers")})
def customer_initials(customers: DataFrame) -> DataFrame:
    """Python of the project itself: executors run it, who never saw the project."""
    short = F.udf(initials, "string")("full_name")
    return customers.where("_is_current").select("customer_id", short.alias("initials"))
'''
PYTHON_CONTRACT = """
apiVersion: v3.1.0
kind: DataContract
id: shop.gold.customer_initials
version: 1.0.0
status: active
schema:
  - name: customer_initials
    properties:
      - {name: customer_id, physicalType: string, required: true, primaryKey: true}
      - {name: initials, physicalType: string}
customProperties:
  - {property: write, value: replace}
"""

Environ = Mapping[str, str]


@dataclass(frozen=True)
class Embedded:
    """A shop that was built: what went in, and every table's rows as `contents` gives them."""

    project: Path
    files: int
    models: set[str]
    contents: dict[str, list[str]]


def build_embedded(project: Path) -> Embedded:
    """Make the small shop and build it on the embedded default."""
    house = opened(make_shop(project), {})
    taken, ran = house.ingest(), house.run()
    found = contents(house, "duckdb")
    house.lake.duck.stop()
    files = sum(target.files for target in taken.targets)
    assert len(found["silver.orders"]) == 200
    assert len(found["gold.customer_initials"]) == 60
    return Embedded(project, files, {step.table for step in ran.steps}, found)


def make_shop(folder: Path, *size: str) -> Path:
    """A new project with a generated first load; the same bytes every time."""
    init(folder)
    (folder / "models" / "gold" / "customer_initials.py").write_text(PYTHON_MODEL)
    contract = folder / "contracts" / "gold" / "customer_initials.odcs.yaml"
    contract.write_text(PYTHON_CONTRACT)
    generate(folder, *(size or SMALL))
    return folder


def generate(project: Path, *arguments: str) -> None:
    """Call the shop's own generator."""
    subprocess.run(
        [sys.executable, project / "generate.py", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=120,
    )


def copy_of(project: Path, folder: Path) -> Path:
    """The same project with the same landing files, without a lake."""
    left_out = shutil.ignore_patterns("lake", ".thermocline")
    return Path(shutil.copytree(project, folder, ignore=left_out))


def environment(settings: Environ) -> dict[str, str]:
    """The environment of a process that runs a small Spark, with these settings of ours alone."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("THERMOCLINE_", "SPARK_"))}
    small = {
        "THERMOCLINE_ENGINE__SPARK__MASTER": "local[2]",
        "THERMOCLINE_ENGINE__SPARK__MEMORY": MEMORY,
        "THERMOCLINE_ENGINE__SPARK__SHUFFLE_PARTITIONS": "2",
    }
    return {**clean, **small, **settings}


def thermo(project: Path, settings: Environ, *arguments: str) -> Any:
    """What a command says to programs. One that fails fails the test, with what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "thermocline.cli.main", "--project", project, "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        env=environment(settings),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def opened(project: Path, settings: Environ) -> Lakehouse:
    """The project, opened in this process."""
    return Lakehouse(config.load_settings(project, environ=environment(settings)))


def contents(lakehouse: Lakehouse, engine: str) -> dict[str, list[str]]:
    """Every table's rows as sorted text, without what differs from one lake to the next."""
    found = {}
    for table in lakehouse.lake.tables():
        columns = [c for c, *_ in lakehouse.table(table).schema() if c not in WHEN_IT_RAN]
        if engine == "duckdb":
            listed = ", ".join(f'"{column}"' for column in columns)
            rows = lakehouse.query(f"select {listed} from {table}", engine="duckdb").to_arrow()
        else:
            rows = lakehouse.table(table).to_arrow().select(columns)
        found[table] = sorted(map(str, rows.to_pylist()))
    return found

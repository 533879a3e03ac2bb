"""Flink reads a table after each kind of maintenance, and finds the rows of a Python model.

    python -m benchmarks.flink_reads --flink PATH/TO/python

Flink is not among the pinned dependencies: name the Python of an environment with `apache-flink`
2.1. Its connector is fetched like Spark's jars. The table has position deletes, equality deletes
and two partition specs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.integration.maintained_tables import TABLE, MaintainedTable

import thermocline as tc
from benchmarks.measure import machine
from thermocline.engine import jars, java
from thermocline.lake import Lake
from thermocline.lake.live_files import live_files

JARS = (
    "org.apache.iceberg:iceberg-flink-runtime-2.1:1.11.0",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    jars.BASE[1],
)
READ = """
import json, sys
from pyflink.table import EnvironmentSettings, TableEnvironment
found = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
found.get_config().set("pipeline.jars", sys.argv[1])
found.get_config().set("parallelism.default", "1")
found.execute_sql(f'''create catalog lake with ('type' = 'iceberg',
  'catalog-impl' = 'org.apache.iceberg.jdbc.JdbcCatalog', 'uri' = 'jdbc:sqlite:{sys.argv[2]}',
  'warehouse' = '{sys.argv[3]}', 'jdbc.schema-version' = 'V1')''')
with found.execute_sql(f"select id, kind, n from lake.{sys.argv[4]}").collect() as rows:
    print("ROWS " + json.dumps(sorted([list(row) for row in rows], key=repr)))
"""


def main() -> int:
    """Maintain a table step by step; compare Flink's rows with the model's after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flink", required=True, help="a Python with apache-flink")
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args()
    print(machine(), flush=True)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "thermocline.toml").write_text('[lake]\nname = "flink"\n')
        lake = Lake(tc.open(project).settings)
        table = MaintainedTable(lake, options.seed)
        assert len(lake.iceberg(TABLE).specs()) == 1, "choose another seed"
        for name, step in _steps(table):
            step()
            table.compare()
            wanted = table.expected[_head(lake)].elements()
            ours, theirs = sorted(map(list, wanted), key=repr), _read_on_flink(lake, options.flink)
            wrong += ours != theirs
            verdict = "same rows" if ours == theirs else f"DIFFERS: {len(theirs)} rows"
            files = len(live_files(lake.iceberg(TABLE), _head(lake)))
            print(f"{name:24} {len(ours):5} rows {files:4} files   {verdict}", flush=True)
        lake.close()
    return 1 if wrong else 0


def _steps(table: MaintainedTable) -> list[tuple[str, Callable[[], object]]]:
    def write() -> None:
        for _ in range(6):
            table.append()
        table.delete_rows()
        # Flink 2.1 fails on a delete file of another partition spec than its data file's.
        if len(table.lake.iceberg(TABLE).specs()) == 1:
            table.delete_equal()

    def change_layout() -> None:
        table.repartition()
        write()

    return [
        ("writes and deletes", write),
        ("maintain", table.maintain),
        ("another spec", change_layout),
        ("maintain again", table.maintain),
        ("writes again", write),
        ("compact", table.compact),
        ("evolve, maintain", lambda: (table.evolve(), table.maintain())),
    ]  # fmt: skip


def _head(lake: Lake) -> int:
    head = lake.state(TABLE).head()
    assert head is not None
    return head


def _read_on_flink(lake: Lake, python: str) -> list[list[object]]:
    found = jars.resolve(JARS)
    done = subprocess.run(
        [python, "-c", READ, ";".join(each.as_uri() for each in found),
         lake.settings.catalog.uri, lake.settings.warehouse, TABLE],
        env={**os.environ, "JAVA_HOME": str(java.find_java().home),
             "HADOOP_CLASSPATH": ":".join(map(str, found)), "PYTHONPATH": "",
             "FLINK_LIB_DIR": ""} | _class_path(python, found),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    if not lines:
        sys.exit(f"Flink did not answer:\n{done.stderr[-3000:]}")
    rows: list[list[object]] = json.loads(lines[0].removeprefix("ROWS "))
    return rows


def _class_path(python: str, found: list[Path]) -> dict[str, str]:
    """Return Flink's library folder with the connector beside its own jars."""
    where = "import pyflink, os; print(os.path.dirname(pyflink.__file__))"
    home = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    folder = Path(tempfile.mkdtemp(prefix="flink-lib-"))
    for jar in (*Path(home.stdout.strip(), "lib").glob("*.jar"), *found):
        (folder / jar.name).symlink_to(jar)
    return {"FLINK_LIB_DIR": str(folder)}


if __name__ == "__main__":
    raise SystemExit(main())

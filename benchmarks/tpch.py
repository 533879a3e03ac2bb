"""TPC-H as models of a lakehouse: each of its 22 queries on DuckDB and on Spark, row by row alike.

Run it with `make bench-tpch`. Data and queries come from DuckDB's own extension.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
import yaml
from rich.console import Console
from rich.table import Table
from sqlglot import exp

import thermocline as tc
from benchmarks.measure import Cost, machine, measured
from thermocline.engine.duck import find_extension
from thermocline.lake import Lake
from thermocline.transform.models import table_references

ENGINES = ("duckdb", "spark")
SETTINGS = """\
[lake]
name = "tpch"
[engine.spark]
master = "local[2]"
memory = "3g"
[engine.duckdb]
memory_limit = "3GB"
[transform]
engine = "{engine}"
"""
TYPES = {
    "BIGINT": "long", "INTEGER": "int", "VARCHAR": "string", "DATE": "date", "DOUBLE": "double",
    "HUGEINT": "decimal(38,0)",
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One of the queries, its columns with their types, and what it cost where."""

    number: int
    sql: str
    columns: Mapping[str, str]
    costs: dict[str, Cost]

    @property
    def table(self) -> str:
        """The table that its model writes."""
        return f"gold.q{self.number:02}"


def build(project: Path, scale: float) -> list[Question]:
    """A lake with the eight tables, and a model with its contract for each query."""
    source = duckdb.connect(config={"memory_limit": "4GB"})
    source.execute(f"LOAD '{find_extension('tpch')}'")
    source.execute(f"CALL dbgen(sf={scale})")
    project.mkdir(parents=True)
    (project / "thermocline.toml").write_text(SETTINGS.format(engine="duckdb"))
    lake = Lake(tc.open(project).settings)
    lake.catalog.create_namespace("bronze")
    tables = [name for (name,) in source.execute("SHOW TABLES").fetchall()]
    for name in tables:
        columns = _columns(source, f"FROM {name}")
        _contract(project, f"bronze.{name}", columns, write="append")
        _copy(source, lake, name)
    questions = []
    for number, text in source.execute("SELECT query_nr, query FROM tpch_queries()").fetchall():
        query = _rounded(source, _named(text.strip().rstrip(";")))
        columns = _columns(source, query.sql("duckdb"))
        question = Question(number, _in_lake(query), columns, {})
        _contract(project, question.table, question.columns, write="replace")
        model = project / "models" / f"{question.table.replace('.', '/')}.sql"
        model.parent.mkdir(parents=True, exist_ok=True)
        model.write_text(question.sql)
        questions.append(question)
    return questions


def _columns(source: duckdb.DuckDBPyConnection, query: str) -> dict[str, str]:
    described = source.execute(f"DESCRIBE {query}").fetchall()
    return {name: TYPES.get(kind) or kind.lower().replace(" ", "") for name, kind, *_ in described}


def _contract(project: Path, table: str, columns: Mapping[str, str], write: str) -> None:
    layer, _, name = table.partition(".")
    properties = [{"name": column, "physicalType": kind} for column, kind in columns.items()]
    contract = {
        "apiVersion": "v3.1.0", "kind": "DataContract", "id": f"tpch.{table}", "version": "1.0.0",
        "status": "active", "schema": [{"name": name, "properties": properties}],
        "customProperties": [{"property": "write", "value": write}],
    }  # fmt: skip
    path = project / "contracts" / layer / f"{name}.odcs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(contract, sort_keys=False))


def _copy(source: duckdb.DuckDBPyConnection, lake: Lake, name: str) -> None:
    """The table as Iceberg, some million rows a commit."""
    reader = source.execute(f"FROM {name}").to_arrow_reader(1_000_000)
    table = None
    for batch in reader:
        rows = pa.Table.from_batches([batch])
        if table is None:
            table = lake.catalog.create_table(f"bronze.{name}", rows.schema)
        table.append(rows)


def _named(text: str) -> exp.Query:
    """A query whose every column has a name that a table's may have."""
    parsed = sqlglot.parse_one(text, dialect="duckdb")
    assert isinstance(parsed, exp.Query)
    for number, column in enumerate(parsed.selects, start=1):
        if not column.alias_or_name.isidentifier():
            column.replace(exp.alias_(column.copy(), f"column_{number}"))
    return parsed


def _rounded(source: duckdb.DuckDBPyConnection, query: exp.Query) -> exp.Query:
    """The query with averages and ratios to the cent, as the benchmark's own answers have them.

    Beyond that engines differ by what they take an average of decimals to be.
    """
    kinds = _columns(source, query.sql("duckdb"))
    if "double" not in kinds.values():
        return query
    asked = [
        f"cast(round({name}, 2) as decimal(18, 2)) as {name}" if kind == "double" else name
        for name, kind in kinds.items()
    ]
    return exp.select(*asked, dialect="duckdb").from_(query.subquery("answered"))


def _in_lake(query: exp.Query) -> str:
    """The query over the lake's tables."""
    for reference in table_references(query):
        reference.set("db", exp.to_identifier("bronze"))
        if not reference.alias:
            reference.set("alias", exp.TableAlias(this=exp.to_identifier(reference.name)))
    return query.sql("duckdb", pretty=True)


def ask(project: Path, engine: str, questions: list[Question]) -> dict[str, list[Any]]:
    """Run every model on an engine; the rows of each."""
    (project / "thermocline.toml").write_text(SETTINGS.format(engine=engine))
    house = tc.open(project)
    if engine == "spark":
        house.lake.spark.sql("select 1").collect()  # neither engine's start is counted
    found = {}
    try:
        for question in questions:
            with measured() as cost:
                report = house.run([question.table], full_refresh=True)
            question.costs[engine] = cost
            found[question.table] = _rows(house, question, report.steps[0].snapshot)
    finally:
        house.close()
    return found


def _rows(house: tc.Lakehouse, question: Question, snapshot: int) -> list[Any]:
    scan = house.lake.iceberg(question.table).scan(snapshot_id=snapshot)
    rows = scan.to_arrow().select(list(question.columns)).to_pylist()
    return sorted(tuple(map(repr, row.values())) for row in rows)


def compared(scale: float, folder: Path) -> tuple[list[Question], list[str]]:
    """All queries on both engines, and the tables in which they differ."""
    questions = build(folder / "tpch", scale)
    by_duck, by_spark = (ask(folder / "tpch", engine, questions) for engine in ENGINES)
    return questions, [table for table in by_duck if by_duck[table] != by_spark[table]]


def shown(questions: list[Question]) -> Table:
    """What each query cost on both."""
    table = Table("query", "DuckDB s", "Spark s", "DuckDB CPU s", "Spark CPU s", "ratio of CPU")
    totals = {engine: Cost() for engine in ENGINES}
    for question in questions:
        duck, spark = (question.costs[engine] for engine in ENGINES)
        table.add_row(f"Q{question.number}", *_figures(duck, spark))
        for engine, cost in question.costs.items():
            totals[engine].wall += cost.wall
            totals[engine].cpu += cost.cpu
    table.add_row("all", *_figures(*totals.values()))
    return table


def _figures(duck: Cost, spark: Cost) -> Iterator[str]:
    for seconds in (duck.wall, spark.wall, duck.cpu, spark.cpu):
        yield f"{seconds:.2f}"
    yield f"{spark.cpu / max(duck.cpu, 0.001):.1f}"


def main() -> int:
    """Run it; 1 when an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="thermocline-tpch-"))
    try:
        questions, differing = compared(asked.scale, folder)
    finally:
        shutil.rmtree(folder)
    console = Console()
    console.print(f"TPC-H, scale factor {asked.scale:g}, {machine()}")
    console.print(shown(questions))
    console.print(f"answers that differ: {', '.join(differing) or 'none'} of {len(questions)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

"""TPC-H as models of a lakehouse: its 22 queries on DuckDB and on Spark, compared row by row.

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
from thermocline.transform.models import find_table_references

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
class BenchmarkQuery:
    """One of the queries, its columns with their types, and its cost on each engine."""

    number: int
    sql: str
    columns: Mapping[str, str]
    costs: dict[str, Cost]

    @property
    def table(self) -> str:
        """The table that its model writes."""
        return f"gold.q{self.number:02}"


def build(project: Path, scale: float) -> list[BenchmarkQuery]:
    """Create a lake with the eight tables, and a model with a contract for each query."""
    source = duckdb.connect(config={"memory_limit": "4GB"})
    source.execute(f"LOAD '{find_extension('tpch')}'")
    source.execute(f"CALL dbgen(sf={scale})")
    project.mkdir(parents=True)
    (project / "thermocline.toml").write_text(SETTINGS.format(engine="duckdb"))
    lake = Lake(tc.open(project).settings)
    lake.catalog.create_namespace("bronze")
    tables = [name for (name,) in source.execute("SHOW TABLES").fetchall()]
    for name in tables:
        columns = _describe(source, f"FROM {name}")
        _write_contract(project, f"bronze.{name}", columns, write="append")
        _copy_table(source, lake, name)
    questions = []
    for number, text in source.execute("SELECT query_nr, query FROM tpch_queries()").fetchall():
        query = _round_doubles(source, _name_columns(text.strip().rstrip(";")))
        columns = _describe(source, query.sql("duckdb"))
        question = BenchmarkQuery(number, _render(query), columns, {})
        _write_contract(project, question.table, question.columns, write="replace")
        model = project / "models" / f"{question.table.replace('.', '/')}.sql"
        model.parent.mkdir(parents=True, exist_ok=True)
        model.write_text(question.sql)
        questions.append(question)
    return questions


def _describe(source: duckdb.DuckDBPyConnection, query: str) -> dict[str, str]:
    described = source.execute(f"DESCRIBE {query}").fetchall()
    return {name: TYPES.get(kind) or kind.lower().replace(" ", "") for name, kind, *_ in described}


def _write_contract(project: Path, table: str, columns: Mapping[str, str], write: str) -> None:
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


def _copy_table(source: duckdb.DuckDBPyConnection, lake: Lake, name: str) -> None:
    """Copy a table to Iceberg, a million rows per commit."""
    reader = source.execute(f"FROM {name}").to_arrow_reader(1_000_000)
    table = None
    for batch in reader:
        rows = pa.Table.from_batches([batch])
        if table is None:
            table = lake.catalog.create_table(f"bronze.{name}", rows.schema)
        table.append(rows)


def _name_columns(text: str) -> exp.Query:
    """Parse a query, and give every column a valid name."""
    parsed = sqlglot.parse_one(text, dialect="duckdb")
    assert isinstance(parsed, exp.Query)
    for number, column in enumerate(parsed.selects, start=1):
        if not column.alias_or_name.isidentifier():
            column.replace(exp.alias_(column.copy(), f"column_{number}"))
    return parsed


def _round_doubles(source: duckdb.DuckDBPyConnection, query: exp.Query) -> exp.Query:
    """Round averages and ratios to the cent, as in the benchmark's reference answers.

    In further digits engines differ, because they type an average of decimals differently.
    """
    kinds = _describe(source, query.sql("duckdb"))
    if "double" not in kinds.values():
        return query
    arguments = [
        f"cast(round({name}, 2) as decimal(18, 2)) as {name}" if kind == "double" else name
        for name, kind in kinds.items()
    ]
    return exp.select(*arguments, dialect="duckdb").from_(query.subquery("answered"))


def _render(query: exp.Query) -> str:
    """Render the query over the lake's tables."""
    for reference in find_table_references(query):
        reference.set("db", exp.to_identifier("bronze"))
        if not reference.alias:
            reference.set("alias", exp.TableAlias(this=exp.to_identifier(reference.name)))
    return query.sql("duckdb", pretty=True)


def run_queries(
    project: Path, engine: str, questions: list[BenchmarkQuery]
) -> dict[str, list[Any]]:
    """Run every model on an engine, and return its rows."""
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
            found[question.table] = _read_rows(house, question, report.steps[0].snapshot)
    finally:
        house.close()
    return found


def _read_rows(house: tc.Lakehouse, question: BenchmarkQuery, snapshot: int) -> list[Any]:
    scan = house.lake.iceberg(question.table).scan(snapshot_id=snapshot)
    rows = scan.to_arrow().select(list(question.columns)).to_pylist()
    return sorted(tuple(map(repr, row.values())) for row in rows)


def compare_engines(scale: float, folder: Path) -> tuple[list[BenchmarkQuery], list[str]]:
    """Run all queries on both engines, and return the tables that differ."""
    questions = build(folder / "tpch", scale)
    by_duck, by_spark = (run_queries(folder / "tpch", engine, questions) for engine in ENGINES)
    return questions, [table for table in by_duck if by_duck[table] != by_spark[table]]


def build_table(questions: list[BenchmarkQuery]) -> Table:
    """Return the table of each query's costs."""
    table = Table("query", "DuckDB s", "Spark s", "DuckDB CPU s", "Spark CPU s", "ratio of CPU")
    totals = {engine: Cost() for engine in ENGINES}
    for question in questions:
        duck, spark = (question.costs[engine] for engine in ENGINES)
        table.add_row(f"Q{question.number}", *_format_costs(duck, spark))
        for engine, cost in question.costs.items():
            totals[engine].wall += cost.wall
            totals[engine].cpu += cost.cpu
    table.add_row("all", *_format_costs(*totals.values()))
    return table


def _format_costs(duck: Cost, spark: Cost) -> Iterator[str]:
    for seconds in (duck.wall, spark.wall, duck.cpu, spark.cpu):
        yield f"{seconds:.2f}"
    yield f"{spark.cpu / max(duck.cpu, 0.001):.1f}"


def main() -> int:
    """Run it; 1 when an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="thermocline-tpch-"))
    try:
        questions, differing = compare_engines(arguments.scale, folder)
    finally:
        shutil.rmtree(folder)
    console = Console()
    console.print(f"TPC-H, scale factor {arguments.scale:g}, {machine()}")
    console.print(build_table(questions))
    console.print(f"answers that differ: {', '.join(differing) or 'none'} of {len(questions)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

"""Orders through bronze, silver and gold: ours in full, ours after a 1 % change, plain PySpark.

Ours twice: with models on Spark alone, and with DuckDB for small steps (`auto`). One process,
one JVM, the same files and the same SQL. They take turns, so that none always has the warmer
machine. Run it with `make bench-pipeline`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import thermocline as tc
from benchmarks.measure import Cost, machine, measured
from thermocline.api import Lakehouse
from thermocline.api.example import _load_generator
from thermocline.transform.models import find_table_references, parse_query

SETTINGS = """
[lake]
name = "bench"
[engine.spark]
master = "local[2]"
memory = "{memory}"
shuffle_partitions = 8
[engine.duckdb]
memory_limit = "1GB"
[transform]
engine = "{engine}"
"""
ENGINES = ("spark", "auto")
LATEST = """
select * except (_newest) from (
  select *, row_number() over (partition by {key} order by {order} desc) as _newest from {view}
) where _newest = 1 {live}
"""


def main() -> None:
    """Generate, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=5_000_000)
    parser.add_argument("--customers", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--memory", default="3g")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep the data here instead of a temporary one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
    try:
        _bench(folder, options)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def _bench(folder: Path, options: argparse.Namespace) -> None:
    for engine in ENGINES:
        warm = _project(folder / f"warm-{engine}", engine, options, orders=20_000, customers=1_000)
        _run_ours(warm)
    _run_plain(warm)
    _drop_plain(warm)
    projects = {
        engine: _project(folder / engine, engine, options, options.orders, options.customers)
        for engine in ENGINES
    }
    plain: list[Cost] = []
    full: dict[str, list[Cost]] = {engine: [] for engine in ENGINES}
    for _ in range(options.rounds):
        scratch = projects["spark"]
        _delete_lake(scratch)
        plain.append(_measure("plain PySpark, full", partial(_run_plain, scratch)))
        _drop_plain(scratch)
        for engine, project in projects.items():
            _delete_lake(project)
            full[engine].append(_measure(f"{engine}, full", partial(_run_ours, project)))
    change = {}
    for engine, project in projects.items():
        with _load_generator(project) as generator:
            print(generator.change(project, share=options.share), file=sys.stderr)
        name = f"{engine}, {options.share:.0%} change"
        change[engine] = _measure(name, partial(_run_ours, project))
    _report(options, _best(plain), {e: _best(costs) for e, costs in full.items()}, change)


def _project(
    folder: Path, engine: str, options: argparse.Namespace, orders: int, customers: int
) -> Path:
    if not (folder / "landing").exists():
        tc.init(folder)
        settings = SETTINGS.format(memory=options.memory, engine=engine)
        (folder / "thermocline.toml").write_text(settings)
        with _load_generator(folder) as generator:
            summary = generator.generate(
                folder, orders=orders, customers=customers, events=customers,
                products=2_000, orders_format="parquet",
            )  # fmt: skip
        print(summary, file=sys.stderr)
    return folder


def _measure(name: str, work: object) -> Cost:
    with measured() as cost:
        work()  # type: ignore[operator]
    print(f"{name:<28}{cost}", file=sys.stderr)
    return cost


def _best(costs: list[Cost]) -> Cost:
    best = min(costs, key=lambda cost: cost.cpu)
    return Cost(best.wall, best.cpu, max(cost.peak for cost in costs))


def _run_ours(project: Path) -> None:
    lakehouse = tc.open(project)
    lakehouse.ingest()
    report = lakehouse.run()
    for step in report.steps:
        print(
            f"  {step.table:<22}{step.seconds:7.1f} s  {step.refresh_mode:<8} {step.detail} "
            f"on {step.engine}",
            file=sys.stderr,
        )
    lakehouse.lake.duck.stop()


def _delete_lake(project: Path) -> None:
    shutil.rmtree(project / "lake", ignore_errors=True)


def _run_plain(project: Path) -> None:
    """Compute the same tables by the same SQL in plain PySpark: only read and write."""
    lakehouse = tc.open(project)
    assert lakehouse.lake.catalog  # makes the catalog's database
    spark = lakehouse.lake.spark.session
    spark.sql("create namespace if not exists lake.plain")
    _plain_bronze(lakehouse)
    _plain_models(lakehouse)


def _drop_plain(project: Path) -> None:
    spark = tc.open(project).lake.spark.session
    for row in spark.sql("show tables in lake.plain").collect():
        spark.sql(f"drop table lake.plain.{row.tableName} purge")


def _plain_bronze(lakehouse: Lakehouse) -> None:
    from thermocline.engine.spark_types import quote_identifier, to_ddl

    spark = lakehouse.lake.spark.session
    for source in lakehouse.sources.values():
        contract = lakehouse.contracts[source.target]
        schema = ", ".join(f"{quote_identifier(c.name)} {to_ddl(c.type)}" for c in contract.columns)
        folder = str(lakehouse.settings.project / source.path)
        if "orders" in folder or "events" in folder:
            rows = spark.read.parquet(folder)
        elif "products" in folder:
            rows = spark.read.schema(schema).option("header", True).csv(folder)
        else:
            rows = spark.read.schema(schema).json(folder)
        key = "event_id" if "events" in folder else f"{contract.name.removeprefix('raw_')[:-1]}_id"
        rows = rows.where(f"{key} is not null").selectExpr(
            "*", "current_timestamp() as _ingested_at"
        )
        _write_table(rows, contract.name, contract)


def _plain_models(lakehouse: Lakehouse) -> None:
    from thermocline.transform import model_graph

    spark = lakehouse.lake.spark.session
    for model in model_graph.sort_models(lakehouse.models):
        if model.is_sql:
            query = parse_query(model.text)
            for reference in find_table_references(query):
                if not reference.alias:
                    reference.set("alias", reference.name)
                reference.set("this", reference.name)
                reference.set("db", "plain")
                reference.set("catalog", "lake")
            rows = spark.sql(query.sql(dialect="spark"))
        else:
            frames = {
                n: spark.table(f"lake.plain.{r.table.split('.')[1]}")
                for n, r in model.reads.items()
            }
            rows = model.function()(**frames)
        _write_table(
            _apply_write_mode(rows, model.contract, spark), model.contract.name, model.contract
        )


def _apply_write_mode(rows: object, contract: object, spark: object) -> object:
    """Return a first load's result of the write mode: the newest row per key, or its versions."""
    if not contract.order_by:  # type: ignore[attr-defined]
        return rows
    view = f"plain_{contract.name}"  # type: ignore[attr-defined]
    rows.createOrReplaceTempView(view)  # type: ignore[attr-defined]
    key, first = ", ".join(contract.key), contract.order_by[0]  # type: ignore[attr-defined]
    if contract.write == "scd2":  # type: ignore[attr-defined]
        return spark.sql(  # type: ignore[attr-defined]
            f"select *, _valid_to is null as _is_current from (select *, {first} as _valid_from, "
            f"lead({first}) over (partition by {key} order by {first}, source_lsn) as _valid_to "
            f"from {view}) where _op <> 'd'"
        )
    live = "and _op <> 'd'" if contract.delete_when else ""  # type: ignore[attr-defined]
    order = " desc, ".join(contract.order_by)  # type: ignore[attr-defined]
    return spark.sql(LATEST.format(key=key, order=order, view=view, live=live))  # type: ignore[attr-defined]


def _write_table(rows: object, name: str, contract: object) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.functions import partitioning

    names = [c.name for c in contract.table_columns if c.name in rows.columns]  # type: ignore[attr-defined]
    ready, table = rows.select(*names), f"lake.plain.{name}"  # type: ignore[attr-defined]
    writer = ready.limit(0).writeTo(table).using("iceberg")
    writer = writer.tableProperty("write.parquet.compression-codec", "zstd")
    transforms = {"day": partitioning.days, "identity": F.col, "month": partitioning.months}
    fields = [
        partitioning.bucket(p.param, p.column)
        if p.transform == "bucket"
        else transforms[p.transform](p.column)
        for p in contract.partition  # type: ignore[attr-defined]
        if p.column in names
    ]
    (writer.partitionedBy(*fields) if fields else writer).createOrReplace()
    if contract.sort and fields:  # type: ignore[attr-defined]
        order = ", ".join(field.column for field in contract.sort)  # type: ignore[attr-defined]
        layout = f"write distributed by partition locally ordered by {order}"
        ready.sparkSession.sql(f"alter table {table} {layout}")
    ready.writeTo(table).append()


def _report(
    options: argparse.Namespace, plain: Cost, full: dict[str, Cost], change: dict[str, Cost]
) -> None:
    print(f"\n{options.orders:,} orders, {options.share:.0%} change, "
          f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n")  # fmt: skip
    print("| | wall s | CPU s | peak GB |\n|---|---:|---:|---:|")
    rows = {"plain PySpark, full": plain}
    rows |= {f"Thermocline, full, {engine}": cost for engine, cost in full.items()}
    rows |= {
        f"Thermocline, {options.share:.0%} change, {engine}": cost
        for engine, cost in change.items()
    }
    for name, cost in rows.items():
        print(f"| {name} | {cost.wall:.1f} | {cost.cpu:.1f} | {cost.peak / 1e9:.2f} |")
    for engine in ENGINES:
        ours, less = full[engine], change[engine]
        print(f"| {engine} ÷ plain | {ours.wall / plain.wall:.2f} | {ours.cpu / plain.cpu:.2f} | |")
        print(f"| {engine}, change ÷ full | {less.wall / ours.wall:.2f} "
              f"| {less.cpu / ours.cpu:.2f} | |")  # fmt: skip


if __name__ == "__main__":
    main()

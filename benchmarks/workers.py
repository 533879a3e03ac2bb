"""Orders by day on DuckDB workers, on warm Spark and in plain Spark SQL, with compared rows.

First all days are computed, then one day with late rows. Each side has its own lake with the same
raw orders. The workers run first, while there is no JVM; both Spark sides share a JVM that has run
the same models before. Run it with `make bench-workers`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Column, Table
from sqlglot import exp

import thermocline as tc
from benchmarks.measure import Cost, machine, measured
from thermocline.engine.duck import build_snapshot_query
from thermocline.lake.naming import new_run_id
from thermocline.transform.models import find_table_references, parse_query

WORKERS, SPARK, PLAIN_SQL = "DuckDB workers", "Thermocline on Spark", "plain Spark SQL"
SIDES = {"workers": WORKERS, "spark": SPARK, "plain": PLAIN_SQL}
SETTINGS = """\
[lake]
name = "bench"
[engine.spark]
master = "local[{workers}]"
memory = "3g"
[transform]
engine = "{engine}"
[workers]
count = {workers}
batch = {batch}
memory = "{memory}"
"""
FIRST = date(2026, 1, 1)
RAW, ORDERS = "bronze.orders", "silver.orders"
MODEL_TABLES = (ORDERS, "gold.daily_categories", "gold.daily_revenue")
COLUMNS: dict[str, dict[str, str]] = {
    RAW: {
        "order_id": "long", "customer_id": "long", "ordered_at": "timestamptz", "status": "string",
        "category": "string", "quantity": "int", "unit_price": "decimal(10,2)",
        "discount": "decimal(10,2)", "updated_at": "timestamptz",
    },
    ORDERS: {
        "day": "date", "order_id": "long", "customer_id": "long", "ordered_at": "timestamptz",
        "status": "string", "category": "string", "quantity": "int", "subtotal": "decimal(14,2)",
        "tax": "decimal(14,2)", "net_amount": "decimal(16,2)", "updated_at": "timestamptz",
    },
    "gold.daily_revenue": {
        "day": "date", "orders": "long", "customers": "long", "items": "long",
        "revenue": "decimal(38,2)", "largest": "decimal(16,2)",
    },
    "gold.daily_categories": {
        "day": "date", "category": "string", "orders": "long", "subtotal": "decimal(38,2)",
        "tax": "decimal(38,2)", "revenue": "decimal(38,2)",
    },
}  # fmt: skip
MODELS = {
    ORDERS: """\
with numbered as (
    select
        cast(ordered_at as date) as day,
        order_id,
        customer_id,
        ordered_at,
        lower(trim(status)) as status,
        lower(trim(category)) as category,
        quantity,
        cast(quantity * unit_price as decimal(14,2)) as subtotal,
        discount,
        updated_at,
        row_number() over (
            partition by cast(ordered_at as date), order_id
            order by updated_at desc, quantity desc, unit_price desc, discount desc, ordered_at desc
        ) as place
    from bronze.orders
),
known as (
    select
        day, order_id, customer_id, ordered_at, status, category, quantity, subtotal, updated_at,
        cast(case when discount > subtotal then subtotal else discount end as decimal(14,2)) as less
    from numbered
    where place = 1 and quantity > 0 and status in ('placed', 'paid', 'shipped', 'returned')
),
taxed as (
    select
        day, order_id, customer_id, ordered_at, status, category, quantity, subtotal, updated_at,
        less, cast(round((subtotal - less) * 0.0825, 2) as decimal(14,2)) as tax
    from known
)
select
    day, order_id, customer_id, ordered_at, status, category, quantity, subtotal, tax,
    cast(subtotal - less + tax as decimal(16,2)) as net_amount, updated_at
from taxed
""",
    "gold.daily_revenue": """\
select
    day,
    count(*) as orders,
    count(distinct customer_id) as customers,
    cast(sum(quantity) as bigint) as items,
    cast(sum(net_amount) as decimal(38,2)) as revenue,
    max(net_amount) as largest
from silver.orders
where status <> 'returned'
group by day
""",
    "gold.daily_categories": """\
select
    day,
    category,
    count(*) as orders,
    cast(sum(subtotal) as decimal(38,2)) as subtotal,
    cast(sum(tax) as decimal(38,2)) as tax,
    cast(sum(net_amount) as decimal(38,2)) as revenue
from silver.orders
group by day, category
""",
}
FIGURES = ("wall s", "CPU s", "peak GB", "worker MB")
DAY_OF = {RAW: "ordered_at", ORDERS: "day"}
"""The column of each source that determines the day of a row."""


@dataclass(frozen=True)
class Raw:
    """Raw orders of some days, generated on every read, always the same.

    One in 50 repeats the order before it, one in 40 has an unknown status. Half of the late rows
    are newer versions of the day's orders, the others are new orders.
    """

    days: Sequence[int]
    a_day: int
    late: bool = False

    def __iter__(self) -> Iterator[pa.Table]:
        with duckdb.connect(config={"threads": 1}) as made:
            made.execute("set TimeZone = 'UTC'")
            for day in self.days:
                yield made.execute(self._sql(day)).to_arrow_table()

    def _sql(self, day: int) -> str:
        first = day * self.a_day * 2 + (self.a_day // 2 if self.late else 0)
        salt = 1 if self.late else 0

        def some(what: str, of: int) -> str:
            return f"cast(hash(n, '{what}', {salt}) % {of} as bigint)"

        def cents(what: str, of: int) -> str:
            return f"cast(cast({some(what, of)} as decimal(12,0)) * 0.01 as decimal(10,2))"

        midnight = f"timestamptz '{FIRST + timedelta(days=day)} 00:00:00+00'"
        return f"""
            select
                n - if({some("repeated", 50)} = 0, 1, 0) as order_id,
                {some("customer", 200_000)} as customer_id,
                {midnight} + to_microseconds({some("at", 86_400_000_000)}) as ordered_at,
                if({some("known", 40)} = 0, ['?', 'lost', ''][1 + {some("bad", 3)}],
                   ['placed', 'Paid', 'paid ', 'shipped', 'SHIPPED', 'returned'][
                       1 + {some("status", 6)}]) as status,
                'category ' || {some("category", 12)} as category,
                cast({some("quantity", 10)} as int) as quantity,
                {cents("price", 20_000)} as unit_price,
                {cents("discount", 500)} as discount,
                {midnight} + to_hours({24 + 24 * salt})
                    + to_microseconds({some("updated", 3_600_000_000)}) as updated_at
            from range({first} + 1, {first + self.a_day} + 1) as made(n)
        """


def create_project(folder: Path, engine: str, options: argparse.Namespace) -> tc.Lakehouse:
    """Create a project with contracts and models, and its empty tables."""
    folder.mkdir(parents=True)
    (folder / "thermocline.toml").write_text(
        SETTINGS.format(
            engine=engine, workers=options.workers, batch=options.batch, memory=options.memory
        )
    )
    for table in COLUMNS:
        _write_file(folder / "contracts", table, ".odcs.yaml", _contract(table))
    for table, sql in MODELS.items():
        _write_file(folder / "models", table, ".sql", sql)
    house = tc.open(folder)
    house.lake.ensure(house.contracts[RAW])
    return house


def _contract(table: str) -> str:
    by = {RAW: ("ordered_at", "day")}.get(table, ("day", "identity"))
    properties: list[dict[str, Any]] = []
    for name, kind in COLUMNS[table].items():
        column: dict[str, Any] = {"name": name, "physicalType": kind}
        if name == by[0]:
            how = [{"property": "transform", "value": by[1]}]
            column |= {"partitioned": True, "customProperties": how}
        properties.append(column)
    contract = {
        "apiVersion": "v3.1.0", "kind": "DataContract", "id": f"bench.{table}", "version": "1.0.0",
        "status": "active",
        "schema": [{"name": table.partition(".")[2], "properties": properties}],
        "customProperties": [
            {"property": "write", "value": "append" if table == RAW else "partitions"}
        ],
    }  # fmt: skip
    return yaml.safe_dump(contract, sort_keys=False)


def _write_file(folder: Path, table: str, suffix: str, text: str) -> None:
    path = folder / (table.replace(".", "/") + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def land(folder: Path, rows: Raw) -> None:
    """Put raw orders into bronze, in one commit.

    Another process generates them, so that their cost is not part of what is measured afterwards.
    """
    maker = multiprocessing.get_context("spawn").Process(target=_land, args=(folder, rows))
    maker.start()
    maker.join()
    assert maker.exitcode == 0, "the raw orders could not be made"


def _land(folder: Path, rows: Raw) -> None:
    draft = tc.open(folder).lake.draft(new_run_id())
    draft.append(RAW, rows, bookmark={}, operation="append")
    draft.publish()


# The sides: each computes all stale tables; a day is given where only that one changed.

Compute = Callable[[tc.Lakehouse, date | None], None]


def run_workers(house: tc.Lakehouse, day: date | None) -> None:
    """Compute partitions in worker processes, each with its own DuckDB."""
    _require_engine(house.run(workers="partition"), "duckdb", day)


def run_spark(house: tc.Lakehouse, day: date | None) -> None:
    """Run the same models on Spark."""
    _require_engine(house.run(), "spark", day)


def _require_engine(report: Any, engine: str, day: date | None) -> None:
    """Assert that this engine computed the steps, and only the changed partitions."""
    for step in report.steps:
        took = f"{step.seconds:7.1f} s  {step.refresh_mode:<8} {step.detail} on {step.engine}"
        print(f"  {step.table:<24}{took}", file=sys.stderr)
    assert [step.table for step in report.steps] == list(MODEL_TABLES), report.steps
    assert {step.engine for step in report.steps} == {engine}, report.steps
    if day is not None:
        details = [step.detail for step in report.steps]
        assert all(each.startswith("1 partitions touched") for each in details), details


def run_plain_sql(house: tc.Lakehouse, day: date | None) -> None:
    """Run the same SQL as a hand-written INSERT OVERWRITE of its days."""
    spark = house.lake.spark.session
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    for table in MODEL_TABLES:
        house.lake.ensure(house.contracts[table])
        spark.sql(f"insert overwrite lake.{table} {_translate(MODELS[table], day)}")


def _translate(sql: str, day: date | None) -> str:
    """Translate a model for Spark, over all rows of its source or those of a day."""
    query = parse_query(sql)
    for reference in find_table_references(query):
        table = f"{reference.db}.{reference.name}"
        reference.set("catalog", exp.to_identifier("lake"))
        if day is not None:
            reference.replace(_select_day(reference, DAY_OF[table], day))
    return query.sql(dialect="spark")


def _select_day(reference: exp.Table, column: str, day: date) -> exp.Subquery:
    kind = "timestamp" if column == "ordered_at" else "date"
    first, following = (f"{kind} '{each}'" for each in (day, day + timedelta(days=1)))
    rows = exp.select("*").from_(reference.copy())
    rows = rows.where(f"{column} >= {first}", f"{column} < {following}", dialect="spark")
    return rows.subquery(reference.name)


@dataclass
class Measured:
    """The cost of a side for all days and for one day, and its rows."""

    backfill: Cost = field(default_factory=Cost)
    change: Cost = field(default_factory=Cost)
    workers: dict[int, int] = field(default_factory=dict)
    """The peak of each worker process."""
    allowed: int = 0
    made: list[Any] = field(default_factory=list)


def measure(name: str, folder: Path, options: argparse.Namespace) -> Measured:
    """Measure one side from raw orders to gold, in its own lake."""
    engine, compute = {
        WORKERS: ("duckdb", run_workers),
        SPARK: ("spark", run_spark),
        PLAIN_SQL: ("spark", run_plain_sql),
    }[name]
    house = create_project(folder, engine, options)
    a_day, changed = options.orders // options.days, options.days // 2
    land(folder, Raw(range(options.days), a_day))
    if name != WORKERS:
        house.lake.spark.sql("select 1").collect()
    found = Measured(allowed=house.settings.workers.bytes)
    with record_peaks(found.workers), measured() as found.backfill:
        compute(house, None)
    print(f"{name + ', backfill':<34}{found.backfill}", file=sys.stderr)
    found.made += hash_rows(house)
    land(folder, Raw([changed], a_day, late=True))
    with record_peaks(found.workers), measured() as found.change:
        compute(house, FIRST + timedelta(days=changed))
    print(f"{name + ', one day':<34}{found.change}", file=sys.stderr)
    found.made += hash_rows(house)
    house.lake.duck.stop()
    shutil.rmtree(folder)
    return found


@contextmanager
def record_peaks(peaks: dict[int, int]) -> Iterator[None]:
    """Record the peak memory of each worker process while the block runs.

    The kernel reports it (VmHWM, the maximum resident memory). It is sampled several times a
    second, so that only the growth of a process in its last moments may be missing.
    """
    done = threading.Event()

    def poll() -> None:
        while not done.wait(0.2):
            for child in psutil.Process().children():
                with suppress(psutil.Error, OSError):
                    if "thermocline.transform.workers" in child.cmdline():
                        peaks[child.pid] = max(peaks.get(child.pid, 0), _read_peak(child.pid))

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _read_peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # it has just ended


def hash_rows(house: tc.Lakehouse) -> list[Any]:
    """Return the row count and a sum of row hashes of each table and day."""
    found: list[Any] = []
    with house.lake.duck.connect() as connection:
        for table in MODEL_TABLES:
            state = house.lake.state(table)
            rows = build_snapshot_query(connection, state.metadata_location, state.head() or 0)
            columns = ", ".join(COLUMNS[table])
            found += connection.execute(
                f"select '{table}', day, count(*), sum(cast(hash({columns}) as hugeint)) "
                f"from ({rows}) group by day order by day"
            ).fetchall()
    return found


def warm_up(folder: Path, options: argparse.Namespace) -> None:
    """Start the JVM and run both Spark sides once, on few rows."""
    few = argparse.Namespace(**{**vars(options), "orders": 20_000, "days": 4})
    print("warming up", file=sys.stderr)
    for name in (SPARK, PLAIN_SQL):
        measure(name, folder / f"warm-{name.split()[0]}", few)


# The results


def select_best(rounds: Sequence[Measured]) -> Measured:
    """Return the least-CPU rounds for all days and for one; peaks and rows of all rounds."""

    def least(costs: Sequence[Cost]) -> Cost:
        chosen = min(costs, key=lambda cost: cost.cpu)
        return Cost(chosen.wall, chosen.cpu, max(cost.peak for cost in costs))

    peaks = {(number, pid): most for number, each in enumerate(rounds)
             for pid, most in each.workers.items()}  # fmt: skip
    return Measured(
        least([each.backfill for each in rounds]),
        least([each.change for each in rounds]),
        dict(enumerate(peaks.values())),
        rounds[0].allowed,
        [row for each in rounds for row in each.made],
    )


def build_table(found: Mapping[str, Measured]) -> Table:
    """Return the table of each side's costs."""
    table = Table("", *(Column(each, justify="right") for each in FIGURES))
    for name, each in found.items():
        most = f"{max(each.workers.values()) / 1e6:.0f}" if each.workers else ""
        table.add_row(f"{name}, all days", *_figures(each.backfill), most)
        table.add_row(f"{name}, one day", *_figures(each.change), "")
    return table


def _figures(cost: Cost) -> tuple[str, str, str]:
    return f"{cost.wall:.1f}", f"{cost.cpu:.1f}", f"{cost.peak / 1e9:.2f}"


def check_goals(found: Mapping[str, Measured], days: int) -> Iterator[tuple[bool, str]]:
    """Yield for each goal whether it is met, and the measured values."""
    ours = found.get(WORKERS)
    for name in (SPARK, PLAIN_SQL):
        if ours is not None and name in found:
            all_days = found[name].backfill.cpu / ours.backfill.cpu
            one = found[name].change.cpu / ours.change.cpu
            summary = f"{name} ÷ workers, CPU: {all_days:.1f} for all days, {one:.1f} for one"
            yield all_days >= 5, f"{summary} (goal: 5 for all days)"
    made = [each.made for each in found.values()]
    summary = f"same rows on {len(made)} sides, by count and sum of hashes a day, before and after"
    yield all(made) and all(each == made[0] for each in made), summary
    if ours is None:
        return
    most = max(ours.workers.values(), default=0)
    summary = f"{len(ours.workers)} worker processes, the largest {most / 1e6:.0f} MB resident"
    yield 0 < most <= ours.allowed, f"{summary} of {ours.allowed / 1e6:.0f} MB (VmHWM, sampled)"
    share = ours.change.cpu / ours.backfill.cpu
    summary = f"one day ÷ all days, CPU: {share:.4f}, which is {share * days:.1f}/{days}; "
    wall = ours.change.wall / ours.backfill.wall
    yield share <= 2 / days, f"{summary}wall: {wall:.4f} (goal: about 1/{days}, at most 2/{days})"


def main() -> int:
    """Run it; 1 when the sides' rows differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=20_000_000)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--memory", default="1GB", help="of each worker")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="thermocline-workers-"))
    rounds: dict[str, list[Measured]] = {SIDES[side]: [] for side in SIDES if side in options.sides}
    try:
        for number in range(options.rounds if WORKERS in rounds else 0):
            rounds[WORKERS].append(measure(WORKERS, folder / f"workers-{number}", options))
        warmed = [name for name in (SPARK, PLAIN_SQL) if name in rounds]
        if warmed:
            warm_up(folder, options)
        for number in range(options.rounds):
            for name in warmed:
                place = folder / f"{name.split()[0]}-{number}"
                rounds[name].append(measure(name, place, options))
    finally:
        shutil.rmtree(folder)
    found = {name: select_best(each) for name, each in rounds.items()}
    return _report(found, options)


def _report(found: Mapping[str, Measured], options: argparse.Namespace) -> int:
    console = Console()
    console.print(
        f"{options.orders:,} orders of {options.days} days, {options.workers} workers, "
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}"
    )
    console.print(build_table(found))
    for met, summary in check_goals(found, options.days):
        console.print(
            f"{'met    ' if met else 'not met'}  {summary}", highlight=False, soft_wrap=True
        )
    made = [each.made for each in found.values()]
    return 0 if all(each == made[0] for each in made) else 1


if __name__ == "__main__":
    sys.exit(main())

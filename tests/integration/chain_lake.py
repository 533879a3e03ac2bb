"""Random chains of CTEs as models of a lake: after every batch, what a full refresh would give.

A seed stands for a lake: some models, and batches that change the tables they read. After every
run the tables must hold what plain DuckDB gives for the same queries over the same rows.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
from tests.conftest import SETTINGS, clean_environment
from tests.integration.odcs import HEAD
from tests.integration.random_models import ARROW, FIRST, SOURCES
from tests.random_chains import DAY, MONEY, NUMBER, TEXT, Chain, Relation, chain

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.errors import ThermoclineError
from thermocline.lake.changes import read_rows
from thermocline.lake.naming import new_run_id
from thermocline.transform.target_parts import find_incremental_blocker

_KINDS = {"long": NUMBER, "int": NUMBER, "decimal(10,2)": MONEY, "decimal(6,2)": MONEY}
STORED = tuple(
    Relation(table, tuple((name, _KINDS.get(kind, kind)) for name, kind in columns.items()))
    for table, columns in SOURCES.items()
)
_SETTINGS = f"""{SETTINGS}
[engine.duckdb]
threads = 1
[workers]
mode = "dag"
[transform]
"""

Rows = Counter[tuple[Any, ...]]


class Wrong(AssertionError):
    """A table does not hold what its model gives."""


def chains(seed: int, count: int) -> dict[str, Chain]:
    """The models of a seed, those that are queries at all, by the tables that they fill."""
    found: dict[str, Chain] = {}
    with duckdb.connect(config={"threads": 1}) as plain:
        _fill(plain, {table: [] for table in SOURCES})
        for number in range(count):
            asked = chain(seed * count + number, STORED)
            try:
                plain.execute(asked.sql)
            except duckdb.Error:
                continue
            found[f"gold.m{number}"] = asked
    return found


def play(folder: Path, seed: int, *, engine: str, count: int, batches: int) -> Counter[str]:
    """Live through the history of a seed. Raises Wrong.

    Gives how many models are incremental and whole, and how often a step took each way.
    """
    random, asked, taken = Random(seed), chains(seed, count), Counter[str]()
    house = opened(folder, asked, engine)
    held: dict[str, list[tuple[Any, ...]]] = {table: [] for table in SOURCES}
    reasons = [find_incremental_blocker(model) for model in house.models.values()]
    taken.update("incremental" if reason is None else "whole" for reason in reasons)
    try:
        for number in range(batches):
            for table in SOURCES:
                held[table] = _changed(random, house, table, held[table], first=number == 0)
            try:
                steps = house.run().steps
            except ThermoclineError as error:
                raise Wrong(f"seed {seed}, batch {number}: {error}") from error
            taken.update(step.refresh_mode for step in steps if number)
            taken.update(step.detail for step in steps if step.detail == "nothing touched")
            _compare(house, asked, held, f"seed {seed}, batch {number}, {engine}")
        house.run(full_refresh=True)
        _compare(house, asked, held, f"seed {seed}, full refresh, {engine}")
    finally:
        house.lake.duck.stop()
        shutil.rmtree(folder)
    return taken


def opened(folder: Path, asked: Mapping[str, Chain], engine: str, share: float = 0) -> Lakehouse:
    """A project with the sources, empty, and the models."""
    folder.mkdir(parents=True)
    said = f'{_SETTINGS}engine = "{engine}"\nverify_share = {share}\n'
    (folder / "thermocline.toml").write_text(said)
    for source, columns in SOURCES.items():
        listed = "".join(
            f'      - {{name: {name}, physicalType: "{kind}"}}\n' for name, kind in columns.items()
        )
        write = "customProperties:\n  - {property: write, value: append}\n"
        put(folder / "contracts", source, ".odcs.yaml", listed + write)
    for table, each in asked.items():
        put(folder / "contracts", table, ".odcs.yaml", contract_of(each))
        put(folder / "models", table, ".sql", each.sql)
    house = Lakehouse(load_settings(folder, environ=clean_environment()))
    for source in SOURCES:
        house.lake.ensure(house.contracts[source])
    return house


def contract_of(asked: Chain) -> str:
    """The columns and settings of a chain's contract."""
    (first, kind), *others = asked.columns
    if asked.keyed:
        line = f"{{name: {first}, physicalType: {kind}, required: true, primaryKey: true}}"
    else:
        transform = "day" if asked.by_day else "identity"
        how = f"customProperties: [{{property: transform, value: {transform}}}]"
        line = f"{{name: {first}, physicalType: {kind}, partitioned: true, {how}}}"
    lines = [line, *(f'{{name: {name}, physicalType: "{k}"}}' for name, k in others)]
    write = "merge" if asked.keyed else "partitions"
    listed = "".join(f"      - {line}\n" for line in lines)
    return f"{listed}customProperties:\n  - {{property: write, value: {write}}}\n"


def put(folder: Path, table: str, suffix: str, text: str) -> None:
    """Write a table's contract or model."""
    path = folder / (table.replace(".", "/") + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = HEAD.format(name=table.partition(".")[2]) if suffix != ".sql" else ""
    path.write_text(head + text)


def _changed(
    random: Random, house: Lakehouse, table: str, held: list[tuple[Any, ...]], *, first: bool
) -> list[tuple[Any, ...]]:
    """Rows come and go; all that a table holds is written, as any other engine might."""
    import pyarrow as pa

    if not first and random.random() < 0.3:
        return held
    kept = list(held)
    for _ in range(0 if first else random.choice([0, 0, 1, 1, 2])):
        if kept:
            kept.pop(random.randrange(len(kept)))
    count = random.randint(4, 9) if first else random.choice([0, 1, 2])
    come = [_row(random, table) for _ in range(count)]
    if len(kept) == len(held) and not come:
        return held
    schema = pa.schema([(name, ARROW[kind]) for name, kind in SOURCES[table].items()])
    if len(kept) < len(held):
        every = [dict(zip(SOURCES[table], row, strict=True)) for row in (*kept, *come)]
        house.lake.iceberg(table).overwrite(pa.Table.from_pylist(every, schema=schema))
    else:
        new = [dict(zip(SOURCES[table], row, strict=True)) for row in come]
        append(house, table, pa.Table.from_pylist(new, schema=schema))
    return [*kept, *come]


def append(house: Lakehouse, table: str, come: Any) -> None:
    """Add rows to a source."""
    draft = house.lake.draft(new_run_id())
    draft.append(table, come, bookmark={}, operation="append")
    draft.publish()


def _row(random: Random, table: str) -> tuple[Any, ...]:
    return tuple(_cell(random, kind) for kind in SOURCES[table].values())


def _cell(random: Random, kind: str) -> Any:
    if random.random() < 0.12:
        return None
    day = FIRST + timedelta(days=random.randint(0, 5))
    if kind == TEXT:
        return random.choice("abc")
    if kind == DAY:
        return day
    if kind == "timestamptz":
        return datetime(day.year, day.month, day.day, random.choice([0, 9, 23]), tzinfo=UTC)
    if kind.startswith("decimal"):
        return Decimal(random.randint(-300, 300)).scaleb(-2)
    return random.randint(-1, 3)


def _compare(
    house: Lakehouse,
    asked: Mapping[str, Chain],
    held: Mapping[str, Sequence[tuple[Any, ...]]],
    when: str,
) -> None:
    with duckdb.connect(config={"threads": 1}) as plain:
        _fill(plain, held)
        for table, each in asked.items():
            expected = Counter(plain.execute(each.sql).fetchall())
            state = house.lake.state(table)
            found = read_rows(house.lake.iceberg(table), state.head() or 0)
            there = Counter(tuple(row.values()) for row in found.to_pylist())
            if there != expected:
                raise Wrong(
                    f"{when}: {table} has {there - expected} too much and lacks "
                    f"{expected - there}\n{each.sql}"
                )


def _fill(plain: duckdb.DuckDBPyConnection, held: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
    import pyarrow as pa

    plain.execute("set TimeZone = 'UTC'; create schema bronze")
    for table, columns in SOURCES.items():
        schema = pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])
        listed = [dict(zip(columns, row, strict=True)) for row in held[table]]
        plain.register("held", pa.Table.from_pylist(listed, schema=schema))
        plain.execute(f"create table {table} as from held")
        plain.unregister("held")

"""Check tables of the lake as they stand at given snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from thermocline.check.compile import references
from thermocline.check.gate import Engine, Report, check
from thermocline.errors import NotFound

if TYPE_CHECKING:
    from thermocline.contract import Contract
    from thermocline.lake import Lake

DUCKDB_BYTES = 8 << 30
"""Up to this size one pass in this process is faster than handing the table to Spark."""


def check_tables(
    lake: Lake,
    contracts: Sequence[Contract],
    snapshots: Mapping[str, int],
    now: datetime | None = None,
) -> list[Report]:
    """The reports on some tables. `snapshots` fixes them and the tables that they refer to."""
    return [_check(lake, contract, snapshots, now) for contract in contracts]


def _check(
    lake: Lake, contract: Contract, snapshots: Mapping[str, int], now: datetime | None
) -> Report:
    from thermocline.engine.relations import private

    wanted = [contract.table, *references(contract)]
    states = {table: lake.state(table) for table in dict.fromkeys(wanted)}
    pinned = {
        table: snapshots[table] if table in snapshots else state.head()
        for table, state in states.items()
    }
    size = sum(
        states[table].snapshot(snapshot).count("total-files-size")
        for table, snapshot in pinned.items()
        if snapshot is not None
    )
    in_process = size <= DUCKDB_BYTES
    views = {}
    for table, snapshot in pinned.items():
        if snapshot is None:
            raise NotFound(f"{table} has no snapshot to check.", "Write to it first.")
        views[table] = private(table.replace(".", "__"))
        if in_process:
            lake.duck.view(views[table], states[table].metadata_location, snapshot)
        else:
            lake.spark.view(views[table], table, snapshot)
    engine: Engine = lake.duck if in_process else lake.spark
    return check(contract, engine, views[contract.table], views, now)

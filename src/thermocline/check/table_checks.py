"""Check tables of the lake at given snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from thermocline.check.compiler import compile_checks, find_references
from thermocline.check.gate import CheckReport, Engine, check
from thermocline.check.rules import list_rules
from thermocline.errors import ContractError, NotFound
from thermocline.lake.catalog import no_such_table_error

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.contract import Contract
    from thermocline.engine.query_types import Columns
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState

DUCKDB_BYTES = 8 << 30
"""Up to this size, one pass in this process is faster than Spark."""


def find_tables_read(contracts: Iterable[Contract]) -> set[str]:
    """Return the tables of some contracts, and the tables that their rules read."""
    return {name for each in contracts for name in (each.table, *find_references(each))}


def check_tables(
    lake: Lake,
    contracts: Sequence[Contract],
    snapshots: Mapping[str, int],
    now: datetime | None = None,
    *,
    carry_forward: bool = True,
) -> list[CheckReport]:
    """Check some tables. `snapshots` pins them and the tables that they refer to.

    With `carry_forward`, additive measures are derived from those of an earlier snapshot.
    """
    return [_check(lake, contract, snapshots, now, carry_forward) for contract in contracts]


def _check(
    lake: Lake,
    contract: Contract,
    snapshots: Mapping[str, int],
    now: datetime | None,
    carry_forward: bool,
) -> CheckReport:
    from thermocline.check import measures
    from thermocline.engine.view_rewrite import private_view_name
    from thermocline.lake.schema import columns_at

    tables = [contract.table, *find_references(contract)]
    states = lake.states(tables)
    for missing in (table for table in tables if table not in states):
        raise no_such_table_error(missing)
    pinned = {table: _find_snapshot(state, snapshots) for table, state in states.items()}
    size = sum(
        states[table].snapshot(snapshot).count("total-files-size")
        for table, snapshot in pinned.items()
    )
    moment = datetime.now(UTC) if now is None else now
    views = {table: private_view_name(table.replace(".", "__")) for table in pinned}
    columns = {table: columns_at(states[table], snapshot) for table, snapshot in pinned.items()}
    spark = size > DUCKDB_BYTES and _runs_on_spark(contract, views, moment, columns)
    engine = _CheckEngine(lake, states, pinned, views, in_process=not spark)
    state, head = states[contract.table], pinned[contract.table]
    known = measures.carry_forward(lake, contract, state, head) if carry_forward else None
    report = check(contract, engine, views[contract.table], views, moment, columns, known)
    additive = [
        int(value) if measures.is_additive(contract, rule) else None
        for rule, value in zip(list_rules(contract), report.measured, strict=True)
    ]
    measures.store(lake, contract, state, head, report.rows, additive)
    return report


def _find_snapshot(state: TableState, snapshots: Mapping[str, int]) -> int:
    snapshot = snapshots[state.table] if state.table in snapshots else state.head()
    if snapshot is None:
        raise NotFound(f"{state.table} has no snapshot to check.", "Write to it first.")
    return snapshot


def _runs_on_spark(
    contract: Contract, views: Mapping[str, str], now: datetime, columns: Columns
) -> bool:
    """Return whether Spark supports every rule with the same meaning; otherwise DuckDB is used."""
    try:
        compile_checks(contract, views[contract.table], views, "spark", now, columns)
    except ContractError:
        return False
    return True


class _CheckEngine:
    """The engine that suits the size of the tables; it creates its views on the first query."""

    def __init__(
        self,
        lake: Lake,
        states: Mapping[str, TableState],
        heads: Mapping[str, int],
        views: Mapping[str, str],
        *,
        in_process: bool,
    ) -> None:
        self._lake, self._states, self._heads, self._views = lake, states, heads, views
        self._in_process = in_process

    @property
    def dialect(self) -> str:
        """Its SQL dialect."""
        return self._engine.dialect

    @property
    def _engine(self) -> Engine:
        return self._lake.duck if self._in_process else self._lake.spark.translated

    def query(self, sql: str, /) -> pa.Table:
        """Execute one statement."""
        self._create_views  # noqa: B018  created on the first query
        return self._engine.query(sql)

    @cached_property
    def _create_views(self) -> bool:
        for table, view in self._views.items():
            if self._in_process:
                location = self._states[table].metadata_location
                self._lake.duck.view(view, location, self._heads[table])
            else:
                self._lake.spark.translated.view(view, table, self._heads[table])
        return True

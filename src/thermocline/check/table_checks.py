"""Check tables of the lake as they stand at given snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from thermocline.check.compiler import compile, references
from thermocline.check.gate import Engine, Report, check
from thermocline.check.rules import rules
from thermocline.errors import ContractError, NotFound
from thermocline.lake.catalog import no_such_table_error

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.contract import Contract
    from thermocline.engine.query_types import Columns
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState

DUCKDB_BYTES = 8 << 30
"""Up to this size one pass in this process is faster than handing the table to Spark."""


def involved(contracts: Iterable[Contract]) -> set[str]:
    """The tables of some contracts and those that their rules refer to."""
    return {name for each in contracts for name in (each.table, *references(each))}


def check_tables(
    lake: Lake,
    contracts: Sequence[Contract],
    snapshots: Mapping[str, int],
    now: datetime | None = None,
    *,
    carried: bool = True,
) -> list[Report]:
    """The reports on some tables. `snapshots` fixes them and the tables that they refer to.

    What adds up over rows is carried on from an earlier snapshot, unless all is to be read.
    """
    return [_check(lake, contract, snapshots, now, carried) for contract in contracts]


def _check(
    lake: Lake,
    contract: Contract,
    snapshots: Mapping[str, int],
    now: datetime | None,
    carried: bool,
) -> Report:
    from thermocline.check import measures
    from thermocline.engine.view_rewrite import private_view_name
    from thermocline.lake.schema import columns_at

    wanted = [contract.table, *references(contract)]
    states = lake.states(wanted)
    for missing in (table for table in wanted if table not in states):
        raise no_such_table_error(missing)
    pinned = {table: _pinned(state, snapshots) for table, state in states.items()}
    size = sum(
        states[table].snapshot(snapshot).count("total-files-size")
        for table, snapshot in pinned.items()
    )
    moment = datetime.now(UTC) if now is None else now
    views = {table: private_view_name(table.replace(".", "__")) for table in pinned}
    columns = {table: columns_at(states[table], snapshot) for table, snapshot in pinned.items()}
    spark = size > DUCKDB_BYTES and _runs_on_spark(contract, views, moment, columns)
    engine = _Opened(lake, states, pinned, views, in_process=not spark)
    state, head = states[contract.table], pinned[contract.table]
    known = measures.carried(lake, contract, state, head) if carried else None
    report = check(contract, engine, views[contract.table], views, moment, columns, known)
    adding = [
        int(value) if measures.adds_up(contract, rule) else None
        for rule, value in zip(rules(contract), report.measured, strict=True)
    ]
    measures.keep(lake, contract, state, head, report.rows, adding)
    return report


def _pinned(state: TableState, snapshots: Mapping[str, int]) -> int:
    snapshot = snapshots[state.table] if state.table in snapshots else state.head()
    if snapshot is None:
        raise NotFound(f"{state.table} has no snapshot to check.", "Write to it first.")
    return snapshot


def _runs_on_spark(
    contract: Contract, views: Mapping[str, str], now: datetime, columns: Columns
) -> bool:
    """Whether every rule has a statement there that means the same; DuckDB takes the others."""
    try:
        compile(contract, views[contract.table], views, "spark", now, columns)
    except ContractError:
        return False
    return True


class _Opened:
    """The engine that suits the size of what is read; its views are made when it is first asked."""

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
        """The SQL that it speaks."""
        return self._engine.dialect

    @property
    def _engine(self) -> Engine:
        return self._lake.duck if self._in_process else self._lake.spark.translated

    def query(self, sql: str, /) -> pa.Table:
        """The answer to one statement."""
        self._views_made  # noqa: B018  made at the first question
        return self._engine.query(sql)

    @cached_property
    def _views_made(self) -> bool:
        for table, view in self._views.items():
            if self._in_process:
                location = self._states[table].metadata_location
                self._lake.duck.view(view, location, self._heads[table])
            else:
                self._lake.spark.translated.view(view, table, self._heads[table])
        return True

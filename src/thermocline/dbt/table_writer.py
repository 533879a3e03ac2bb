"""Write the tables that dbt created to a draft, as differences to the lake's tables."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.dbt import contracts
from thermocline.dbt.difference import RowBatches, RowComparison, RowDifference
from thermocline.dbt.report import LandedTable
from thermocline.dbt.workspace import quote_relation
from thermocline.engine.duck import build_scan, build_snapshot_query
from thermocline.engine.duck_types import from_duckdb_type
from thermocline.errors import BadInput, Permanent
from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft import Draft, source_head
from thermocline.lake.schema import shape_of
from thermocline.lake.table_setup import pending_changes

if TYPE_CHECKING:
    import duckdb

    from thermocline.contract.types import Type
    from thermocline.dbt.graph import DbtGraph, DbtNode
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState

NODE_KEY = "@dbt"
"""Bookmark key that holds the id of the dbt node that wrote the table."""

_MATERIALIZED = {"table", "incremental", "seed", "snapshot"}
"""Materializations whose rows are stored in the database; all others are recomputed when read."""


@dataclass(frozen=True)
class PinnedTables:
    """The tables that a run found in the lake at one moment, and their snapshots."""

    states: Mapping[str, TableState]
    snapshots: Mapping[str, int]

    @classmethod
    def load(cls, lake: Lake, tables: Collection[str], into: str) -> PinnedTables:
        """Pin the existing ones among the tables."""
        states = lake.states(tables)
        return cls(states, {table: source_head(state, into) for table, state in states.items()})

    def scan(self, table: str) -> str:
        """Return the table function that reads a table's files at its pinned snapshot."""
        return build_scan(self.states[table].metadata_location, self.snapshots[table])

    def rows(self, connection: duckdb.DuckDBPyConnection, table: str) -> str:
        """Return the query that reads a table at its pinned snapshot."""
        location = self.states[table].metadata_location
        return build_snapshot_query(connection, location, self.snapshots[table])


class TableWriter:
    """Writes the tables of one run to its draft, one after the other.

    `upstream` are views that were built only for others to read: lineage skips them.
    """

    def __init__(
        self,
        draft: Draft,
        connection: duckdb.DuckDBPyConnection,
        graph: DbtGraph,
        pins: PinnedTables,
        contracts: Mapping[str, Contract],
        upstream: Collection[str],
    ) -> None:
        self.snapshots: dict[str, int] = dict(pins.snapshots)
        self.contracts: dict[str, Contract] = {}
        self._draft = draft
        self._lake = draft.lake
        self._connection = connection
        self._graph = graph
        self._pins = pins
        self._written = contracts
        self._upstream = upstream

    def resolve_contract(self, node: DbtNode, *, rebuild: bool) -> None:
        """Resolve the contract of a node's table, or refuse it. Changes nothing."""
        found = self._columns(node)
        state = self._pins.states.get(node.table)
        if state is None and self._lake.exists(node.table):
            raise MainMoved([node.table], self._draft.into)
        contract = self._written.get(node.table)
        if contract is not None:
            contracts.require_same_columns(contract, found, node)
            pending_changes(self._lake, contract)
        else:
            contract = contracts.derive_contract(node, found, state, rebuild=rebuild)
        self.contracts[node.table] = contract

    def land(self, node: DbtNode) -> LandedTable:
        """Write the rows of a node whose contract is resolved, if they differ from the table."""
        import duckdb

        began = time.monotonic()
        contract = self.contracts[node.table]
        self._ensure(contract)
        try:
            found = self._compare(contract, node)
        except duckdb.Error as error:
            raise _landing_error(node, error) from error
        reads = self._read_snapshots(node)
        if not found.is_empty:
            self._write(node, found, reads)
        crash_point("dbt.landed")
        return LandedTable(
            table=node.table,
            node=node.id,
            materialized=node.materialized,
            added=found.added,
            removed=found.removed,
            snapshot=self.snapshots[node.table],
            changed=not found.is_empty,
            reads=reads,
            seconds=round(time.monotonic() - began, 3),
        )

    def _ensure(self, contract: Contract) -> None:
        table = contract.table
        state = self._pins.states.get(table)
        if state is not None and table not in self._written:
            # To Iceberg a column that returns with another type is a new column.
            other = contracts.find_incompatible_types(contract, state)
            if other:
                self._lake.ensure(contracts.drop_columns(contract, other))
        self._lake.ensure(contract)
        if state is None:
            self.snapshots[table] = source_head(self._lake.state(table), self._draft.into)

    def _columns(self, node: DbtNode) -> dict[str, Type]:
        """Return the columns of the relation that dbt created, with their types."""
        import duckdb

        found = {}
        try:
            made = self._connection.sql(f"SELECT * FROM {quote_relation(node.relation)}")
        except duckdb.Error as error:
            raise _landing_error(node, error) from error
        for name, kind in zip(made.columns, made.types, strict=True):
            try:
                found[name] = from_duckdb_type(kind)
            except BadInput as flaw:
                raise BadInput(
                    f"{node.table}, column {name}: {flaw.cause}", flaw.next_step
                ) from flaw
        return found

    def _compare(self, contract: Contract, node: DbtNode) -> RowDifference:
        comparison = RowComparison(
            self._connection,
            quote_relation(node.relation),
            contract.columns,
            computed=node.materialized not in _MATERIALIZED,
        )
        state = self._pins.states.get(node.table)
        if state is None:
            return comparison.compare_with_empty()
        before = {column.name: column.type for column in shape_of(state).columns}
        if before != {column.name: column.type for column in contract.columns}:
            return comparison.compare_with_other_schema(self._pins.scan(node.table))
        return comparison.compare_with_table(self._pins.scan(node.table))

    def _write(self, node: DbtNode, found: RowDifference, reads: Mapping[str, int]) -> None:
        """Write one commit on the draft; its base must be the snapshot that was compared."""
        table = node.table
        self._draft.begin(table)
        if self._draft.base(table) != self.snapshots[table]:
            raise MainMoved([table], self._draft.into)
        self.snapshots[table] = self._draft.replace_files(
            table,
            RowBatches(self._connection, found.rows_to_write),
            self._files(table) if found.replaced_files is None else found.replaced_files,
            bookmark={**reads, NODE_KEY: node.id},
            operation=f"dbt {node.materialized}",
        )

    def _files(self, table: str) -> list[str]:
        planned = self._lake.iceberg(table).scan(snapshot_id=self.snapshots[table]).plan_files()
        return [task.file.file_path for task in planned]

    def _read_snapshots(self, node: DbtNode) -> dict[str, int]:
        """Return the tables that a node was computed from, each with its snapshot."""
        read = {parent.table for parent in self._graph.reads(node.id, through=self._upstream)}
        return {table: self.snapshots[table] for table in sorted(read) if table in self.snapshots}


def _landing_error(node: DbtNode, error: Exception) -> Permanent:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return Permanent(
        f"The rows of {node.id} cannot be written to {node.table}: {text.strip()}",
        "Nothing was published. Cast the column in the model.",
    )

"""What dbt made goes into the lake: the difference to what is there, on a draft."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.dbt import shaping
from thermocline.dbt.difference import Comparison, Difference, Pieces
from thermocline.dbt.report import Landed
from thermocline.dbt.workshop import relation
from thermocline.engine.duck import all_rows, scan
from thermocline.engine.duck_types import type_of
from thermocline.errors import BadInput, Permanent
from thermocline.lake.draft import Draft, source_head
from thermocline.lake.faults import crash_point
from thermocline.lake.outcomes import MainMoved
from thermocline.lake.schema import shape_of
from thermocline.lake.tables import pending

if TYPE_CHECKING:
    import duckdb

    from thermocline.contract.types import Type
    from thermocline.dbt.graph import Graph, Node
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState

NODE_KEY = "@dbt"
"""Where a bookmark keeps the id of the dbt node that made the table."""

_HELD = {"table", "incremental", "seed", "snapshot"}
"""Materialisations that leave their rows in the database; others are asked for them."""


@dataclass(frozen=True)
class Pins:
    """The tables that a run found in the lake, all at one moment, and their snapshots."""

    states: Mapping[str, TableState]
    snapshots: Mapping[str, int]

    @classmethod
    def take(cls, lake: Lake, tables: Collection[str], into: str) -> Pins:
        """Pin those of the tables that are there."""
        states = lake.states(tables)
        return cls(states, {table: source_head(state, into) for table, state in states.items()})

    def scan(self, table: str) -> str:
        """The table function that reads a table's files as they were pinned."""
        return scan(self.states[table].metadata_location, self.snapshots[table])

    def rows(self, connection: duckdb.DuckDBPyConnection, table: str) -> str:
        """The query that reads a table as it was pinned."""
        location = self.states[table].metadata_location
        return all_rows(connection, location, self.snapshots[table])


class Landing:
    """Puts the tables of one run onto its draft, one after the other.

    `live` are views that were only made for others to read: what they show is looked through.
    """

    def __init__(
        self,
        draft: Draft,
        connection: duckdb.DuckDBPyConnection,
        graph: Graph,
        pins: Pins,
        contracts: Mapping[str, Contract],
        live: Collection[str],
    ) -> None:
        self.heads: dict[str, int] = dict(pins.snapshots)
        self.contracts: dict[str, Contract] = {}
        self._draft = draft
        self._lake = draft.lake
        self._connection = connection
        self._graph = graph
        self._pins = pins
        self._written = contracts
        self._live = live

    def shape(self, node: Node, *, rebuild: bool) -> None:
        """Decide what the table of a node will look like, or refuse it. Changes nothing."""
        found = self._columns(node)
        state = self._pins.states.get(node.table)
        if state is None and self._lake.exists(node.table):
            raise MainMoved([node.table], self._draft.into)
        contract = self._written.get(node.table)
        if contract is not None:
            shaping.agree(contract, found, node)
            pending(self._lake, contract)
        else:
            contract = shaping.derive(node, found, state, rebuild=rebuild)
        self.contracts[node.table] = contract

    def land(self, node: Node) -> Landed:
        """Write what dbt made of a node that has a shape, if it differs from the table."""
        import duckdb

        began = time.monotonic()
        contract = self.contracts[node.table]
        self._ensure(contract)
        try:
            found = self._compared(contract, node)
        except duckdb.Error as error:
            raise _cannot_land(node, error) from error
        reads = self._reads(node)
        if not found.nothing:
            self._write(node, found, reads)
        crash_point("dbt.landed")
        return Landed(
            table=node.table,
            node=node.id,
            materialized=node.materialized,
            added=found.added,
            removed=found.removed,
            snapshot=self.heads[node.table],
            changed=not found.nothing,
            reads=reads,
            seconds=round(time.monotonic() - began, 3),
        )

    def _ensure(self, contract: Contract) -> None:
        table = contract.table
        state = self._pins.states.get(table)
        if state is not None and table not in self._written:
            # To Iceberg a column that comes back with another type is a new one.
            other = shaping.retyped(contract, state)
            if other:
                self._lake.ensure(shaping.without(contract, other))
        self._lake.ensure(contract)
        if state is None:
            self.heads[table] = source_head(self._lake.state(table), self._draft.into)

    def _columns(self, node: Node) -> dict[str, Type]:
        """What dbt made, column by column."""
        import duckdb

        found = {}
        try:
            made = self._connection.sql(f"SELECT * FROM {relation(node.relation)}")
        except duckdb.Error as error:
            raise _cannot_land(node, error) from error
        for name, kind in zip(made.columns, made.types, strict=True):
            try:
                found[name] = type_of(kind)
            except BadInput as flaw:
                raise BadInput(
                    f"{node.table}, column {name}: {flaw.cause}", flaw.next_step
                ) from flaw
        return found

    def _compared(self, contract: Contract, node: Node) -> Difference:
        comparison = Comparison(
            self._connection,
            relation(node.relation),
            contract.columns,
            computed=node.materialized not in _HELD,
        )
        state = self._pins.states.get(node.table)
        if state is None:
            return comparison.with_nothing()
        before = {column.name: column.type for column in shape_of(state).columns}
        if before != {column.name: column.type for column in contract.columns}:
            return comparison.with_another_shape(self._pins.scan(node.table))
        return comparison.with_table(self._pins.scan(node.table))

    def _write(self, node: Node, found: Difference, reads: Mapping[str, int]) -> None:
        """One commit on the draft, whose base must be what the rows were compared with."""
        table = node.table
        self._draft.begin(table)
        if self._draft.base(table) != self.heads[table]:
            raise MainMoved([table], self._draft.into)
        self.heads[table] = self._draft.replace_files(
            table,
            Pieces(self._connection, found.coming),
            self._files(table) if found.leaving is None else found.leaving,
            bookmark={**reads, NODE_KEY: node.id},
            operation=f"dbt {node.materialized}",
        )

    def _files(self, table: str) -> list[str]:
        planned = self._lake.iceberg(table).scan(snapshot_id=self.heads[table]).plan_files()
        return [task.file.file_path for task in planned]

    def _reads(self, node: Node) -> dict[str, int]:
        """The tables that a node was made from, each at its snapshot."""
        read = {parent.table for parent in self._graph.reads(node.id, through=self._live)}
        return {table: self.heads[table] for table in sorted(read) if table in self.heads}


def _cannot_land(node: Node, error: Exception) -> Permanent:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return Permanent(
        f"What dbt made of {node.id} cannot be put into {node.table}: {text.strip()}",
        "Nothing was published. Cast the column in the model.",
    )

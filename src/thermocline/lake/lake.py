"""The lake: the tables of one catalog, and everything that may be done to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from thermocline.engine.duck import DuckEngine
from thermocline.engine.spark import SparkEngine
from thermocline.errors import NotFound
from thermocline.lake import atomic, catalog, commit_times
from thermocline.lake.draft import Draft
from thermocline.lake.metadata import MAIN, TableState
from thermocline.lake.names import table_name

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from thermocline.config import Settings
    from thermocline.contract import Contract
    from thermocline.lake.atomic import TableChange
    from thermocline.lake.groupcommit import Commits


class Lake:
    """One lake. Opening it touches nothing; engines and libraries are loaded when needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.spark = SparkEngine(settings)
        self.duck = DuckEngine(settings)
        self._reader = catalog.reader(settings)

    @cached_property
    def catalog(self) -> Catalog:
        """PyIceberg's catalog, for writing."""
        return catalog.connect(self.settings)

    def tables(self) -> list[str]:
        """All tables as "layer.name"."""
        return self._reader.tables()

    def exists(self, table: str) -> bool:
        """Whether the catalog has the table."""
        try:
            self._reader.state(table_name(table))
        except NotFound:
            return False
        return True

    def state(self, table: str) -> TableState:
        """A table's metadata as it is now, read cheaply."""
        return self._reader.state(table_name(table))

    def states(self, tables: Collection[str]) -> dict[str, TableState]:
        """The metadata of those of the tables that are there, all as they are at one moment."""
        pointers = self._reader.pointers()
        return {t: self._reader.state_at(t, pointers[t]) for t in tables if t in pointers}

    def iceberg(self, table: str) -> Table:
        """A table as it is now, as PyIceberg's object."""
        return atomic.load(self.catalog, table_name(table))

    def mend_times(self, table: str) -> None:
        """Put a table's commit times in order, by a new metadata file with the same snapshots."""
        for again in atomic.retrying(atomic.PointerMoved):
            with again:
                iceberg, state = self.iceberg(table), self.state(table)
                if iceberg.metadata_location != state.metadata_location:
                    raise atomic.PointerMoved(f"{table} was changed meanwhile.", "Run again.")
                atomic.replace_metadata(self.catalog, iceberg, commit_times.mended(state))

    def ensure(self, contract: Contract) -> list[str]:
        """Create the table or bring it to its contract; says what was changed.

        A change that the contract may not ask for raises ContractError before anything is
        written. Several processes may do it at once.
        """
        from thermocline.lake import tables

        return tables.ensure(self, contract)

    def commit(self, changes: Sequence[TableChange]) -> None:
        """Change refs and metadata of several tables in one catalog transaction."""
        atomic.commit_all(self.catalog, changes)

    @cached_property
    def commits(self) -> Commits:
        """Commits that many processes make to one table, without getting in each other's way."""
        from thermocline.lake.groupcommit import Commits

        return Commits(self.catalog)

    def draft(self, run: str, into: str = MAIN) -> Draft:
        """A private branch over the tables that a run will touch."""
        return Draft(self, run, into)

    def close(self) -> None:
        """Close the engines."""
        self.duck.stop()
        self.spark.stop()

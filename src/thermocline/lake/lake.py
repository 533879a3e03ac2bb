"""The lake: the tables of one catalog, and everything that may be done to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from thermocline.engine.duck import DuckEngine
from thermocline.engine.spark import SparkEngine
from thermocline.lake import atomic_commit, catalog, catalog_identity, commit_times, metadata
from thermocline.lake.draft import Draft
from thermocline.lake.metadata import MAIN, MetadataFileMissing, TableState
from thermocline.lake.naming import validate_table_name

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from thermocline.config import Settings
    from thermocline.contract import Contract
    from thermocline.lake.atomic_commit import SessionWriter, TableChange
    from thermocline.lake.consumption_store import ConsumptionStore
    from thermocline.lake.groupcommit import GroupCommit
    from thermocline.lake.retention import RetentionPolicy

T = TypeVar("T")

_STATES_PER_READ = 64


class Lake:
    """One lake. Opening it touches nothing; engines and libraries are loaded when needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._reader = catalog.open_reader(settings)
        self._spark = SparkEngine(settings)
        self.duck = DuckEngine(settings, self._reader.roots)

    @cached_property
    def catalog(self) -> Catalog:
        """PyIceberg's catalog, for writing."""
        self._reader.require_here()
        made = catalog.connect(self.settings)
        if self.settings.catalog.type == "sqlite":
            catalog_identity.record_path(Path(self.settings.catalog.uri), catalog.TIMEOUT)
        return made

    @cached_property
    def spark(self) -> SparkEngine:
        """Spark, which reads and writes the same catalog."""
        self._reader.require_here()
        return self._spark

    def require_here(self) -> None:
        """Raise TablesElsewhere unless all tables lie in the warehouse."""
        self._reader.require_here()

    def tables(self) -> list[str]:
        """All tables as "layer.name"."""
        return self._reader.tables()

    def exists(self, table: str) -> bool:
        """Whether the catalog has the table."""
        return validate_table_name(table) in self._reader.pointers([table])

    def state(self, table: str) -> TableState:
        """A table's metadata as it is now, read cheaply."""
        return self._reader.state(validate_table_name(table))

    def states(self, tables: Collection[str] | None = None) -> dict[str, TableState]:
        """The metadata of those of the tables that are there, or of all, sorted by their names.

        All are as they are at one moment. Of a table that has not moved nothing is read again.
        """
        wanted = None if tables is None else [table for table in tables if "." in table]
        seen: dict[str, str] = {}
        while True:
            pointers = dict(sorted(self._reader.pointers(wanted).items()))
            try:
                return self._reader.states_at(pointers)
            except MetadataFileMissing:
                # Others may commit and remove old metadata before it is read here.
                if pointers == seen:
                    raise
                seen = pointers

    def summarize(
        self, make: Callable[[TableState], T], known: dict[str, tuple[Hashable, T]]
    ) -> dict[str, T]:
        """What is made of each table's metadata, in the order of their names.

        `known` keeps it with the version that it was made of. Metadata is read of those tables
        alone that have moved, a few at a time, so a large lake need not fit into memory.
        """
        while True:
            pointers = dict(sorted(self._reader.pointers().items()))
            try:
                for table in known.keys() - pointers.keys():
                    del known[table]
                self._summarize_moved(pointers, make, known)
            except MetadataFileMissing:
                if self._reader.pointers() == pointers:
                    raise
            else:
                return {table: known[table][1] for table in pointers}

    def _summarize_moved(
        self,
        pointers: Mapping[str, str],
        make: Callable[[TableState], T],
        known: dict[str, tuple[Hashable, T]],
    ) -> None:
        moved = [
            (table, at, version) for table, at in pointers.items()
            if (version := metadata.state_version(at)) != known.get(table, (None,))[0]
        ]  # fmt: skip
        for start in range(0, len(moved), _STATES_PER_READ):
            some = moved[start : start + _STATES_PER_READ]
            states = self._reader.states_at({table: at for table, at, _ in some})
            known.update((table, (version, make(states[table]))) for table, _, version in some)

    def iceberg(self, table: str) -> Table:
        """A table as it is now, as PyIceberg's object."""
        return atomic_commit.load(self.catalog, validate_table_name(table))

    def mend_times(self, table: str) -> None:
        """Put a table's commit times in order, by a new metadata file with the same snapshots."""
        for again in atomic_commit.retrying(atomic_commit.PointerMoved):
            with again:
                iceberg, state = self.iceberg(table), self.state(table)
                if iceberg.metadata_location != state.metadata_location:
                    raise atomic_commit.PointerMoved(
                        f"{table} was changed meanwhile.", "Run again."
                    )
                atomic_commit.replace_metadata(
                    self.catalog, iceberg, commit_times.repair_times(state)
                )

    def ensure(self, contract: Contract) -> list[str]:
        """Create the table or bring it to its contract; says what was changed.

        A change that the contract may not ask for raises ContractError before anything is
        written. Several processes may do it at once.
        """
        from thermocline.lake import table_setup

        return table_setup.ensure_table(self, contract)

    def commit(
        self, changes: Sequence[TableChange], alongside: SessionWriter | None = None
    ) -> None:
        """Change refs and metadata of several tables in one catalog transaction.

        What `alongside` writes to a SQL catalog's database is in the same transaction.
        """
        atomic_commit.commit_all(self.catalog, changes, alongside)

    @cached_property
    def beside(self) -> ConsumptionStore | None:
        """The rows beside the tables' pointers; None on a catalog that has no database for us."""
        if self.settings.catalog.type == "rest":
            return None
        from pyiceberg.catalog.sql import SqlCatalog

        from thermocline.lake.consumption_store import ConsumptionStore

        assert isinstance(self.catalog, SqlCatalog)
        return ConsumptionStore(self.catalog)

    @property
    def keep(self) -> RetentionPolicy:
        """How much history the lake's tables keep, unless they say otherwise themselves."""
        from thermocline.lake.retention import RetentionPolicy

        said = self.settings.retention
        return RetentionPolicy(
            said.snapshots, int(said.age_seconds * 1000), int(said.abandoned_seconds * 1000),
            points={"hourly": said.hourly, "daily": said.daily},
        )  # fmt: skip

    @cached_property
    def group_commit(self) -> GroupCommit:
        """Commits that many processes make to one table, without getting in each other's way."""
        from thermocline.lake.groupcommit import GroupCommit

        return GroupCommit(self.catalog, self)

    def draft(self, run: str, into: str = MAIN, *, late_branches: bool = False) -> Draft:
        """A private branch over the tables that a run will touch."""
        return Draft(self, run, into, late_branches=late_branches)

    def disconnect(self) -> None:
        """Close DuckDB and the catalog's connections; the Spark session of the process stays."""
        self._reader.close()
        if "catalog" in self.__dict__:
            self.catalog.close()
        self.duck.stop()

    def close(self) -> None:
        """Close the engines and connections."""
        self.disconnect()
        self._spark.stop()

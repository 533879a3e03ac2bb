"""The lake: the tables of one catalog, and the operations on them."""

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
from thermocline.lake.read_log import ReadLog
from thermocline.lake.retries import retry_on

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from thermocline.config import Settings
    from thermocline.contract import Contract
    from thermocline.lake.atomic_commit import SessionWriter, TableChange
    from thermocline.lake.consumers import BookmarkedConsumers
    from thermocline.lake.consumption_store import ConsumptionStore
    from thermocline.lake.groupcommit import GroupCommit
    from thermocline.lake.groupcommit.entry import CommitEntry
    from thermocline.lake.retention import RetentionPolicy

T = TypeVar("T")

_STATES_PER_READ = 64


class Lake:
    """One lake. Opening it is free; engines and libraries are loaded on first use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._reader = catalog.open_reader(settings)
        self._spark = SparkEngine(settings)
        self.duck = DuckEngine(settings, self._reader.roots)

    @cached_property
    def catalog(self) -> Catalog:
        """PyIceberg's catalog, for writing."""
        self._reader.require_tables_in_warehouse()
        connected = catalog.connect(self.settings)
        if self.settings.catalog.type == "sqlite":
            catalog_identity.record_path(Path(self.settings.catalog.uri), catalog.TIMEOUT)
        return connected

    @cached_property
    def read_log(self) -> ReadLog:
        """The log of what this process read."""
        return ReadLog(self.settings.project)

    @cached_property
    def spark(self) -> SparkEngine:
        """Spark, which reads and writes the same catalog."""
        self._reader.require_tables_in_warehouse()
        return self._spark

    def require_tables_in_warehouse(self) -> None:
        """Raise TablesElsewhere if a table lies outside the warehouse."""
        self._reader.require_tables_in_warehouse()

    def tables(self) -> list[str]:
        """Return all tables as "layer.name"."""
        return self._reader.tables()

    def exists(self, table: str) -> bool:
        """Whether the catalog has the table."""
        return validate_table_name(table) in self._reader.pointers([table])

    def state(self, table: str) -> TableState:
        """Return a table's current metadata."""
        return self._reader.state(validate_table_name(table))

    def states(self, tables: Collection[str] | None = None) -> dict[str, TableState]:
        """Return the metadata of the existing ones of these tables, or of all, sorted by name.

        All states are of one moment. Metadata of unchanged tables is not read again.
        """
        names = None if tables is None else [table for table in tables if "." in table]
        previous: dict[str, str] = {}
        while True:
            pointers = dict(sorted(self._reader.pointers(names).items()))
            try:
                return self._reader.states_at(pointers)
            except MetadataFileMissing:
                # Concurrent commits may remove old metadata before it is read here.
                if pointers == previous:
                    raise
                previous = pointers

    def summarize(
        self, summarize: Callable[[TableState], T], cache: dict[str, tuple[Hashable, T]]
    ) -> dict[str, T]:
        """Return a summary of each table's metadata, by name in order.

        `cache` keeps each summary with the metadata version of its table. Only the metadata of
        moved tables is read, a few at a time, so a large lake need not fit into memory.
        """
        while True:
            pointers = dict(sorted(self._reader.pointers().items()))
            try:
                for table in cache.keys() - pointers.keys():
                    del cache[table]
                self._summarize_moved(pointers, summarize, cache)
            except MetadataFileMissing:
                if self._reader.pointers() == pointers:
                    raise
            else:
                return {table: cache[table][1] for table in pointers}

    def _summarize_moved(
        self,
        pointers: Mapping[str, str],
        summarize: Callable[[TableState], T],
        cache: dict[str, tuple[Hashable, T]],
    ) -> None:
        moved = [
            (table, at, version) for table, at in pointers.items()
            if (version := metadata.state_version(at)) != cache.get(table, (None,))[0]
        ]  # fmt: skip
        for start in range(0, len(moved), _STATES_PER_READ):
            batch = moved[start : start + _STATES_PER_READ]
            states = self._reader.states_at({table: at for table, at, _ in batch})
            cache.update(
                (table, (version, summarize(states[table]))) for table, _, version in batch
            )

    def iceberg(self, table: str) -> Table:
        """Load a table's current state as PyIceberg's object."""
        return atomic_commit.load(self.catalog, validate_table_name(table))

    def repair_commit_times(self, table: str) -> None:
        """Repair a table's commit times by a new metadata file with the same snapshots."""
        for attempt in retry_on(atomic_commit.PointerMoved):
            with attempt:
                iceberg, state = self.iceberg(table), self.state(table)
                if iceberg.metadata_location != state.metadata_location:
                    raise atomic_commit.PointerMoved(
                        f"{table} was changed meanwhile.", "Run again."
                    )
                atomic_commit.replace_metadata(
                    self.catalog, iceberg, commit_times.repair_times(state)
                )

    def ensure(self, contract: Contract) -> list[str]:
        """Create the table or evolve it to its contract; return what was changed.

        Raise ContractError for a change that is not allowed, before anything is written. Several
        processes may call it at once.
        """
        from thermocline.lake import table_setup

        return table_setup.ensure_table(self, contract)

    def commit(
        self, changes: Sequence[TableChange], write_rows: SessionWriter | None = None
    ) -> None:
        """Change refs and metadata of several tables in one catalog transaction.

        The rows that `write_rows` writes to a SQL catalog's database are in the same transaction.
        """
        atomic_commit.commit_all(self.catalog, changes, write_rows)

    @cached_property
    def consumption_store(self) -> ConsumptionStore | None:
        """The store of what tables have consumed; None on a REST catalog, which has no database."""
        if self.settings.catalog.type == "rest":
            return None
        from pyiceberg.catalog.sql import SqlCatalog

        from thermocline.lake.consumption_store import ConsumptionStore

        assert isinstance(self.catalog, SqlCatalog)
        return ConsumptionStore(self.catalog)

    @cached_property
    def bookmarked_consumers(self) -> BookmarkedConsumers:
        """The consumers of tables on a REST catalog."""
        from thermocline.lake.consumers import BookmarkedConsumers

        return BookmarkedConsumers(self)

    @property
    def retention_policy(self) -> RetentionPolicy:
        """How much history the lake's tables keep, unless a table has its own properties."""
        from thermocline.lake.retention import RetentionPolicy

        settings = self.settings.retention
        return RetentionPolicy(
            settings.snapshots,
            int(settings.age_seconds * 1000),
            int(settings.abandoned_seconds * 1000),
            points={"hourly": settings.hourly, "daily": settings.daily},
        )  # fmt: skip

    @cached_property
    def group_commit(self) -> GroupCommit:
        """Group commit, for many processes that write to one table."""
        from thermocline.lake.groupcommit import GroupCommit

        return GroupCommit(self.catalog, self)

    def waiting_commits(self, table: str) -> list[CommitEntry]:
        """Return the entries that wait for group commit to a table; it may land them any time."""
        if self.settings.catalog.type == "rest":
            return []  # there an entry is committed while its writer waits
        from pyiceberg.catalog.sql import SqlCatalog

        from thermocline.lake.groupcommit.queue import Queue

        assert isinstance(self.catalog, SqlCatalog)
        waiting = Queue(self.catalog).list_waiting()
        return [each.entry() for each in waiting if each.table == table]

    def draft(self, run: str, into: str = MAIN, *, late_branches: bool = False) -> Draft:
        """Create a run's draft: a private branch in the tables that it writes."""
        return Draft(self, run, into, late_branches=late_branches)

    def disconnect(self) -> None:
        """Close DuckDB and the catalog's connections, but not the process's Spark session."""
        self._reader.close()
        if "read_log" in self.__dict__:
            self.read_log.flush()
        if "catalog" in self.__dict__:
            self.catalog.close()
        self.duck.stop()

    def close(self) -> None:
        """Close engines and connections."""
        self.disconnect()
        self._spark.stop()

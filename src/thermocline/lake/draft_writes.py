"""Write to a draft's tables, by Spark or by this process.

Each call makes one commit, with its bookmark, on the table's branch of the draft.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

from thermocline.errors import CatalogUnavailable, CommitUnknown, ThermoclineError
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.commit_failures import MainMoved, commit_failure
from thermocline.lake.commit_times import refuse_future_commits
from thermocline.lake.crash_points import crash_point, crash_when_written

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from thermocline.lake.consumption import Consumption
    from thermocline.lake.data_file_reader import Positions
    from thermocline.lake.data_file_writer import DataFileWriter, Rows
    from thermocline.lake.file_commit import PendingCommit
    from thermocline.lake.lake import Lake
    from thermocline.lake.metadata import Snapshot
    from thermocline.lake.overwrite import Partitions
    from thermocline.lake.snapshot_producer import FileChange

_SPARK_PROPERTY_PREFIX = "spark.sql.iceberg.snapshot-property."


class DraftWrites(ABC):
    """The commits of a draft."""

    lake: Lake
    run: str
    into: str
    branch: str
    _branched: set[str]
    _pending: dict[str, PendingCommit]
    _files: list[DataFileWriter]

    @abstractmethod
    def begin(self, *tables: str) -> None:
        """Add tables to the draft, at their current heads."""

    @abstractmethod
    def head(self, table: str) -> int:
        """Return the newest snapshot on the draft's branch."""

    @abstractmethod
    def target(self, table: str) -> str:
        """Return the identifier by which Spark writes to the draft's branch."""

    @abstractmethod
    def unit_id(self, table: str) -> str:
        """Return the id that links this draft's commits to a table and its companions."""

    @abstractmethod
    def _create_branches(self, *tables: str) -> None:
        """Create the missing branches of tables."""

    @abstractmethod
    def _carry_consumption(self, table: str, consumed: Consumption) -> dict[str, str]:
        """Return the snapshot properties that record what a commit consumes, if any do."""

    @abstractmethod
    def _record_consumption(self, table: str, snapshot: int, consumed: Consumption) -> None:
        """Record what a commit consumed, if publish writes it."""

    def commit(
        self,
        table: str,
        write: Callable[[str], None],
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        consumed: Consumption | None = None,
    ) -> int:
        """Write one commit to the draft by Spark, with its bookmark, and return its snapshot.

        `write` gets the Spark identifier and makes exactly one Iceberg commit. If it fails, the
        commit is looked up by its id, because it may have landed. `consumed` is recorded when the
        draft is published.
        """

        def write_by_spark(properties: dict[str, str]) -> None:
            self._create_branches(table)
            state = self.lake.state(table)
            refuse_future_commits(state)
            location = state.location
            with self._properties(properties), crash_when_written("commit.files-written", location):
                write(self.target(table))

        return self._commit(table, write_by_spark, bookmark, operation, consumed)

    def append(
        self,
        table: str,
        rows: Rows,
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        extra_properties: Mapping[str, str] | None = None,
        consumed: Consumption | None = None,
    ) -> int:
        """Append rows of this process in one commit, without Spark, and return its snapshot.

        `extra_properties` are further properties of the snapshot. `consumed` is recorded when the
        draft is published.
        """
        from thermocline.lake.file_commit import append_rows

        extra = extra_properties or {}
        return self._write(table, append_rows(rows), bookmark, operation, extra, consumed)

    def replace(
        self, table: str, rows: Rows, *, bookmark: bookmarks.Bookmark | None, operation: str
    ) -> int:
        """Replace all rows on the branch with rows of this process."""
        from thermocline.lake import overwrite

        return self._rewrite(table, partial(overwrite.replace_all, rows=rows), bookmark, operation)

    def replace_partitions(
        self,
        table: str,
        rows: Rows,
        partitions: Partitions | None,
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        """Replace these partitions with rows of this process, or the partitions of the rows."""
        from thermocline.lake import overwrite

        make = partial(overwrite.replace_partitions, rows=rows, partitions=partitions)
        return self._rewrite(table, make, bookmark, operation)

    def replace_rows(
        self,
        table: str,
        rows: Rows,
        gone: Mapping[str, Positions],
        *,
        on_read: bool,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        extra_properties: Mapping[str, str] | None = None,
    ) -> int:
        """Add rows of this process, and remove the rows at positions of files, by path."""
        from thermocline.lake import overwrite

        make = partial(overwrite.replace_rows, rows=rows, gone=gone, on_read=on_read)
        return self._rewrite(table, make, bookmark, operation, extra_properties or {})

    def replace_files(
        self,
        table: str,
        rows: Rows,
        paths: Collection[str],
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        """Replace the data files at these paths with rows of this process."""
        from thermocline.lake import overwrite

        make = partial(overwrite.replace_files, rows=rows, paths=paths)
        return self._rewrite(table, make, bookmark, operation)

    def change_files(
        self,
        table: str,
        change: FileChange,
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        """Add and remove files that are already written, in one commit."""
        return self._rewrite(table, lambda *_: change, bookmark, operation)

    def _rewrite(
        self,
        table: str,
        make: Callable[[Table, int], FileChange],
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        extra_properties: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        self.begin(table)
        self._create_branches(table)
        return self._write(
            table, lambda t: make(t, self.head(table)), bookmark, operation, extra_properties
        )

    def _write(
        self,
        table: str,
        make: Callable[[Table], FileChange],
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        extra_properties: Mapping[str, str] = MappingProxyType({}),
        consumed: Consumption | None = None,
    ) -> int:
        """Commit now if the table has a branch, otherwise with the publish."""
        from thermocline.lake import file_commit

        def write_by_pyiceberg(properties: dict[str, str]) -> int:
            all_properties = {**properties, **extra_properties}
            if table not in self._branched and table not in self._pending:
                self._pending[table] = file_commit.prepare_commit(
                    self.lake.iceberg(table), make, all_properties
                )
                return self._pending[table].id
            self._create_branches(table)
            return file_commit.commit_files(
                lambda: self.lake.iceberg(table), make, self.branch, all_properties
            )

        return self._commit(table, write_by_pyiceberg, bookmark, operation, consumed)

    @contextmanager
    def open_writer(self, table: str) -> Iterator[DataFileWriter]:
        """Open data files for `add`, which accept rows of this process in parts.

        They are complete when the block ends, and removed when it fails.
        """
        from thermocline.lake.data_file_writer import DataFileWriter

        files = DataFileWriter(self.lake.iceberg(table))
        try:
            yield files
            files.close()
        except BaseException as error:
            files.abandon()
            if isinstance(error, OSError | ValueError):  # from the disk, the store, or Arrow
                raise commit_failure(table, error) from error
            raise

    def add(
        self,
        table: str,
        files: DataFileWriter,
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        consumed: Consumption | None = None,
    ) -> int:
        """Append written files in one commit, and record what it consumed.

        Raise MainMoved and remove the files if they no longer fit the table.
        """
        from thermocline.lake.file_commit import TableLayoutChanged, add_written_files

        try:
            change = add_written_files(files)
            snapshot = self._write(table, change, bookmark, operation, consumed=consumed)
        except TableLayoutChanged as error:
            files.abandon()
            raise MainMoved([table], self.into) from error
        if table in self._pending:
            self._files.append(files)
        return snapshot

    def _commit(
        self,
        table: str,
        write: Callable[[dict[str, str]], int | None],
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        consumed: Consumption | None,
    ) -> int:
        self.begin(table)
        commit = uuid4().hex
        unit = self.unit_id(table)
        properties = bookmarks.properties(self.run, commit, operation, bookmark, unit)
        if consumed is not None:
            properties |= self._carry_consumption(table, consumed)
        crash_point("commit.before")
        failure: Exception | None = None
        snapshot: int | None = None
        try:
            snapshot = write(properties)
        except ThermoclineError:
            raise
        except Exception as error:  # noqa: BLE001  raised below, unless the commit landed
            failure = error
        if snapshot is None:
            landed = self._find_landed_commit(table, commit)
            if landed is None:
                raise commit_failure(table, failure) from failure
            snapshot = landed.id
        if consumed is not None:
            self._record_consumption(table, snapshot, consumed)
        crash_point("commit.after")
        return snapshot

    def _find_landed_commit(self, table: str, commit: str) -> Snapshot | None:
        """Return the snapshot that our commit made, if it landed."""
        try:
            return bookmarks.find_commit(self.lake.state(table), commit)
        except CatalogUnavailable as error:
            raise CommitUnknown(
                f"It is not known whether the commit to {table} landed. {error.cause}",
                "Nothing was published. When the catalog is back, run again.",
                tables=[table],
                commit=commit,
            ) from error

    @contextmanager
    def _properties(self, properties: dict[str, str]) -> Iterator[None]:
        """Set properties of the snapshots that Spark commits during the block."""
        conf = self.lake.spark.session.conf
        for key, value in properties.items():
            conf.set(_SPARK_PROPERTY_PREFIX + key, value)
        try:
            yield
        finally:
            for key in properties:
                conf.unset(_SPARK_PROPERTY_PREFIX + key)

"""How a draft's tables are written: by Spark, or by this process; whole or file by file.

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
        """Note where tables are now."""

    @abstractmethod
    def head(self, table: str) -> int:
        """The newest snapshot on the draft's branch."""

    @abstractmethod
    def target(self, table: str) -> str:
        """The identifier under which Spark writes the draft's branch."""

    @abstractmethod
    def unit_mark(self, table: str) -> str:
        """What marks this draft's commits to a table and its companions as made together."""

    @abstractmethod
    def _branch(self, *tables: str) -> None:
        """Make the branches of tables that have none yet."""

    def commit(
        self,
        table: str,
        write: Callable[[str], None],
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        """Write one commit to the draft, with its bookmark, and say which snapshot it made.

        `write` gets the Spark identifier and makes exactly one Iceberg commit. If it fails, the
        commit is looked for by its id before the failure is believed.
        """

        def by_spark(properties: dict[str, str]) -> None:
            self._branch(table)
            state = self.lake.state(table)
            refuse_future_commits(state)
            location = state.location
            with self._properties(properties), crash_when_written("commit.files-written", location):
                write(self.target(table))

        return self._commit(table, by_spark, bookmark, operation)

    def append(
        self,
        table: str,
        rows: Rows,
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        notes: Mapping[str, str] | None = None,
    ) -> int:
        """The same for rows of this process, which are added without Spark; see `lake.append`.

        `notes` are further properties of the snapshot.
        """
        from thermocline.lake.file_commit import append_rows

        return self._write(table, append_rows(rows), bookmark, operation, notes or {})

    def replace(
        self, table: str, rows: Rows, *, bookmark: bookmarks.Bookmark | None, operation: str
    ) -> int:
        """Put rows of this process in the place of everything there is on the branch."""
        from thermocline.lake import overwrite

        return self._rewrite(table, partial(overwrite.everything, rows=rows), bookmark, operation)

    def replace_partitions(
        self,
        table: str,
        rows: Rows,
        partitions: Partitions | None,
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        """Put rows of this process in the place of these partitions, or of those they lie in."""
        from thermocline.lake import overwrite

        make = partial(overwrite.partitions, rows=rows, wanted=partitions)
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
        notes: Mapping[str, str] | None = None,
    ) -> int:
        """Add rows of this process and take out those at positions in files, by their paths."""
        from thermocline.lake import overwrite

        make = partial(overwrite.rows_at, rows=rows, gone=gone, on_read=on_read)
        return self._rewrite(table, make, bookmark, operation, notes or {})

    def replace_files(
        self,
        table: str,
        rows: Rows,
        paths: Collection[str],
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        """Put rows of this process in the place of the data files at some paths, or of none."""
        from thermocline.lake import overwrite

        make = partial(overwrite.files_at, rows=rows, paths=paths)
        return self._rewrite(table, make, bookmark, operation)

    def change_files(
        self,
        table: str,
        change: FileChange,
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        """Add and remove files that are written already, in one commit."""
        return self._rewrite(table, lambda *_: change, bookmark, operation)

    def _rewrite(
        self,
        table: str,
        make: Callable[[Table, int], FileChange],
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        notes: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        self.begin(table)
        self._branch(table)
        return self._write(table, lambda t: make(t, self.head(table)), bookmark, operation, notes)

    def _write(
        self,
        table: str,
        make: Callable[[Table], FileChange],
        bookmark: bookmarks.Bookmark | None,
        operation: str,
        notes: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """One commit of this process: at once where there is a branch, or when it is published."""
        from thermocline.lake import file_commit

        def by_iceberg(properties: dict[str, str]) -> int:
            every = {**properties, **notes}
            if table not in self._branched and table not in self._pending:
                self._pending[table] = file_commit.prepare_commit(
                    self.lake.iceberg(table), make, every
                )
                return self._pending[table].id
            self._branch(table)
            return file_commit.commit_files(
                lambda: self.lake.iceberg(table), make, self.branch, every
            )

        return self._commit(table, by_iceberg, bookmark, operation)

    @contextmanager
    def writing(self, table: str) -> Iterator[DataFileWriter]:
        """Data files for `add`, which take rows of this process piece by piece.

        They are whole when the block ends, and removed when it fails.
        """
        from thermocline.lake.data_file_writer import DataFileWriter

        files = DataFileWriter(self.lake.iceberg(table))
        try:
            yield files
            files.close()
        except BaseException as error:
            files.abandon()
            if isinstance(error, OSError | ValueError):  # of the disk, the store, or Arrow
                raise commit_failure(table, error) from error
            raise

    def add(
        self,
        table: str,
        files: DataFileWriter,
        *,
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        """The same as `append` for files that are written; raises MainMoved and removes them when
        they no longer fit the table."""
        from thermocline.lake.file_commit import TableLayoutChanged, add_written_files

        try:
            number = self._write(table, add_written_files(files), bookmark, operation)
        except TableLayoutChanged as error:
            files.abandon()
            raise MainMoved([table], self.into) from error
        if table in self._pending:
            self._files.append(files)
        return number

    def _commit(
        self,
        table: str,
        write: Callable[[dict[str, str]], int | None],
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        self.begin(table)
        commit = uuid4().hex
        unit = self.unit_mark(table)
        properties = bookmarks.properties(self.run, commit, operation, bookmark, unit)
        crash_point("commit.before")
        failure: Exception | None = None
        made: int | None = None
        try:
            made = write(properties)
        except ThermoclineError:
            raise
        except Exception as error:  # noqa: BLE001  judged below: it may have landed all the same
            failure = error
        if made is None:
            landed = self._look_for(table, commit)
            if landed is None:
                raise commit_failure(table, failure) from failure
            made = landed.id
        crash_point("commit.after")
        return made

    def _look_for(self, table: str, commit: str) -> Snapshot | None:
        """The snapshot that a commit of ours made, if it landed."""
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
        """Have Spark put these properties into the snapshots it commits meanwhile."""
        conf = self.lake.spark.session.conf
        for key, value in properties.items():
            conf.set(_SPARK_PROPERTY_PREFIX + key, value)
        try:
            yield
        finally:
            for key in properties:
                conf.unset(_SPARK_PROPERTY_PREFIX + key)

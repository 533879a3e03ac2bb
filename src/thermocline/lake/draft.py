"""A draft: a run's private branch over the tables it touches, published all at once.

Everything a run writes goes to its draft. Readers of main see nothing of it until `publish` moves
main in all tables by one catalog transaction, or never, when the run fails or dies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from thermocline.engine.bridge import jvm_ended
from thermocline.engine.spark import CATALOG
from thermocline.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitUnknown,
    Permanent,
    ThermoclineError,
    Transient,
)
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import companions, refs
from thermocline.lake.commit_times import refuse_ahead
from thermocline.lake.faults import crash_point, crash_when_written
from thermocline.lake.metadata import MAIN
from thermocline.lake.names import RUN_PREFIX

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from thermocline.lake.datafile import Positions
    from thermocline.lake.filechange import FileChange
    from thermocline.lake.lake import Lake
    from thermocline.lake.metadata import Snapshot, TableState
    from thermocline.lake.rewrite import Partitions
    from thermocline.lake.writing import Files, Rows

_PROPERTY = "spark.sql.iceberg.snapshot-property."


@dataclass(frozen=True)
class Published:
    """What a publish made visible: each table's snapshot before and after."""

    run: str
    into: str
    tables: dict[str, tuple[int | None, int]]


class MainMoved(CommitConflict):
    """The branch to publish into has commits that the draft does not contain."""

    code = "main-moved"

    def __init__(self, tables: list[str], into: str) -> None:
        super().__init__(
            f"{into} moved in {', '.join(tables)} while the run was working.",
            "Nothing was published. Run again to work from the new state.",
            tables=tables,
        )
        self.tables = tables


class Draft:
    """One run's branches. `into` is the branch that publish moves: main, or an environment."""

    def __init__(self, lake: Lake, run: str, into: str = MAIN) -> None:
        self.lake = lake
        self.run = run
        self.into = into
        self.branch = RUN_PREFIX + run
        self._bases: dict[str, int] = {}
        self._marks: dict[str, str] = {}

    @property
    def tables(self) -> list[str]:
        """The tables that have been begun."""
        return list(self._bases)

    def begin(self, *tables: str) -> None:
        """Branch tables from where they are now, in one transaction. Begun ones are left alone."""
        changes = []
        for table in tables:
            if table in self._bases:
                continue
            base = self.start(self.lake.state(table))
            changes.append(refs.set_ref(table, self.branch, base, was=None))
            self._bases[table] = base
        if changes:
            self.lake.commit(changes)
            crash_point("draft.begun")

    def start(self, state: TableState) -> int:
        """Where `into` is, or begins: a companion begins beside the `into` of its table."""
        if self.into not in state.refs and companions.is_companion(state.table):
            owner = companions.owner_of(self.lake, state)
            table = self.lake.state(owner) if owner is not None else None
            head = table.head(self.into) if table is not None else None
            if table is not None and head is not None:
                return companions.beside_snapshot(table, head, state)
        return source_head(state, self.into)

    def unit_mark(self, table: str) -> str:
        """What marks this draft's commits to a table and its companions as made together."""
        return self._marks.setdefault(companions.unit_name(table), uuid4().hex)

    def resume(self, table: str, base: int) -> None:
        """Go on with a table's branch that an earlier process made from a snapshot."""
        self._bases[table] = base

    def base(self, table: str) -> int:
        """The snapshot that the draft's branch was made from."""
        return self._bases[table]

    def target(self, table: str) -> str:
        """The identifier under which Spark reads and writes the draft's branch."""
        return f"{CATALOG}.{table}.`branch_{self.branch}`"

    def head(self, table: str) -> int:
        """The newest snapshot on the draft's branch."""
        return self._head(self.lake.state(table))

    def _head(self, state: TableState) -> int:
        head = state.head(self.branch)
        if head is None:
            raise Permanent(
                f"The branch {self.branch} of {state.table} is gone.",
                "Somebody dropped it while the run was working. Run again.",
            )
        return head

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
            state = self.lake.state(table)
            refuse_ahead(state)
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
        from thermocline.lake.append import append

        def by_iceberg(properties: dict[str, str]) -> None:
            every = {**properties, **(notes or {})}
            append(lambda: self.lake.iceberg(table), rows, self.branch, every)

        return self._commit(table, by_iceberg, bookmark, operation)

    def replace(
        self, table: str, rows: Rows, *, bookmark: bookmarks.Bookmark | None, operation: str
    ) -> int:
        """Put rows of this process in the place of everything there is on the branch."""
        from thermocline.lake import rewrite

        return self._rewrite(table, partial(rewrite.everything, rows=rows), bookmark, operation)

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
        from thermocline.lake import rewrite

        make = partial(rewrite.partitions, rows=rows, wanted=partitions)
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
    ) -> int:
        """Add rows of this process and take out those at positions in files, by their paths."""
        from thermocline.lake import rewrite

        make = partial(rewrite.rows_at, rows=rows, gone=gone, on_read=on_read)
        return self._rewrite(table, make, bookmark, operation)

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
        from thermocline.lake import rewrite

        make = partial(rewrite.files_at, rows=rows, paths=paths)
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
    ) -> int:
        from thermocline.lake.append import commit

        def by_iceberg(properties: dict[str, str]) -> None:
            def change(iceberg: Table) -> FileChange:
                return make(iceberg, self.head(table))

            commit(lambda: self.lake.iceberg(table), change, self.branch, properties)

        return self._commit(table, by_iceberg, bookmark, operation)

    @contextmanager
    def writing(self, table: str) -> Iterator[Files]:
        """Data files for `add`, which take rows of this process piece by piece.

        They are whole when the block ends, and removed when it fails.
        """
        from thermocline.lake.writing import Files

        files = Files(self.lake.iceberg(table))
        try:
            yield files
            files.close()
        except BaseException as error:
            files.abandon()
            if isinstance(error, OSError | ValueError):  # of the disk, the store, or Arrow
                raise _not_landed(table, error) from error
            raise

    def add(
        self, table: str, files: Files, *, bookmark: bookmarks.Bookmark | None, operation: str
    ) -> int:
        """The same as `append` for files that are written; raises MainMoved and removes them when
        they no longer fit the table."""
        from thermocline.lake.append import TableChanged, add

        def by_iceberg(properties: dict[str, str]) -> None:
            add(lambda: self.lake.iceberg(table), files, self.branch, properties)

        try:
            return self._commit(table, by_iceberg, bookmark, operation)
        except TableChanged as error:
            files.abandon()
            raise MainMoved([table], self.into) from error

    def _commit(
        self,
        table: str,
        write: Callable[[dict[str, str]], None],
        bookmark: bookmarks.Bookmark | None,
        operation: str,
    ) -> int:
        self.begin(table)
        commit = uuid4().hex
        unit = self.unit_mark(table)
        properties = bookmarks.properties(self.run, commit, operation, bookmark, unit)
        crash_point("commit.before")
        failure: Exception | None = None
        try:
            write(properties)
        except ThermoclineError:
            raise
        except Exception as error:  # noqa: BLE001  judged below: it may have landed all the same
            failure = error
        landed = self._look_for(table, commit)
        if landed is None:
            raise _not_landed(table, failure) from failure
        crash_point("commit.after")
        return landed.id

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

    def rebase(self, table: str) -> None:
        """Forget what the draft wrote to a table and branch it anew from where `into` is now."""
        state = self.lake.state(table)
        base = self.start(state)
        change = refs.set_ref(table, self.branch, base, was=state.head(self.branch))
        self.lake.commit([change])
        self._bases[table] = base
        if companions.is_companion(table):
            self._marks.pop(companions.unit_name(table), None)  # what it was given to is forgotten

    def publish(self) -> Published:
        """Make everything in the draft visible at once, or raise MainMoved and change nothing."""
        crash_point("publish.before")
        changes, published, moved = [], {}, []
        for table, base in self._bases.items():
            # One look a table: what is compared with the base is also what the commit requires.
            state = self.lake.state(table)
            if self.start(state) != base:
                moved.append(table)
                continue
            head = self._head(state)
            before = state.head(self.into)
            if head != before:
                # Of an environment also what nothing was written to: main may move on without it.
                changes.append(refs.set_ref(table, self.into, head, was=before))
            if head != base:
                published[table] = (before, head)
            changes.append(refs.drop_ref(table, self.branch, was=head))
        if moved:
            raise MainMoved(moved, self.into)
        if changes:
            try:
                self.lake.commit(refs.together(*changes))
            except CommitConflict as error:
                raise MainMoved([str(error.details.get("table", ""))], self.into) from error
        crash_point("publish.after")
        return Published(self.run, self.into, published)

    def drop(self) -> None:
        """Remove the draft's branches. Their snapshots go when snapshots expire."""
        changes = []
        for table in self._bases:
            head = self.lake.state(table).head(self.branch)
            if head is not None:
                changes.append(refs.drop_ref(table, self.branch, was=head))
        if changes:
            self.lake.commit(changes)
        self._bases.clear()
        self._marks.clear()

    @contextmanager
    def _properties(self, properties: dict[str, str]) -> Iterator[None]:
        """Have Spark put these properties into the snapshots it commits meanwhile."""
        conf = self.lake.spark.session.conf
        for key, value in properties.items():
            conf.set(_PROPERTY + key, value)
        try:
            yield
        finally:
            for key in properties:
                conf.unset(_PROPERTY + key)


def source_head(state: TableState, branch: str) -> int:
    """Where a branch is, or main where the table does not have that branch."""
    head = state.head(branch)
    if head is None:
        head = state.head()
    if head is None:
        raise Permanent(
            f"{state.table} has no snapshot, so it cannot be branched.",
            f"Create it from its contract: thermo run --select {state.table}.",
        )
    return head


def drop_branch_everywhere(lake: Lake, branch: str, tables: Iterable[str]) -> list[str]:
    """Remove a branch from all tables that have it, in one transaction."""
    changes, dropped = [], []
    for table in tables:
        head = lake.state(table).head(branch)
        if head is not None:
            changes.append(refs.drop_ref(table, branch, was=head))
            dropped.append(table)
    if changes:
        lake.commit(changes)
    return dropped


def _not_landed(table: str, failure: Exception | None) -> ThermoclineError:
    if failure is None:
        return Permanent(
            f"The write to {table} ended without a commit.", "This is a bug; please report it."
        )
    if (ended := jvm_ended(failure)) is not None:
        return ended
    text = str(failure)
    first = next((line for line in text.splitlines() if line.strip()), type(failure).__name__)
    if (
        type(failure).__name__ == "CommitFailedException"
        or "CommitFailedException" in text
        or "CommitStateUnknownException" in text
    ):
        return CommitConflict(f"The commit to {table} did not land: {first}", "Run again.")
    if any(sign in text for sign in ("SQLITE_BUSY", "Connection refused", "database is locked")):
        return Transient(f"The write to {table} did not land: {first}", "Run again.")
    return Permanent(f"The write to {table} failed: {first}", "Nothing of it was published.")

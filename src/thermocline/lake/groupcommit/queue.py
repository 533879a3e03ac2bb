"""The queue of entries and the leases, in the catalog's database: SQLite or PostgreSQL.

Times are the database's, so the clocks of several machines need not agree. Every writing
transaction begins with a write: SQLite then waits for the lock instead of failing. Each locks its
lease before it locks entries, so transactions cannot deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    delete,
    func,
    inspect,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from thermocline.errors import CommitConflict, NotFound, Permanent, ThermoclineError
from thermocline.lake.catalog import catalog_errors
from thermocline.lake.groupcommit import entry_codec
from thermocline.lake.groupcommit.entry import CommitEntry
from thermocline.lake.retries import retry_table_creation

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.orm import Session

LEASE_SECONDS = 2.0
"""Seconds without a renewal after which a lease expires."""
KEY_SECONDS = 7 * 86_400.0
"""Seconds for which a key is kept after it landed or failed."""
BATCH_ENTRIES = 500
"""Maximum number of entries in one round."""
BATCH_BYTES = 16 << 20
"""Maximum bytes of entries in one round; a single entry may be larger."""

WAITING, DONE, FAILED = "waiting", "done", "failed"
_PART, _VERSION = "commit-queue", 1
_TABLES = MetaData()
_VERSIONS = Table(
    "thermocline_versions",
    _TABLES,
    Column("part", String(64), primary_key=True),
    Column("version", Integer, nullable=False),
)
_ENTRIES = Table(
    "thermocline_commit_entries",
    _TABLES,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("catalog", String(255), nullable=False),
    Column("table_name", String(511), nullable=False),
    Column("key", String(128), nullable=False),
    Column("branch", String(128), nullable=False),
    Column("state", String(8), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("content", LargeBinary),
    Column("snapshot", BigInteger),
    Column("error", Text),
    Column("settled", Double),
    # Part of the table, not a separate index: SQLite creates indexes one after the other, and a
    # process that finds the table starts to use it at once.
    UniqueConstraint("catalog", "table_name", "key", name="thermocline_commit_keys"),
    Index("thermocline_commit_waiting", "catalog", "table_name", "state", "number"),
    Index("thermocline_commit_settled", "catalog", "table_name", "settled"),
    sqlite_autoincrement=True,
)
_LEASES = Table(
    "thermocline_commit_leases",
    _TABLES,
    Column("catalog", String(255), primary_key=True),
    Column("table_name", String(511), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("expires", Double, nullable=False),
)


class LeaseLost(CommitConflict):
    """Another process holds the table's lease; nothing of this round landed."""


@dataclass(frozen=True)
class Lease:
    """The right to commit for a table. Each later holder has a greater fence."""

    table: str
    fence: int


@dataclass(frozen=True)
class EntryStatus:
    """An entry's status, and whether its table's lease is free."""

    state: str
    snapshot: int | None
    error: str | None
    lease_free: bool

    def failure(self) -> ThermoclineError:
        """Return the error that the entry failed with."""
        content = json.loads(self.error or "{}")
        kinds = {kind.code: kind for kind in (CommitConflict, NotFound)}
        return kinds.get(content["code"], Permanent)(
            content["cause"], content["next_step"], **content["details"]
        )


@dataclass(frozen=True)
class WaitingEntry:
    """An entry in the queue, not decoded yet: one that cannot be decoded fails alone."""

    number: int
    key: str
    table: str
    branch: str
    content: bytes

    def entry(self) -> CommitEntry:
        """Decode the entry."""
        return entry_codec.decode_entry(self.key, self.table, self.branch, self.content)


class Queue:
    """The entries of all tables of one catalog."""

    def __init__(self, catalog: SqlCatalog, lease_seconds: float = LEASE_SECONDS) -> None:
        self.lease_seconds = lease_seconds
        self._name = catalog.name
        self._engine = catalog.engine
        # A waiting writer polls often: a poll is one statement without a transaction.
        self._reader = catalog.engine.execution_options(isolation_level="AUTOCOMMIT")
        sqlite_here = self._engine.dialect.name == "sqlite"
        self.kind = "sqlite" if sqlite_here else "postgres"
        self._insert: Any = sqlite.insert if sqlite_here else postgresql.insert
        self._now: Any = literal_column(
            "((julianday('now') - 2440587.5) * 86400.0)"
            if sqlite_here
            else "(extract(epoch from clock_timestamp())::double precision)"
        )
        self._expiry = self._now + lease_seconds
        self._status_query = self._build_status_query()
        self._is_created = False
        self._tables_with_lease: set[str] = set()

    def put(self, entry: CommitEntry) -> None:
        """Enqueue an entry. A waiting or landed key stays as it is; a failed one waits again."""
        content = entry_codec.encode_entry(entry)
        values = {"state": WAITING, "branch": entry.branch, "size": len(content)}
        values |= {"content": content, "error": None, "settled": None}
        which = {"catalog": self._name, "table_name": entry.table, "key": entry.key}
        self._create_lease(entry.table)
        with self._writing() as connection:
            connection.execute(
                self._insert(_ENTRIES)
                .values(**which, **values)
                .on_conflict_do_update(
                    index_elements=list(which), set_=values, where=_ENTRIES.c.state == FAILED
                )
            )

    def status(self, table: str, key: str) -> EntryStatus | None:
        """Return an entry's status; None for a key that is unknown or forgotten."""
        with self._reading() as connection:
            row = connection.execute(self._status_query, {"of_table": table, "of_key": key}).first()
        return None if row is None else EntryStatus(row[0], row[1], row[2], bool(row[3]))

    def acquire_lease(self, table: str, owner: str) -> Lease | None:
        """Acquire a table's lease, unless another process holds it."""
        with self._writing() as connection:
            fence = connection.execute(
                update(_LEASES)
                .where(*self._table_filter(_LEASES, table), _LEASES.c.expires < self._now)
                .values(owner=owner, fence=_LEASES.c.fence + 1, expires=self._expiry)
                .returning(_LEASES.c.fence)
            ).scalar()
        return None if fence is None else Lease(table, fence)

    def renew_lease(self, lease: Lease) -> bool:
        """Renew a lease; return False when another process holds it now."""
        with self._writing() as connection:
            return self._set_expiry(connection, lease, self._expiry)

    def release_lease(self, lease: Lease) -> None:
        """Release a lease, and forget the keys that are old enough."""
        with self._writing() as connection:
            self._set_expiry(connection, lease, 0.0)
            old = _ENTRIES.c.settled < self._now - KEY_SECONDS
            connection.execute(
                delete(_ENTRIES).where(*self._table_filter(_ENTRIES, lease.table), old)
            )

    def next_batch(self, table: str) -> list[WaitingEntry]:
        """Return the entries for the next round: of one branch, in order, within the limits."""
        columns = _ENTRIES.c
        of_table = (*self._table_filter(_ENTRIES, table), columns.state == WAITING)
        with self._reading() as connection:
            sizes = connection.execute(
                select(columns.number, columns.branch, columns.size)
                .where(*of_table)
                .order_by(columns.number)
                .limit(BATCH_ENTRIES)
            ).all()
            rows = connection.execute(
                select(columns.number, columns.key, columns.branch, columns.content)
                .where(columns.number.in_(_limit_batch(sizes)), columns.state == WAITING)
                .order_by(columns.number)
            ).all()
        return [
            WaitingEntry(number, key, table, branch, content)
            for number, key, branch, content in rows
        ]

    def list_waiting(self) -> list[WaitingEntry]:
        """Return the waiting entries of all tables; a catalog without a queue has none."""
        if not inspect(self._engine).has_table(_ENTRIES.name):
            return []
        c = _ENTRIES.c
        wanted = select(c.number, c.key, c.table_name, c.branch, c.content)
        here = (c.catalog == self._name, c.state == WAITING)
        with self._reading() as connection:
            return [WaitingEntry(*row) for row in connection.execute(wanted.where(*here))]

    def replace_contents(
        self, session: Session, contents: Mapping[int, tuple[bytes, bytes]]
    ) -> None:
        """Replace the content of waiting entries: by number, the old content and the new one.

        Raise CommitConflict when an entry has landed meanwhile.
        """
        c = _ENTRIES.c
        for number, (old, new) in contents.items():
            same = (c.number == number, c.state == WAITING, c.content == old)
            changed = update(_ENTRIES).where(*same).values(content=new, size=len(new))
            found: Any = session.execute(changed)
            if found.rowcount != 1:
                raise CommitConflict("A waiting commit landed meanwhile.", "Run again.")

    def record_outcomes(
        self,
        session: Session,
        lease: Lease,
        landed: Sequence[int],
        snapshot: int | None,
        failed: Sequence[tuple[int, ThermoclineError]],
    ) -> None:
        """Mark entries as landed or failed, in the caller's transaction.

        Raise LeaseLost when the lease is not ours any more, or when another process has recorded
        the outcome of one of the entries.
        """
        if not self._set_expiry(session, lease, self._expiry):
            raise LeaseLost(
                f"Another process commits for {lease.table} now.", "Nothing is lost; wait for it."
            )
        done = {"state": DONE, "snapshot": snapshot}
        marks = [(list(landed), done)] if landed else []
        marks += [([n], {"state": FAILED, "error": _error_json(error)}) for n, error in failed]
        for numbers, values in marks:
            found: Any = session.execute(
                update(_ENTRIES)
                .where(_ENTRIES.c.number.in_(numbers), _ENTRIES.c.state == WAITING)
                .values(**values, content=None, settled=self._now)
            )
            if found.rowcount != len(numbers):
                raise LeaseLost(
                    "Another process recorded the outcome of an entry.", "Nothing is lost."
                )

    def record_failures(self, lease: Lease, failed: Sequence[tuple[int, ThermoclineError]]) -> None:
        """Mark entries as failed, where nothing is committed."""
        from sqlalchemy.orm import Session

        self._create_tables()
        with catalog_errors(self.kind), Session(self._engine) as session:
            self.record_outcomes(session, lease, (), None, failed)
            session.commit()

    def _set_expiry(self, connection: Any, lease: Lease, expires: Any) -> bool:
        """Set when our lease expires; return False when the lease is not ours any more."""
        updated = connection.execute(
            update(_LEASES)
            .where(*self._table_filter(_LEASES, lease.table), _LEASES.c.fence == lease.fence)
            .values(expires=expires)
        )
        return bool(updated.rowcount == 1)

    def _build_status_query(self) -> Select[Any]:
        """Build the query for the status of entry `of_key`: once, since it runs most often."""
        lease = and_(
            _LEASES.c.catalog == _ENTRIES.c.catalog,
            _LEASES.c.table_name == _ENTRIES.c.table_name,
        )
        free = func.coalesce(_LEASES.c.expires < self._now, true())
        return (
            select(_ENTRIES.c.state, _ENTRIES.c.snapshot, _ENTRIES.c.error, free)
            .select_from(_ENTRIES.outerjoin(_LEASES, lease))
            .where(
                *self._table_filter(_ENTRIES, bindparam("of_table")),
                _ENTRIES.c.key == bindparam("of_key"),
            )
        )

    def _table_filter(self, rows: Table, table: str | BindParameter[str]) -> tuple[Any, ...]:
        return rows.c.catalog == self._name, rows.c.table_name == table

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        self._create_tables()
        with catalog_errors(self.kind), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        self._create_tables()
        with catalog_errors(self.kind), self._engine.begin() as connection:
            yield connection

    def _create_lease(self, table: str) -> None:
        """Create a table's lease, in a transaction of its own: leases are locked before entries."""
        if table in self._tables_with_lease:
            return
        lease = {"catalog": self._name, "table_name": table, "owner": "", "fence": 0}
        with self._writing() as connection:
            connection.execute(
                self._insert(_LEASES).values(**lease, expires=0.0).on_conflict_do_nothing()
            )
        self._tables_with_lease.add(table)

    def _create_tables(self) -> None:
        """Create the tables that are missing. Several processes may do so at once."""
        if self._is_created:
            return
        with catalog_errors(self.kind):
            version = retry_table_creation()(self._read_version)
        if version != _VERSION:
            raise Permanent(
                f"The catalog's queue of commits is of version {version}, not {_VERSION}.",
                "Use the same version of Thermocline wherever this catalog is written to.",
            )
        self._is_created = True

    def _read_version(self) -> int:
        _TABLES.create_all(self._engine)
        with self._engine.begin() as connection:
            connection.execute(
                self._insert(_VERSIONS)
                .values(part=_PART, version=_VERSION)
                .on_conflict_do_nothing()
            )
            found = select(_VERSIONS.c.version).where(_VERSIONS.c.part == _PART)
            return int(connection.execute(found).scalar_one())


def _limit_batch(sizes: Sequence[Any]) -> list[int]:
    """Choose the entries of the first entry's branch, up to the limit of a round."""
    chosen: list[int] = []
    room = BATCH_BYTES
    for number, branch, size in sizes:
        if branch != sizes[0].branch:
            continue
        room -= size
        if chosen and room < 0:
            break
        chosen.append(number)
    return chosen


def _error_json(error: ThermoclineError) -> str:
    return json.dumps(error.as_dict()["error"], default=str)

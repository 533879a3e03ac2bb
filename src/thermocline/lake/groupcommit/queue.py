"""The queue and the leases, in the catalog's own database: SQLite or PostgreSQL.

Times are the database's, so that clocks of several machines need not agree. Every transaction that
writes begins with a write: SQLite then waits for its turn instead of failing. And each takes a
lease before it takes entries, so that no two wait for each other.
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
from thermocline.lake.retries import retry_creation

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.orm import Session

LEASE_SECONDS = 2.0
"""Seconds without a sign of life after which a leaseholder is replaced."""
KEY_SECONDS = 7 * 86_400.0
"""Seconds for which a key is remembered after it landed or failed."""
BATCH_ENTRIES = 500
"""Entries in one round at most."""
BATCH_BYTES = 16 << 20
"""Bytes of entries in one round at most; one entry may be larger."""

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
    # Part of the table, not an index of its own: SQLite makes those one after the other, and
    # whoever finds the table there goes on at once.
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
    """Somebody else commits for the table now; nothing of ours landed."""


@dataclass(frozen=True)
class Lease:
    """The right to commit for a table. Whoever has it next has a greater fence."""

    table: str
    fence: int


@dataclass(frozen=True)
class EntryStatus:
    """How an entry stands, and whether its table's lease can be had."""

    state: str
    snapshot: int | None
    error: str | None
    lease_free: bool

    def failure(self) -> ThermoclineError:
        """The error that the entry failed with."""
        said = json.loads(self.error or "{}")
        kinds = {kind.code: kind for kind in (CommitConflict, NotFound)}
        return kinds.get(said["code"], Permanent)(
            said["cause"], said["next_step"], **said["details"]
        )


@dataclass(frozen=True)
class WaitingEntry:
    """An entry in the queue, not read yet: one that cannot be read is no other's trouble."""

    number: int
    key: str
    table: str
    branch: str
    content: bytes

    def entry(self) -> CommitEntry:
        """What was handed over."""
        return entry_codec.decode_entry(self.key, self.table, self.branch, self.content)


class Queue:
    """The entries of all tables of one catalog."""

    def __init__(self, catalog: SqlCatalog, lease_seconds: float = LEASE_SECONDS) -> None:
        self.lease_seconds = lease_seconds
        self._name = catalog.name
        self._engine = catalog.engine
        # Who waits looks often: a look is one statement, without a transaction around it.
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
        self._standing = self._statuses()
        self._made = False
        self._leases: set[str] = set()

    def put(self, entry: CommitEntry) -> None:
        """Keep an entry. A key that waits or landed stays as it is; one that failed waits again."""
        content = entry_codec.encode_entry(entry)
        values = {"state": WAITING, "branch": entry.branch, "size": len(content)}
        values |= {"content": content, "error": None, "settled": None}
        which = {"catalog": self._name, "table_name": entry.table, "key": entry.key}
        self._make_lease(entry.table)
        with self._writing() as connection:
            connection.execute(
                self._insert(_ENTRIES)
                .values(**which, **values)
                .on_conflict_do_update(
                    index_elements=list(which), set_=values, where=_ENTRIES.c.state == FAILED
                )
            )

    def status(self, table: str, key: str) -> EntryStatus | None:
        """How an entry stands; None for a key that is not known, or not any more."""
        with self._reading() as connection:
            row = connection.execute(self._standing, {"of_table": table, "of_key": key}).first()
        return None if row is None else EntryStatus(row[0], row[1], row[2], bool(row[3]))

    def lease(self, table: str, owner: str) -> Lease | None:
        """Become the one that commits for a table, unless somebody is."""
        with self._writing() as connection:
            fence = connection.execute(
                update(_LEASES)
                .where(*self._of(_LEASES, table), _LEASES.c.expires < self._now)
                .values(owner=owner, fence=_LEASES.c.fence + 1, expires=self._expiry)
                .returning(_LEASES.c.fence)
            ).scalar()
        return None if fence is None else Lease(table, fence)

    def renew(self, lease: Lease) -> bool:
        """Give a sign of life; False when the lease is somebody else's by now."""
        with self._writing() as connection:
            return self._hold(connection, lease, self._expiry)

    def release(self, lease: Lease) -> None:
        """Let the next one commit, and forget the keys that are old enough."""
        with self._writing() as connection:
            self._hold(connection, lease, 0.0)
            old = _ENTRIES.c.settled < self._now - KEY_SECONDS
            connection.execute(delete(_ENTRIES).where(*self._of(_ENTRIES, lease.table), old))

    def waiting(self, table: str) -> list[WaitingEntry]:
        """The entries of the next round at most: those of one branch, in order, within bounds."""
        columns = _ENTRIES.c
        of_table = (*self._of(_ENTRIES, table), columns.state == WAITING)
        with self._reading() as connection:
            heads = connection.execute(
                select(columns.number, columns.branch, columns.size)
                .where(*of_table)
                .order_by(columns.number)
                .limit(BATCH_ENTRIES)
            ).all()
            rows = connection.execute(
                select(columns.number, columns.key, columns.branch, columns.content)
                .where(columns.number.in_(_limit_batch(heads)), columns.state == WAITING)
                .order_by(columns.number)
            ).all()
        return [
            WaitingEntry(number, key, table, branch, content)
            for number, key, branch, content in rows
        ]

    def all_waiting(self) -> list[WaitingEntry]:
        """The entries of all tables that have not landed; a catalog without a queue has none."""
        if not inspect(self._engine).has_table(_ENTRIES.name):
            return []
        c = _ENTRIES.c
        wanted = select(c.number, c.key, c.table_name, c.branch, c.content)
        here = (c.catalog == self._name, c.state == WAITING)
        with self._reading() as connection:
            return [WaitingEntry(*row) for row in connection.execute(wanted.where(*here))]

    def readdress(self, session: Session, contents: Mapping[int, tuple[bytes, bytes]]) -> None:
        """Give waiting entries, by number, another content in the place of the one they have.

        Raises CommitConflict when one has landed meanwhile.
        """
        c = _ENTRIES.c
        for number, (old, new) in contents.items():
            same = (c.number == number, c.state == WAITING, c.content == old)
            changed = update(_ENTRIES).where(*same).values(content=new, size=len(new))
            found: Any = session.execute(changed)
            if found.rowcount != 1:
                raise CommitConflict("A waiting commit landed meanwhile.", "Run again.")

    def settle(
        self,
        session: Session,
        lease: Lease,
        landed: Sequence[int],
        snapshot: int | None,
        failed: Sequence[tuple[int, ThermoclineError]],
    ) -> None:
        """Mark entries in a transaction of the caller's, provided that the lease is ours.

        Raises LeaseLost when it is not, or when somebody has settled one of the entries.
        """
        if not self._hold(session, lease, self._expiry):
            raise LeaseLost(
                f"Somebody else commits for {lease.table} now.", "Nothing is lost; wait for it."
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
                raise LeaseLost("An entry was settled by somebody else.", "Nothing is lost.")

    def settle_alone(self, lease: Lease, failed: Sequence[tuple[int, ThermoclineError]]) -> None:
        """The same where nothing is to be committed."""
        from sqlalchemy.orm import Session

        self._make()
        with catalog_errors(self.kind), Session(self._engine) as session:
            self.settle(session, lease, (), None, failed)
            session.commit()

    def _hold(self, connection: Any, lease: Lease, expires: Any) -> bool:
        held = connection.execute(
            update(_LEASES)
            .where(*self._of(_LEASES, lease.table), _LEASES.c.fence == lease.fence)
            .values(expires=expires)
        )
        return bool(held.rowcount == 1)

    def _statuses(self) -> Select[Any]:
        """How the entry `of_key` stands: made once, since it is what is asked most often."""
        lease = and_(
            _LEASES.c.catalog == _ENTRIES.c.catalog,
            _LEASES.c.table_name == _ENTRIES.c.table_name,
        )
        free = func.coalesce(_LEASES.c.expires < self._now, true())
        return (
            select(_ENTRIES.c.state, _ENTRIES.c.snapshot, _ENTRIES.c.error, free)
            .select_from(_ENTRIES.outerjoin(_LEASES, lease))
            .where(
                *self._of(_ENTRIES, bindparam("of_table")), _ENTRIES.c.key == bindparam("of_key")
            )
        )

    def _of(self, rows: Table, table: str | BindParameter[str]) -> tuple[Any, ...]:
        return rows.c.catalog == self._name, rows.c.table_name == table

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        self._make()
        with catalog_errors(self.kind), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        self._make()
        with catalog_errors(self.kind), self._engine.begin() as connection:
            yield connection

    def _make_lease(self, table: str) -> None:
        """Have a lease to be had. By itself: a transaction takes a lease before any entry."""
        if table in self._leases:
            return
        lease = {"catalog": self._name, "table_name": table, "owner": "", "fence": 0}
        with self._writing() as connection:
            connection.execute(
                self._insert(_LEASES).values(**lease, expires=0.0).on_conflict_do_nothing()
            )
        self._leases.add(table)

    def _make(self) -> None:
        """Make the tables that are not there yet. Several processes may do it at once."""
        if self._made:
            return
        with catalog_errors(self.kind):
            version = retry_creation()(self._version)
        if version != _VERSION:
            raise Permanent(
                f"The catalog's queue of commits is of version {version}, not {_VERSION}.",
                "Use the same version of Thermocline wherever this catalog is written to.",
            )
        self._made = True

    def _version(self) -> int:
        _TABLES.create_all(self._engine)
        with self._engine.begin() as connection:
            connection.execute(
                self._insert(_VERSIONS)
                .values(part=_PART, version=_VERSION)
                .on_conflict_do_nothing()
            )
            found = select(_VERSIONS.c.version).where(_VERSIONS.c.part == _PART)
            return int(connection.execute(found).scalar_one())


def _limit_batch(heads: Sequence[Any]) -> list[int]:
    """Entries of the first one's branch, as many as a round may hold."""
    chosen: list[int] = []
    room = BATCH_BYTES
    for number, branch, size in heads:
        if branch != heads[0].branch:
            continue
        room -= size
        if chosen and room < 0:
            break
        chosen.append(number)
    return chosen


def _error_json(error: ThermoclineError) -> str:
    return json.dumps(error.as_dict()["error"], default=str)

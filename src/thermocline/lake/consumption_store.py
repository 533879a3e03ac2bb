"""The consumption store: what tables have consumed, as rows in the catalog's database.

The transaction that moves a table's pointer also writes its rows, so rows and table contents cannot
differ. Each row names the snapshot of its commit, and counts for refs with that snapshot in their
ancestry; so a rollback changes no row. When a snapshot expires, its rows move to an anchor that is
bound to its descendants (`consumption.RowMoves`). A REST catalog gives us no database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    MetaData,
    String,
    Table,
    Text,
    delete,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from thermocline.lake.catalog import catalog_errors
from thermocline.lake.consumption import GAP, ConsumptionRows, LandedFile, RowMoves
from thermocline.lake.retries import retry_table_creation

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.orm import Session

_TABLES = MetaData()
_LANDED = Table(
    "thermocline_landed",
    _TABLES,
    Column("table_uuid", String(36), primary_key=True),
    Column("content", String(64), primary_key=True),
    Column("snapshot", BigInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("modified_ns", BigInteger, nullable=False),
    Index("thermocline_landed_names", "table_uuid", "name"),
    Index("thermocline_landed_snapshots", "table_uuid", "snapshot"),
)
_POSITIONS = Table(
    "thermocline_positions",
    _TABLES,
    Column("table_uuid", String(36), primary_key=True),
    Column("source", String(255), primary_key=True),
    Column("stream", String(64), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("snapshot", BigInteger, nullable=False),
    Column("position", Text, nullable=False),
    Index("thermocline_positions_snapshots", "table_uuid", "snapshot"),
)
_CONSUMERS = Table(
    "thermocline_consumers",
    _TABLES,
    Column("source", String(511), primary_key=True),
    Column("consumer", String(767), primary_key=True),
    Column("snapshot", BigInteger, nullable=False),
)
_CARRIED = Table(
    "thermocline_carried",
    _TABLES,
    Column("table_uuid", String(36), primary_key=True),
    Column("anchor", BigInteger, primary_key=True),
    Column("snapshot", BigInteger, primary_key=True),
)
_MIGRATED_MARK = 0
"""In place of an anchor: the files in the table's snapshot summaries were migrated to rows."""
_NO_SNAPSHOT = 0
"""In place of a position's snapshot: it expired, but a bookmark still names its batch."""
_CHUNK_VALUES = 500


class ConsumptionStore:
    """The consumption rows of all tables of one catalog."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self._engine = catalog.engine
        # Reads need no transaction.
        self._reader = catalog.engine.execution_options(isolation_level="AUTOCOMMIT")
        sqlite_here = self._engine.dialect.name == "sqlite"
        self._kind = "sqlite" if sqlite_here else "postgres"
        self._insert: Any = sqlite.insert if sqlite_here else postgresql.insert
        self._is_created = False
        self.has_registered_consumers = False
        """Whether this process knows that every consumer of the lake is registered."""

    def write(self, session: Session, rows: ConsumptionRows) -> None:
        """Write rows in the transaction that moves the pointers. The tables must exist."""
        for uuid, snapshot, consumed in rows.consumed:
            self._add(session, _LANDED, (_landed_row(uuid, snapshot, f) for f in consumed.files))
            self._add(session, _POSITIONS, (
                {"table_uuid": uuid, "source": each.source, "stream": each.stream,
                 "sequence": each.sequence, "snapshot": snapshot, "position": each.position}
                for each in consumed.positions
            ))  # fmt: skip
        for source, consumer, snapshot in rows.consumers:
            insert = self._insert(_CONSUMERS).values(
                source=source, consumer=consumer, snapshot=snapshot
            )
            session.execute(
                insert.on_conflict_do_update(
                    index_elements=["source", "consumer"], set_={"snapshot": snapshot}
                )
            )
        for moves in rows.moves:
            self._move(session, moves)

    def find_files_by_name(
        self, uuid: str, names: Iterable[str]
    ) -> Iterator[tuple[LandedFile, int]]:
        """Find the landed files with these names, each with its snapshot."""
        return self._files(uuid, _LANDED.c.name, names)

    def find_files_by_content(
        self, uuid: str, hashes: Iterable[str]
    ) -> Iterator[tuple[LandedFile, int]]:
        """Find the landed files with these content hashes, each with its snapshot."""
        return self._files(uuid, _LANDED.c.content, hashes)

    def find_gap(self, uuid: str, ancestry: Iterable[int]) -> int | None:
        """Return until when it is not known what an ancestry consumed; None if all is known."""
        found = list(self.find_files_by_name(uuid, [GAP]))
        if not found:
            return None
        counting = self.expand_ancestry(uuid, ancestry)
        ends = (gap.modified_ns for gap, snapshot in found if snapshot in counting)
        return max(ends, default=None)

    def position(self, uuid: str, source: str, stream: str, sequence: int) -> str | None:
        """Return the position that a batch of a stream has read a source up to."""
        columns = _POSITIONS.c
        query = select(columns.position).where(
            columns.table_uuid == uuid, columns.source == source,
            columns.stream == stream, columns.sequence == sequence,
        )  # fmt: skip
        with self._reading() as connection:
            return connection.execute(query).scalar()  # type: ignore[no-any-return]

    def consumer_snapshots(self, source: str) -> list[int]:
        """Return the snapshots that the consumers of a table continue from."""
        with self._reading() as connection:
            found = select(_CONSUMERS.c.snapshot).where(_CONSUMERS.c.source == source)
            return list(connection.execute(found).scalars())

    def register(self, consumers: Iterable[tuple[str, str, int]]) -> None:
        """Register new consumers (source, name, snapshot), so that their snapshots are kept."""
        from sqlalchemy.orm import Session

        self.create_tables()
        names = ("source", "consumer", "snapshot")
        with catalog_errors(self._kind), Session(self._engine) as session:
            self._add(session, _CONSUMERS, (dict(zip(names, c, strict=True)) for c in consumers))
            session.commit()

    def anchors(self, uuid: str) -> dict[int, frozenset[int]]:
        """Return the snapshots that each anchor of a table is bound to."""
        c = _CARRIED.c
        found: dict[int, set[int]] = {}
        with self._reading() as connection:
            query = select(c.anchor, c.snapshot).where(c.table_uuid == uuid)
            for anchor, snapshot in connection.execute(query):
                found.setdefault(anchor, set()).add(snapshot)
        return {
            anchor: frozenset(bound) for anchor, bound in found.items() if anchor != _MIGRATED_MARK
        }

    def bound_snapshots(self, uuid: str) -> frozenset[int]:
        """Return the snapshots that rows of expired ancestors are bound to."""
        return frozenset().union(*self.anchors(uuid).values())

    def expand_ancestry(self, uuid: str, ancestry: Iterable[int]) -> frozenset[int]:
        """Return the ids whose rows count for an ancestry: its snapshots, and their anchors."""
        chain = frozenset(ancestry)
        return chain | {anchor for anchor, bound in self.anchors(uuid).items() if bound & chain}

    def is_migrated(self, uuid: str) -> bool:
        """Whether the files in the table's snapshot summaries were migrated to rows."""
        c = _CARRIED.c
        query = select(c.anchor).where(c.table_uuid == uuid, c.anchor == _MIGRATED_MARK)
        with self._reading() as connection:
            return connection.execute(query).first() is not None

    def migrate(self, uuid: str, files: Iterable[tuple[LandedFile, int]]) -> None:
        """Write rows for the files in a table's snapshot summaries. Idempotent."""
        from sqlalchemy.orm import Session

        self.create_tables()
        with catalog_errors(self._kind), Session(self._engine) as session:
            self._add(
                session, _LANDED, (_landed_row(uuid, snapshot, file) for file, snapshot in files)
            )
            self._add(session, _CARRIED, [
                {"table_uuid": uuid, "anchor": _MIGRATED_MARK, "snapshot": _MIGRATED_MARK}
            ])  # fmt: skip
            session.commit()

    def create_tables(self) -> None:
        """Create the missing tables. Several processes may do so at once."""
        if self._is_created:
            return
        with catalog_errors(self._kind):
            retry_table_creation()(_TABLES.create_all, self._engine)
        self._is_created = True

    def _add(self, session: Session, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        listed = list(rows)
        if listed:
            session.execute(self._insert(table).on_conflict_do_nothing(), listed)

    def _move(self, session: Session, moves: RowMoves) -> None:
        """Move the rows of expiring snapshots to anchors; delete rows without a descendant."""
        uuid, c = moves.uuid, _LANDED.c
        names = ("content", "name", "size", "modified_ns")
        query = select(c.snapshot, *(c[name] for name in names)).where(c.table_uuid == uuid)
        for some in _split_chunks(list(moves.anchors)):
            self._add(session, _LANDED, (
                {"table_uuid": uuid, "snapshot": moves.anchors[row[0]],
                 **dict(zip(names, row[1:], strict=True))}
                for row in session.execute(query.where(c.snapshot.in_(some))).all()
            ))  # fmt: skip
        dead = {anchor for anchor, bound in moves.bindings.items() if not bound}
        for some in _split_chunks([*moves.expired, *dead]):
            session.execute(delete(_LANDED).where(c.table_uuid == uuid, c.snapshot.in_(some)))
        self._forget_positions(session, moves)
        bound = _CARRIED.c
        session.execute(
            delete(_CARRIED).where(bound.table_uuid == uuid, bound.anchor != _MIGRATED_MARK)
        )
        self._add(session, _CARRIED, (
            {"table_uuid": uuid, "anchor": anchor, "snapshot": snapshot}
            for anchor, snapshots in moves.bindings.items()
            for snapshot in snapshots
        ))  # fmt: skip

    def _forget_positions(self, session: Session, moves: RowMoves) -> None:
        """Delete positions that no bookmark names; others stay without a snapshot."""
        c = _POSITIONS.c
        query = select(c.source, c.stream, c.sequence).where(c.table_uuid == moves.uuid)
        # A kept position of an expired snapshot is checked again each time.
        for some in _split_chunks([*moves.expired, _NO_SNAPSHOT]):
            here = c.snapshot.in_(some)
            found: Any = session.execute(query.where(here)).all()
            for source, stream, sequence in found:
                row = (
                    c.table_uuid == moves.uuid, c.source == source, c.stream == stream,
                    c.sequence == sequence,
                )  # fmt: skip
                if (source, stream, sequence) in moves.bookmarked:
                    session.execute(update(_POSITIONS).where(*row).values(snapshot=_NO_SNAPSHOT))
                else:
                    session.execute(delete(_POSITIONS).where(*row))

    def _files(
        self, uuid: str, column: Any, values: Iterable[str]
    ) -> Iterator[tuple[LandedFile, int]]:
        c = _LANDED.c
        query = select(c.content, c.name, c.size, c.modified_ns, c.snapshot)
        with self._reading() as connection:
            for some in _split_chunks(list(values)):
                rows = connection.execute(query.where(c.table_uuid == uuid, column.in_(some)))
                for content, name, size, modified_ns, snapshot in rows:
                    yield LandedFile(content, name, size, modified_ns), snapshot

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        self.create_tables()
        with catalog_errors(self._kind), self._reader.connect() as connection:
            yield connection


def _landed_row(uuid: str, snapshot: int, file: LandedFile) -> dict[str, Any]:
    return {
        "table_uuid": uuid, "content": file.content, "snapshot": snapshot, "name": file.name,
        "size": file.size, "modified_ns": file.modified_ns,
    }  # fmt: skip


def _split_chunks(values: Collection[Any]) -> Iterator[list[Any]]:
    listed = list(values)
    for start in range(0, len(listed), _CHUNK_VALUES):
        yield listed[start : start + _CHUNK_VALUES]

"""Queries of the source database: its log, slots, publication and tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.errors import Permanent, Transient
from thermocline.ingest.postgres.debezium_types import SourceColumn
from thermocline.ingest.postgres.source_catalog import quote_name
from thermocline.ingest.secret import reveal
from thermocline.telemetry import one_line, safe_first_line

if TYPE_CHECKING:
    from thermocline.ingest.postgres.source import PostgresSource

MESSAGES = "thermocline"
"""The prefix of the marker messages that are written to the source's log."""


@dataclass(frozen=True)
class LogStatus:
    """The source's log: its server's id, its end and its level."""

    system: str
    end: int
    level: str


@dataclass(frozen=True)
class Slot:
    """A replication slot.

    `confirmed` is the position from which the source sends. `is_lost`: the source has removed the
    log after it.
    """

    confirmed: int
    restart: int
    is_active: bool
    is_lost: bool


@dataclass(frozen=True)
class CapturedTable:
    """A captured table: its key, and whether deletes include the whole row."""

    name: str
    key: tuple[str, ...]
    whole_deletes: bool


class Database:
    """The source database. Every call opens its own short connection."""

    def __init__(self, source: PostgresSource) -> None:
        self._source = source

    def read_log_status(self) -> LogStatus:
        """Return the identity, the current end and the level of the log."""
        with self._cursor() as cursor:
            cursor.execute(
                "select (select system_identifier from pg_control_system())::text, "
                "(pg_current_wal_lsn() - '0/0')::bigint, current_setting('wal_level')"
            )
            return LogStatus(*cursor.fetchone())

    def find_slot(self, name: str) -> Slot | None:
        """Return the slot of that name, or None."""
        with self._cursor() as cursor:
            cursor.execute(
                "select (confirmed_flush_lsn - '0/0')::bigint, (restart_lsn - '0/0')::bigint, "
                "active, coalesce(wal_status = 'lost', false) "
                "from pg_replication_slots where slot_name = %s",
                (name,),
            )
            row = cursor.fetchone()
        if row is None:
            return None
        confirmed, restart, is_active, is_lost = row
        return Slot(confirmed or 0, restart or 0, is_active, is_lost or restart is None)

    def drop_slot(self, name: str) -> None:
        """Drop the slot."""
        with self._cursor() as cursor:
            cursor.execute("select pg_drop_replication_slot(%s)", (name,))

    def advance_slot(self, name: str, lsn: int) -> None:
        """Advance the slot, so that only transactions that end after `lsn` are sent."""
        with self._cursor() as cursor:
            cursor.execute(
                "select pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s)", (name, lsn)
            )

    def mark_log(self) -> int:
        """Write a marker to the source's log and return its position.

        When the marker arrives, everything before it has arrived.
        """
        with self._cursor() as cursor:
            cursor.execute(
                "select (pg_logical_emit_message(true, %s, '') - '0/0')::bigint", (MESSAGES,)
            )
            return int(cursor.fetchone()[0])

    def publish(self, publication: str, tables: tuple[str, ...]) -> None:
        """Create or alter the publication so that it has exactly these tables."""
        with self._cursor() as cursor:
            cursor.execute(
                "select schemaname || '.' || tablename from pg_publication_tables "
                "where pubname = %s",
                (publication,),
            )
            published = {row[0] for row in cursor.fetchall()}
            if published == set(tables):
                return
            cursor.execute("select 1 from pg_publication where pubname = %s", (publication,))
            listed = ", ".join(quote_name(*table.split(".", 1)) for table in tables)
            name = quote_name(publication)
            if cursor.fetchone() is None:
                cursor.execute(
                    f"create publication {name} for table {listed} "
                    "with (publish_via_partition_root = true)"
                )
            else:
                cursor.execute(f"alter publication {name} set table {listed}")

    def describe_tables(self, tables: tuple[str, ...]) -> list[CapturedTable]:
        """Return the tables as they are now. Raise Permanent if one does not exist."""
        found = []
        with self._cursor() as cursor:
            for table in tables:
                cursor.execute(_TABLE_IDENTITY, table.split(".", 1))
                row = cursor.fetchone()
                if row is None:
                    raise Permanent(
                        f"The source has no table {one_line(table)}.",
                        "Name it as schema.table, and grant the user access to it.",
                    )
                found.append(CapturedTable(table, tuple(row[1] or ()), row[0] == "f"))
        return found

    def list_columns(self, tables: tuple[str, ...]) -> list[SourceColumn]:
        """Return the columns of tables, and whether the replica identity has each of them."""
        found = []
        with self._cursor() as cursor:
            for table in tables:
                cursor.execute(_COLUMNS, table.split(".", 1))
                found += [SourceColumn(table, *row) for row in cursor.fetchall()]
        return found

    def list_default_columns(self, tables: tuple[str, ...]) -> dict[str, dict[int, str]]:
        """Return the columns of each table by number, which does not change with a rename.

        The value is the column's name if rows may have a value that no change wrote, else "".
        """
        found: dict[str, dict[int, str]] = {}
        with self._cursor() as cursor:
            for table in tables:
                cursor.execute(_DEFAULTS, table.split(".", 1))
                found[table] = dict(cursor.fetchall())
        return found

    def list_unpublished_columns(
        self, publication: str, tables: tuple[str, ...]
    ) -> list[tuple[str, str]]:
        """Return the columns that the publication leaves out, such as generated ones."""
        found = []
        with self._cursor() as cursor:
            for table in tables:
                old = cursor.connection.server_version < 150_000
                one = "a.attgenerated = ''" if old else "a.attname = any(p.attnames)"
                cursor.execute(_UNPUBLISHED.format(one=one), [*table.split(".", 1), publication])
                found += [(table, row[0]) for row in cursor.fetchall()]
        return found

    def acquire_lock(self, name: str) -> Any:
        """Return a connection that holds the named lock until it is closed; None if it is taken.

        The source releases the lock when the process that holds it dies.
        """
        import psycopg2

        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        with self._translate_errors():
            connection = psycopg2.connect(**self.connection_options())
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("select pg_try_advisory_lock(%s)", (number,))
                if cursor.fetchone()[0]:
                    return connection
            connection.close()
        return None

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        import psycopg2

        with (
            self._translate_errors(),
            closing(psycopg2.connect(**self.connection_options())) as connection,
        ):
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        import psycopg2

        try:
            yield
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            raise Transient(
                f"{self._source.host}:{self._source.port} cannot be reached: "
                f"{safe_first_line(error)}",
                "Check that it runs, and host, port, user and password of the source.",
            ) from error
        except psycopg2.Error as error:
            raise Permanent(
                f"{self._source.host}:{self._source.port} refuses: {safe_first_line(error)}",
                "Let the user replicate and read the tables, or have a DBA create slot and "
                "publication.",
            ) from error

    def connection_options(self) -> dict[str, Any]:
        """Return the connection parameters of the client library. They contain the password."""
        source, tls = self._source, self._source.tls
        parameters = {
            "host": source.host, "port": source.port, "dbname": source.database,
            "user": source.user, "sslmode": tls.mode, "sslrootcert": tls.root_cert,
            "sslcert": tls.cert, "sslkey": tls.key,
            "connect_timeout": 10, "application_name": "thermocline",
        }  # fmt: skip
        if source.password is not None:
            parameters["password"] = reveal(source.password)
        return {key: value for key, value in parameters.items() if value != ""}


_TABLE_IDENTITY = """
select c.relreplident, (
    select array_agg(a.attname::text order by a.attnum) from pg_index i
    join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey)
    where i.indrelid = c.oid and i.indisprimary)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')
"""


_FROM_TABLE = """
from pg_attribute a join pg_class c on c.oid = a.attrelid
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped
"""
_DEFAULTS = (
    "select a.attnum, case when a.atthasdef or a.atthasmissing or a.attidentity <> '' "
    "then a.attname::text else '' end" + _FROM_TABLE
)
# A partition's changes carry its own name, unless the publication uses the root's name: then the
# root is not in the publication, and neither are its columns.
_UNPUBLISHED = f"""
select a.attname::text {_FROM_TABLE} and not exists (
    select 1 from pg_publication_tables p where p.pubname = %s
    and p.schemaname = n.nspname and p.tablename = c.relname and {{one}})
"""
# A domain resolves to its base type, and an array to the type of its elements.
_COLUMNS = """
with recursive base as (
    select a.attname::text as name, a.attnum, a.atttypid as type, a.atttypmod as length, c.oid
    from pg_attribute a join pg_class c on c.oid = a.attrelid
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped
    union all
    select b.name, b.attnum, t.typbasetype, t.typtypmod, b.oid
    from base b join pg_type t on t.oid = b.type where t.typtype = 'd'
)
select b.name,
    case when e.oid is not null then e.typname || '[]' else t.typname::text end,
    t.typtype = 'e', b.length,
    c.relreplident = 'f' or exists (
        select 1 from pg_index i where i.indrelid = c.oid and b.attnum = any(i.indkey)
        and ((c.relreplident = 'd' and i.indisprimary)
            or (c.relreplident = 'i' and i.indisreplident)))
from base b join pg_type t on t.oid = b.type join pg_class c on c.oid = b.oid
left join pg_type e on e.oid = t.typelem and t.typcategory = 'A' and t.typlen = -1
where t.typtype <> 'd' order by b.attnum
"""

"""What the source database itself says: its log, its slot, its publication, its tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.errors import Permanent, Transient
from thermocline.ingest.postgres.debezium_types import SourceColumn
from thermocline.ingest.secret import reveal
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from thermocline.ingest.postgres.source import Postgres

MESSAGES = "thermocline"
"""The prefix of the messages that we write to the source's log, to see them come by."""


@dataclass(frozen=True)
class Log:
    """The source's log: which server's it is, and how far it goes."""

    system: str
    end: int
    level: str


@dataclass(frozen=True)
class Slot:
    """A replication slot. `confirmed` is where the source would send from, `lost` whether the
    source has thrown away what comes after that."""

    confirmed: int
    restart: int
    active: bool
    lost: bool


@dataclass(frozen=True)
class Captured:
    """A table that is captured: its key, and whether a deleted row is sent whole."""

    name: str
    key: tuple[str, ...]
    whole_deletes: bool


class Database:
    """The source database. Every call is a connection of its own, and short."""

    def __init__(self, reach: Postgres) -> None:
        self._reach = reach

    def log(self) -> Log:
        """Which log the source writes, and where it ends now."""
        with self._cursor() as cursor:
            cursor.execute(
                "select (select system_identifier from pg_control_system())::text, "
                "(pg_current_wal_lsn() - '0/0')::bigint, current_setting('wal_level')"
            )
            return Log(*cursor.fetchone())

    def slot(self, name: str) -> Slot | None:
        """The slot of that name, if there is one."""
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
        confirmed, restart, active, lost = row
        return Slot(confirmed or 0, restart or 0, active, lost or restart is None)

    def drop_slot(self, name: str) -> None:
        """Let the source forget the slot."""
        with self._cursor() as cursor:
            cursor.execute("select pg_drop_replication_slot(%s)", (name,))

    def advance_slot(self, name: str, lsn: int) -> None:
        """Have the source send only transactions whose commit ends after `lsn`."""
        with self._cursor() as cursor:
            cursor.execute(
                "select pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s)", (name, lsn)
            )

    def mark_log(self) -> int:
        """Write a message to the source's log, and say where: what was before it has come when it
        has come."""
        with self._cursor() as cursor:
            cursor.execute(
                "select (pg_logical_emit_message(true, %s, '') - '0/0')::bigint", (MESSAGES,)
            )
            return int(cursor.fetchone()[0])

    def publish(self, publication: str, tables: tuple[str, ...]) -> None:
        """Have a publication of exactly these tables."""
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
            listed = ", ".join(_quoted(*table.split(".", 1)) for table in tables)
            name = _quoted(publication)
            if cursor.fetchone() is None:
                cursor.execute(
                    f"create publication {name} for table {listed} "
                    "with (publish_via_partition_root = true)"
                )
            else:
                cursor.execute(f"alter publication {name} set table {listed}")

    def captured(self, tables: tuple[str, ...]) -> list[Captured]:
        """The tables as the source has them now."""
        found = []
        with self._cursor() as cursor:
            for table in tables:
                cursor.execute(_TABLE, table.split(".", 1))
                row = cursor.fetchone()
                if row is None:
                    raise Permanent(
                        f"The source has no table {one_line(table)}.",
                        "Name it as schema.table, and let the user see it.",
                    )
                found.append(Captured(table, tuple(row[1] or ()), row[0] == "f"))
        return found

    def columns(self, tables: tuple[str, ...]) -> list[SourceColumn]:
        """The columns of tables, and whether the replica identity has each of them."""
        found = []
        with self._cursor() as cursor:
            for table in tables:
                cursor.execute(_COLUMNS, table.split(".", 1))
                found += [SourceColumn(table, *row) for row in cursor.fetchall()]
        return found

    def defaults(self, tables: tuple[str, ...]) -> dict[str, dict[int, str]]:
        """The columns of each table by their number, which a column keeps when it is renamed.

        With its name where rows may have a value in it that no change gave them; else "".
        """
        found: dict[str, dict[int, str]] = {}
        with self._cursor() as cursor:
            for table in tables:
                cursor.execute(_DEFAULTS, table.split(".", 1))
                found[table] = dict(cursor.fetchall())
        return found

    def unpublished(self, publication: str, tables: tuple[str, ...]) -> list[tuple[str, str]]:
        """The columns of tables that the publication leaves out, as generated ones are."""
        found = []
        with self._cursor() as cursor:
            for table in tables:
                old = cursor.connection.server_version < 150_000
                one = "a.attgenerated = ''" if old else "a.attname = any(p.attnames)"
                cursor.execute(_UNPUBLISHED.format(one=one), [*table.split(".", 1), publication])
                found += [(table, row[0]) for row in cursor.fetchall()]
        return found

    def lock(self, name: str) -> Any:
        """A connection that holds the lock of that name until it is closed; None if another does.

        The source lets go of the lock by itself when the process that holds it dies.
        """
        import psycopg2

        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        with self._explained():
            connection = psycopg2.connect(**self.options())
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

        with self._explained(), closing(psycopg2.connect(**self.options())) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import psycopg2

        try:
            yield
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            raise Transient(
                f"{self._reach.host}:{self._reach.port} cannot be asked: {_said(error)}",
                "Check that it runs, and host, port, user and password of the source.",
            ) from error
        except psycopg2.Error as error:
            raise Permanent(
                f"{self._reach.host}:{self._reach.port} refuses: {_said(error)}",
                "Let the user replicate and read the tables, or have a DBA make slot and "
                "publication.",
            ) from error

    def options(self) -> dict[str, Any]:
        """How to connect, in the words of the client library. It holds the password."""
        reach, tls = self._reach, self._reach.tls
        options = {
            "host": reach.host, "port": reach.port, "dbname": reach.database, "user": reach.user,
            "sslmode": tls.mode, "sslrootcert": tls.root_cert, "sslcert": tls.cert,
            "sslkey": tls.key, "connect_timeout": 10, "application_name": "thermocline",
        }  # fmt: skip
        if reach.password is not None:
            options["password"] = reveal(reach.password)
        return {key: value for key, value in options.items() if value != ""}


_TABLE = """
select c.relreplident, (
    select array_agg(a.attname::text order by a.attnum) from pg_index i
    join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey)
    where i.indrelid = c.oid and i.indisprimary)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')
"""


_OF_TABLE = """
from pg_attribute a join pg_class c on c.oid = a.attrelid
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped
"""
_DEFAULTS = (
    "select a.attnum, case when a.atthasdef or a.atthasmissing or a.attidentity <> '' "
    "then a.attname::text else '' end" + _OF_TABLE
)
# A partition's changes come under its own name, unless the publication says the root's: then the
# root is not in it, and none of its columns is.
_UNPUBLISHED = f"""
select a.attname::text {_OF_TABLE} and not exists (
    select 1 from pg_publication_tables p where p.pubname = %s
    and p.schemaname = n.nspname and p.tablename = c.relname and {{one}})
"""
# A domain is described by the type under it, and an array by its elements' type.
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


def _quoted(*parts: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def _said(error: Exception) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return redact(one_line(text.strip()))[:300]

"""Send events as changes of a Postgres table, in transactions."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from thermocline.errors import Permanent, Transient
from thermocline.ingest.postgres.database import Database
from thermocline.telemetry import one_line, safe_first_line
from thermocline.torture.lanes.lane import MAX_OUTAGE_SECONDS
from thermocline.torture.workload import Events, State, Workload

if TYPE_CHECKING:
    from thermocline.ingest.postgres.source import PostgresSource

MAX_TRANSACTION_EVENTS = 3_000
ROLL_BACK_ONE_IN = 8
PAUSE_SECONDS = 0.2

_MAKE = """
create table {table} (key text primary key, event bigint not null, value bigint not null);
alter table {table} replica identity full;
create table {progress} (sent bigint not null);
insert into {progress} values (0);
"""
# An event that deletes first writes its number to the row, so that the delete reports it in the old
# row. A loop, because one statement cannot change a key twice; and on the server, because a round
# trip for each event would be slow.
_APPLY = """
create function pg_temp.apply(bigint[], text[], bigint[], boolean[]) returns void
language plpgsql as $$
declare e record;
begin
    for e in select * from unnest($1, $2, $3, $4) as e (event, key, value, deletes) loop
        insert into {table} values (e.key, e.event, e.value)
            on conflict (key) do update set event = excluded.event, value = excluded.value;
        if e.deletes then
            delete from {table} t where t.key = e.key;
        end if;
    end loop;
end $$
"""

_CALL = "select pg_temp.apply(%s::bigint[], %s::text[], %s::bigint[], %s::boolean[])"

T = TypeVar("T")


@dataclass
class PostgresLane:
    """A separate table in a database of the project's sources.

    Transactions have all sizes from one event to thousands, and some are rolled back first. Each
    writes to a progress table, so that after a broken connection it is known whether it committed.
    """

    workload: Workload
    name: str
    database: PostgresSource
    kind: str = "postgres"
    changes: bool = True
    _connection: Any = None

    def source(self) -> dict[str, Any]:
        """Return the table's settings, with the connection of the project's own source."""
        database = self.database
        tls = {"mode": database.tls.mode, "rootCert": database.tls.root_cert,
               "cert": database.tls.cert, "key": database.tls.key}  # fmt: skip
        settings = {
            "kind": "postgres", "host": database.host, "port": database.port,
            "database": database.database, "user": database.user,
            "password": database.password and dict(database.password),
            "tls": {key: value for key, value in tls.items() if value},
            "tables": [f"{self._schema}.{self.name}"],
        }  # fmt: skip
        return {key: value for key, value in settings.items() if value}

    def set_up(self, project: Path) -> None:
        """Create the table, and the progress table, which is not captured."""
        del project
        self._run(lambda cursor: cursor.execute(self._format(_MAKE)), retry_seconds=0)

    def send(self, events: Events) -> None:
        """Change the table, one transaction after the other."""
        for part in self._transactions(events):
            self._run(lambda cursor, part=part: self._commit(cursor, part))  # type: ignore[misc]

    def read_state(self) -> State | None:
        """Return the rows of the table."""

        def read(cursor: Any) -> State:
            cursor.execute(self._format("select key, event, value from {table}"))
            return {key: (event, value) for key, event, value in cursor.fetchall()}

        return self._run(read)

    def tear_down(self, *, keep: bool) -> None:
        """Drop publication and tables, and in any case the slot, which retains the server's log."""
        self._run(self._drop_slot)
        if not keep:
            self._run(self._drop_tables)
        self._disconnect()

    @property
    def _address(self) -> str:
        return f"{self.database.host}:{self.database.port}"

    @property
    def _schema(self) -> str:
        """The schema of the source's own table, where its user has rights."""
        return self.database.tables[0].partition(".")[0]

    @property
    def _reader(self) -> str:
        """The prefix of the names of the source's slot and publication."""
        return f"thermocline_{self.name}_"[:50]

    def _format(self, statement: str) -> str:
        schema = self._schema.replace('"', '""')
        table, progress = (f'"{schema}".{each}' for each in (self.name, f"{self.name}_progress"))
        return statement.format(table=table, progress=progress)

    def _transactions(self, events: Events) -> Iterator[Events]:
        """Yield transactions of log-uniform sizes, derived from the seed."""
        start = 0
        while start < len(events):
            rng = self._rng(int(events.number[start]))
            size = int(math.exp(rng.uniform(0, math.log(MAX_TRANSACTION_EVENTS))))
            yield events.part(start, start + size)
            start += size

    def _rng(self, number: int) -> random.Random:
        return random.Random(f"{self.workload.seed}/{number}")  # noqa: S311  no secret: repeatable

    def _commit(self, cursor: Any, part: Events) -> None:
        first, last = int(part.number[0]), int(part.number[-1])
        cursor.execute(self._format("select sent from {progress}"))
        if cursor.fetchone()[0] > last:
            return  # committed before: the connection broke after the commit
        columns = (
            part.number.tolist(), [f"k{key}" for key in part.key.tolist()], part.value.tolist(),
            part.deletes.tolist(),
        )  # fmt: skip
        arrays = ["{" + ",".join(map(str, column)) + "}" for column in columns]
        if self._rng(-1 - first).randrange(ROLL_BACK_ONE_IN) == 0:
            cursor.execute(_CALL, arrays)
            cursor.connection.rollback()
        cursor.execute(_CALL, arrays)
        cursor.execute(self._format("update {progress} set sent = %s"), (last + 1,))

    def _drop_slot(self, cursor: Any) -> None:
        cursor.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
            "where starts_with(slot_name, %s)",
            (self._reader,),
        )

    def _drop_tables(self, cursor: Any) -> None:
        cursor.execute(
            "select quote_ident(pubname) from pg_publication where starts_with(pubname, %s)",
            (self._reader,),
        )
        for (publication,) in cursor.fetchall():
            cursor.execute(f"drop publication {publication}")
        cursor.execute(self._format("drop table if exists {table}, {progress}"))

    def _run(self, work: Callable[[Any], T], retry_seconds: float = MAX_OUTAGE_SECONDS) -> T:
        """Run work in a transaction, with retries while the server is unreachable."""
        import psycopg2

        deadline = time.monotonic() + retry_seconds
        while True:
            try:
                with self._connect(), self._connection.cursor() as cursor:
                    return work(cursor)
            except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
                self._disconnect()
                if time.monotonic() > deadline:
                    raise Transient(
                        f"{self._address} does not answer: {safe_first_line(error)}",
                        "Look at the server; the trial cannot verify events that were never sent.",
                    ) from error
                time.sleep(PAUSE_SECONDS)
            except psycopg2.Error as error:
                raise Permanent(
                    f"{self._address} refuses: {safe_first_line(error)}",
                    f"Let {one_line(self.database.user)} create tables in the source's schema.",
                ) from error

    def _connect(self) -> Any:
        """Return the connection, whose `with` block is a durable transaction."""
        import psycopg2

        if self._connection is None:
            database = Database(self.database).connection_options()
            self._connection = psycopg2.connect(**database, options="-c synchronous_commit=on")
            with self._connection, self._connection.cursor() as cursor:
                cursor.execute(self._format(_APPLY))
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

"""Events as changes of a Postgres table, in transactions."""

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
from thermocline.telemetry import one_line, redact
from thermocline.torture.lanes.lane import PATIENCE_SECONDS
from thermocline.torture.workload import Events, State, Workload

if TYPE_CHECKING:
    from thermocline.ingest.postgres.source import Postgres

LARGEST_TRANSACTION = 3_000
ROLL_BACK_ONE_IN = 8
PAUSE_SECONDS = 0.2

_MAKE = """
create table {table} (key text primary key, event bigint not null, value bigint not null);
alter table {table} replica identity full;
create table {progress} (sent bigint not null);
insert into {progress} values (0);
"""
# An event that deletes leaves its number in the row first: the delete then tells it by the row
# before it. A loop, because one statement cannot touch a key twice; and on the server, because a
# round trip an event would be slow.
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
    """A table of its own in a database that the project's sources name.

    Transactions have every size from one event to thousands, and some are rolled back first. A
    table of progress is written in each, so that after a broken connection it is known whether
    the commit was done.
    """

    workload: Workload
    name: str
    reach: Postgres
    kind: str = "postgres"
    changes: bool = True
    _connection: Any = None

    def source(self) -> dict[str, Any]:
        """The table, reached as the project's own source reaches its database."""
        reach = self.reach
        tls = {"mode": reach.tls.mode, "rootCert": reach.tls.root_cert,
               "cert": reach.tls.cert, "key": reach.tls.key}  # fmt: skip
        given = {
            "kind": "postgres", "host": reach.host, "port": reach.port, "database": reach.database,
            "user": reach.user, "password": reach.password and dict(reach.password),
            "tls": {key: value for key, value in tls.items() if value},
            "tables": [f"{self._schema}.{self.name}"],
        }  # fmt: skip
        return {key: value for key, value in given.items() if value}

    def begin(self, project: Path) -> None:
        """The table, and beside it the one of progress, which is not captured."""
        del project
        self._ask(lambda cursor: cursor.execute(self._worded(_MAKE)), patience=0)

    def send(self, events: Events) -> None:
        """Change the table, a transaction after the other."""
        for part in self._transactions(events):
            self._ask(lambda cursor, part=part: self._commit(cursor, part))  # type: ignore[misc]

    def state(self) -> State | None:
        """The table, row by row."""

        def read(cursor: Any) -> State:
            cursor.execute(self._worded("select key, event, value from {table}"))
            return {key: (event, value) for key, event, value in cursor.fetchall()}

        return self._ask(read)

    def end(self, *, keep: bool) -> None:
        """Drop slot, publication and tables; the slot in any case: it holds up the server's log."""
        self._ask(self._drop_slot)
        if not keep:
            self._ask(self._drop_tables)
        self._forget()

    @property
    def _schema(self) -> str:
        """That of the source's own table: its user has rights there."""
        return self.reach.tables[0].partition(".")[0]

    @property
    def _reader(self) -> str:
        """How the names of slot and publication begin that the source makes."""
        return f"thermocline_{self.name}_"[:50]

    def _worded(self, statement: str) -> str:
        schema = self._schema.replace('"', '""')
        table, progress = (f'"{schema}".{each}' for each in (self.name, f"{self.name}_progress"))
        return statement.format(table=table, progress=progress)

    def _transactions(self, events: Events) -> Iterator[Events]:
        """Events in transactions, small and large as likely, whose sizes follow from the seed."""
        start = 0
        while start < len(events):
            chance = self._chance(int(events.number[start]))
            size = int(math.exp(chance.uniform(0, math.log(LARGEST_TRANSACTION))))
            yield events.part(start, start + size)
            start += size

    def _chance(self, number: int) -> random.Random:
        return random.Random(f"{self.workload.seed}/{number}")  # noqa: S311  no secret: repeatable

    def _commit(self, cursor: Any, part: Events) -> None:
        first, last = int(part.number[0]), int(part.number[-1])
        cursor.execute(self._worded("select sent from {progress}"))
        if cursor.fetchone()[0] > last:
            return  # done before: the connection broke behind the commit
        columns = (
            part.number.tolist(), [f"k{key}" for key in part.key.tolist()], part.value.tolist(),
            part.deletes.tolist(),
        )  # fmt: skip
        arrays = ["{" + ",".join(map(str, column)) + "}" for column in columns]
        if self._chance(-1 - first).randrange(ROLL_BACK_ONE_IN) == 0:
            cursor.execute(_CALL, arrays)
            cursor.connection.rollback()
        cursor.execute(_CALL, arrays)
        cursor.execute(self._worded("update {progress} set sent = %s"), (last + 1,))

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
        cursor.execute(self._worded("drop table if exists {table}, {progress}"))

    def _ask(self, work: Callable[[Any], T], patience: float = PATIENCE_SECONDS) -> T:
        """Do some work in a transaction, again and again while the server is away."""
        import psycopg2

        deadline = time.monotonic() + patience
        while True:
            try:
                with self._connected(), self._connection.cursor() as cursor:
                    return work(cursor)
            except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
                self._forget()
                if time.monotonic() > deadline:
                    raise Transient(
                        f"{self.reach.host}:{self.reach.port} does not answer: {_said(error)}",
                        "Look at the server; the trial cannot judge what was never sent.",
                    ) from error
                time.sleep(PAUSE_SECONDS)
            except psycopg2.Error as error:
                raise Permanent(
                    f"{self.reach.host}:{self.reach.port} refuses: {_said(error)}",
                    f"Let {one_line(self.reach.user)} make tables in the schema of the source's.",
                ) from error

    def _connected(self) -> Any:
        """The connection, whose block is a transaction. What it commits survives the server."""
        import psycopg2

        if self._connection is None:
            reach = Database(self.reach).options()
            self._connection = psycopg2.connect(**reach, options="-c synchronous_commit=on")
            with self._connection, self._connection.cursor() as cursor:
                cursor.execute(self._worded(_APPLY))
        return self._connection

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _said(error: Exception) -> str:
    return redact(one_line(str(error).strip().partition("\n")[0]))[:300]

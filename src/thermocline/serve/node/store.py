"""The copies that a node holds, and how they change.

A copy is a DuckDB table in the schema `copies`, with the columns of the table it is a copy of and
two more: `__file` and `__pos`, the data file that a row is in and its place there, so that deletes
are exact without a key. Queries see a view of the real columns, named as the table. In the schema
`held` a view of the same name has the copy's snapshot as a constant. `staging` says how changes are
told.

A change set is staged beside what is served and applied in one transaction, with the views: so
several tables are always of one look, and the snapshot that a query reads is true of its rows. It
reads those of its own tables only, and a constant leaves no old rows behind.
Several can be in the making: a copy that takes long does not hold up the steps of the others. One
thread at a time changes anything, so that a transaction never meets another.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow as pa

from thermocline import telemetry
from thermocline.serve.node import limits
from thermocline.serve.node.change import Change, Copy, Staged, utc
from thermocline.serve.node.engine import broken
from thermocline.serve.node.room import Room
from thermocline.serve.node.staging import FILE, POSITION
from thermocline.serve.node.types import duckdb_type, literal, quoted
from thermocline.serve.wire.jobs import Broken, Failed
from thermocline.serve.wire.wire import Body

REBUILD_SHARE = 0.3
REBUILD_ROWS = 100_000
"""A copy with so many deleted rows in it is written anew: DuckDB keeps them in memory."""

MOST_CHANGES = 8

_HIDDEN = f'"{FILE}" INTEGER, "{POSITION}" BIGINT'


class Store:
    """All copies of a node. Any thread may call; one at a time is served."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, memory: int) -> None:
        self._writer = connection.cursor()
        self._room = Room(self._writer, memory)
        self._copies: dict[str, Copy] = {}
        self._changes: dict[str, Change] = {}
        self._number = 0
        self._lock = threading.Lock()
        # New copies are large, and nobody waits for one as for an answer: queries come first.
        self._bulk = ThreadPoolExecutor(1, "bulk", initializer=limits.yield_to_others)
        self._writer.execute("CREATE SCHEMA copies")
        self._writer.execute("CREATE SCHEMA held")

    def stage(self, said: dict[str, Any], body: Body) -> dict[str, Any]:
        """Do what `staging` describes. An error leaves the change set without that table."""
        kind, name = said.get("kind"), str(said.get("change"))
        with self._lock:
            match kind:
                case "begin":
                    self._begin(name)
                    return {}
                case "reset":
                    for each in list(self._changes.values()):
                        self._abandon(each)
                    return {}
            change = self._changes.get(name)
            if change is None:
                raise Failed("staging", f"The change set {name[:100]} was not begun.")
            match kind:
                case "apply":
                    return self._apply(change)
                case "abandon":
                    self._abandon(change)
                    return {}
            table = said.get("table")
            if not isinstance(table, str) or not table:
                raise Failed("staging", "Staging needs the name of a table.")
            try:
                self._stage(change, table, said, body)
            except (
                duckdb.Error,
                pa.ArrowException,
                MemoryError,
                KeyError,
                TypeError,
                ValueError,
            ) as error:
                self._forget(change, table)
                raise _refused(table, error) from error
            except Failed:
                self._forget(change, table)
                raise
            return {}

    def held(self, said: dict[str, Any] | None = None, body: Body = b"") -> dict[str, Any]:
        """What is held, and how much memory DuckDB uses in all."""
        with self._lock:
            return self._held()

    def _held(self) -> dict[str, Any]:
        tables = {
            name: {"snapshot": copy.snapshot, "since": copy.since, "rows": copy.rows,
                   "bytes": copy.bytes}
            for name, copy in self._copies.items()
        }  # fmt: skip
        return {"tables": tables, "memory": self._room.used()}

    # Staging -------------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        if name in self._changes:
            self._abandon(self._changes[name])
        if len(self._changes) >= MOST_CHANGES:
            raise Failed("staging", f"{MOST_CHANGES} change sets are in the making already.")
        self._changes[name] = Change(name)

    def _stage(self, change: Change, table: str, said: dict[str, Any], body: Body) -> None:
        if said["kind"] in ("new", "advance", "drop"):
            self._forget(change, table)  # what was said of it before does not count
        match said["kind"]:
            case "new":
                change.tables[table] = self._new(said)
            case "advance":
                change.tables[table] = self._advance(table, said)
            case "drop":
                change.tables[table] = Staged("drop")
            case "rows":
                self._rows(change.of(table), body)
            case "remove":
                staged = change.of(table, "advance")
                staged.files.extend(int(number) for number in said.get("files", ()))
                if body:
                    self._positions(staged, body)
            case kind:
                raise Failed("staging", f"Nothing is staged by {str(kind)[:100]}.")

    def _new(self, said: dict[str, Any]) -> Staged:
        columns = [(str(name), duckdb_type(kind)) for name, kind in said["columns"]]
        names = [name for name, _ in columns]
        sort = said.get("sort")
        if FILE in names or POSITION in names or (sort is not None and sort not in names):
            raise Failed("staging", "These columns cannot be those of a copy.")
        self._room.require(int(said.get("expect") or 0))
        copy = Copy(self._name(), tuple(names), sort, said["snapshot"], said.get("since"))
        if copy.since is not None:
            utc(copy.since)
        defined = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
        self._writer.execute(f"CREATE TABLE {copy.place} ({defined}, {_HIDDEN})")
        return Staged("new", copy, place=copy.place)

    def _advance(self, table: str, said: dict[str, Any]) -> Staged:
        copy = self._copies.get(table)
        if copy is None:
            raise Failed("not-held", f"The node holds no copy of {table}.")
        if copy.snapshot != said["held"]:
            raise Failed("moved", f"The copy of {table} is at another snapshot.",
                         held=copy.snapshot)  # fmt: skip
        since = said.get("since")
        if since is not None and (copy.since is None or utc(since) < utc(copy.since)):
            raise Failed("staging", f"A copy of {table} cannot begin where it does not reach.")
        ahead = copy.at(said["snapshot"], since or copy.since)
        return Staged("advance", ahead, copy, place=f"copies.{quoted(self._name())}")

    def _rows(self, staged: Staged, body: Body) -> None:
        rows = _read(body)
        copy = staged.copy
        assert copy is not None
        wanted = {*copy.columns, FILE, POSITION}
        if set(rows.column_names) != wanted or rows.num_columns != len(wanted):
            raise Failed("staging", "The rows have other columns than the copy.")
        self._room.require(rows.nbytes)
        if staged.kind == "advance" and not staged.bodies:
            self._writer.execute(f"CREATE TABLE {staged.place} AS FROM {copy.place} LIMIT 0")
        if staged.kind == "new":
            self._bulk.submit(self._add, staged, copy, rows).result()
        else:
            self._add(staged, copy, rows)

    def _add(self, staged: Staged, copy: Copy, rows: pa.Table) -> None:
        columns = ", ".join(quoted(name) for name in (*copy.columns, FILE, POSITION))
        order = f"ORDER BY {quoted(copy.sort)}" if copy.sort else ""
        self._insert(staged.place, f"SELECT {columns} FROM staged_rows {order}", rows)
        staged.took(rows)
        self._room.came(rows.num_rows, rows.nbytes)

    def _positions(self, staged: Staged, body: Body) -> None:
        positions = _read(body)
        place = f"copies.{quoted(self._name())}"
        self._writer.execute(f"CREATE TABLE {place} ({_HIDDEN})")
        staged.positions.append(place)
        self._insert(place, f'SELECT "{FILE}", "{POSITION}" FROM staged_rows', positions)

    def _insert(self, place: str, select: str, rows: pa.Table) -> None:
        self._writer.register("staged_rows", rows)
        try:
            self._writer.execute(f"INSERT INTO {place} {select}")
        finally:
            self._writer.unregister("staged_rows")

    # Applying ------------------------------------------------------------------------------------

    def _apply(self, change: Change) -> dict[str, Any]:
        copies = dict(self._copies)
        for table, staged in change.tables.items():
            if staged.base is not None and copies.get(table) is not staged.base:
                self._abandon(change)
                raise Failed("moved", f"The copy of {table} was changed by others meanwhile.")
        try:
            for staged in change.tables.values():
                if staged.kind == "new":
                    self._bulk.submit(self._sort, staged).result()
            self._writer.execute("BEGIN")
            for table, staged in change.tables.items():
                self._change_one(table, staged, copies)
            self._writer.execute("COMMIT")
        except (duckdb.Error, MemoryError) as error:
            with contextlib.suppress(duckdb.Error):
                self._writer.execute("ROLLBACK")
            self._abandon(change)
            raise _refused("the change set", error) from error
        grown = any(staged.kind == "new" for staged in change.tables.values())
        kept = {copy.place for copy in copies.values()}
        left = {copy.place for copy in self._copies.values()} - kept
        self._copies = copies
        del self._changes[change.name]
        self._drop(left | {place for place in change.places() if place not in kept})
        try:
            if grown or left:
                self._room.compact()
        except duckdb.Error as error:
            raise _refused("the change set", error) from error
        return self._held()

    def _change_one(self, table: str, staged: Staged, copies: dict[str, Copy]) -> None:
        view = quoted(table)
        if staged.kind == "drop":
            self._writer.execute(f"DROP VIEW IF EXISTS {view}")
            self._writer.execute(f"DROP VIEW IF EXISTS held.{view}")
            copies.pop(table, None)
            return
        assert staged.copy is not None
        copy = staged.copy
        if staged.kind == "advance":
            copy = self._moved_on(staged, copy)
        else:
            copy = copy.sized(staged.rows, 0, staged.bytes)
        copies[table] = copy
        if self._copies.get(table) is None or self._copies[table].place != copy.place:
            columns = ", ".join(quoted(name) for name in copy.columns)
            self._writer.execute(
                f"CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM {copy.place}"
            )
        since = "NULL" if copy.since is None else literal(copy.since)
        self._writer.execute(
            f"CREATE OR REPLACE VIEW held.{view} AS "
            f"SELECT {literal(copy.snapshot)} AS snapshot, {since}::VARCHAR AS since"
        )

    def _moved_on(self, staged: Staged, copy: Copy) -> Copy:
        """In the transaction: take out what goes, add what comes; rewrite what is mostly holes."""
        gone = 0
        if staged.files:
            files = ", ".join(str(number) for number in staged.files)
            gone += self._delete(f'{copy.place} WHERE "{FILE}" IN ({files})')
        for place in staged.positions:
            gone += self._delete(
                f"{copy.place} AS held WHERE EXISTS (SELECT 1 FROM {place} AS gone WHERE "
                f'held."{FILE}" = gone."{FILE}" AND held."{POSITION}" = gone."{POSITION}")'
            )
        if staged.bodies:
            order = f"ORDER BY {quoted(copy.sort)}" if copy.sort else ""
            self._writer.execute(f"INSERT INTO {copy.place} FROM {staged.place} {order}")
        if copy.sort and copy.since:
            gone += self._delete(
                f"{copy.place} WHERE {quoted(copy.sort)} < "
                f"(TIMESTAMPTZ '{utc(copy.since).isoformat()}' AT TIME ZONE 'UTC')"
            )
        copy = copy.sized(copy.rows + staged.rows - gone, copy.dead + gone,
                          copy.bytes_in + staged.bytes)  # fmt: skip
        if copy.dead > REBUILD_ROWS and copy.dead > REBUILD_SHARE * copy.rows:
            copy = self._rebuilt(copy)
        return copy

    def _delete(self, what: str) -> int:
        found = self._writer.execute(f"DELETE FROM {what}").fetchone()
        return int(found[0]) if found else 0

    def _rebuilt(self, copy: Copy) -> Copy:
        if not self._room.fits(copy.bytes):
            return copy
        return self._written(copy).sized(copy.rows, 0, copy.bytes)

    def _sort(self, staged: Staged) -> None:
        """Put a new copy in the order of its time, so that queries skip what they don't ask for."""
        copy = staged.copy
        if (
            copy is None
            or copy.sort is None
            or staged.in_order
            or not self._room.fits(staged.bytes)
        ):
            return
        staged.copy = self._written(copy)
        staged.spare.append(staged.place)
        staged.place = staged.copy.place

    def _written(self, copy: Copy) -> Copy:
        """The copy written anew, in order."""
        again = copy.named(self._name())
        order = f"ORDER BY {quoted(copy.sort)}" if copy.sort else ""
        self._writer.execute(f"CREATE TABLE {again.place} AS FROM {copy.place} {order}")
        return again

    # Names and endings ---------------------------------------------------------------------------

    def _name(self) -> str:
        self._number += 1
        return str(self._number)

    def _forget(self, change: Change, table: str) -> None:
        staged = change.tables.pop(table, None)
        if staged is not None:
            self._drop(staged.places())

    def _abandon(self, change: Change) -> None:
        del self._changes[change.name]
        self._drop(change.places())

    def _drop(self, places: set[str]) -> None:
        for place in sorted(places):
            try:
                self._writer.execute(f"DROP TABLE IF EXISTS {place}")
            except duckdb.Error as error:
                telemetry.log("node", "not dropped", level="ERROR", error=str(error))


def _read(body: Body) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        table = stream.read_all()
    table.validate()
    return table


def _refused(what: str, error: Exception) -> Exception:
    if broken(error):
        telemetry.log("node", "broken", level="ERROR", error=str(error))
        return Broken()
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return Failed("memory", f"There is no memory left for {what}.")
    return Failed("staging", f"{what}: {str(error).split(chr(10), 1)[0]}")

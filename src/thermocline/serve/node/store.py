"""The copies of a node, and how they change.

A copy is a DuckDB table in the schema `copies`, with the columns of the lake's table and two more:
`__file` and `__pos`, the data file of a row and its position there, so that deletes are exact
without a key. Queries see a view of the lake's columns, named as the table. In the schema `held` a
view of the same name has the copy's snapshot as a constant. `staging` defines the requests.

A change set is staged beside the served copies and applied in one transaction, with the views: so
all tables are of one catalog poll, and the snapshot that a query reads matches its rows. A query
reads only the views of its own tables, and a constant view leaves no old rows behind. Several
change sets can be staged at once: a copy that takes long does not delay the others. One thread at a
time changes anything, so that transactions never conflict.
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
from thermocline.serve.node.change_set import StagedChangeSet, StagedTable, StoredCopy, parse_utc
from thermocline.serve.node.copy_types import duckdb_type, quote_identifier, quote_literal
from thermocline.serve.node.engine import is_fatal
from thermocline.serve.node.memory_budget import MemoryBudget
from thermocline.serve.node.staging import FILE, POSITION
from thermocline.serve.wire.jobs import EngineBroken, WorkerError
from thermocline.serve.wire.protocol import Body

REBUILD_SHARE = 0.3
REBUILD_ROWS = 100_000
"""A copy with so many deleted rows is rewritten: DuckDB keeps them in memory."""

MAX_CHANGE_SETS = 8

_HIDDEN = f'"{FILE}" INTEGER, "{POSITION}" BIGINT'


class CopyStore:
    """All copies of a node. Thread-safe; calls run one at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, memory: int) -> None:
        self._writer = connection.cursor()
        self._memory = MemoryBudget(self._writer, memory)
        self._copies: dict[str, StoredCopy] = {}
        self._changes: dict[str, StagedChangeSet] = {}
        self._number = 0
        self._lock = threading.Lock()
        # New copies are large and not urgent: queries come first.
        self._bulk = ThreadPoolExecutor(1, "bulk", initializer=limits.lower_priority)
        self._writer.execute("CREATE SCHEMA copies")
        self._writer.execute("CREATE SCHEMA held")

    def stage(self, request: dict[str, Any], body: Body) -> dict[str, Any]:
        """Execute a request of `staging`. On an error, the change set loses that table."""
        kind, name = request.get("kind"), str(request.get("change"))
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
                raise WorkerError("staging", f"The change set {name[:100]} was not begun.")
            match kind:
                case "apply":
                    return self._apply(change)
                case "abandon":
                    self._abandon(change)
                    return {}
            table = request.get("table")
            if not isinstance(table, str) or not table:
                raise WorkerError("staging", "Staging needs the name of a table.")
            try:
                self._stage(change, table, request, body)
            except (
                duckdb.Error,
                pa.ArrowException,
                MemoryError,
                KeyError,
                TypeError,
                ValueError,
            ) as error:
                self._discard_table(change, table)
                raise _to_failed(table, error) from error
            except WorkerError:
                self._discard_table(change, table)
                raise
            return {}

    def list_copies(
        self, request: dict[str, Any] | None = None, body: Body = b""
    ) -> dict[str, Any]:
        """Return the copies, and how much memory DuckDB uses in total."""
        with self._lock:
            return self._describe_copies()

    def _describe_copies(self) -> dict[str, Any]:
        tables = {
            name: {"snapshot": copy.snapshot, "since": copy.since, "rows": copy.rows,
                   "bytes": copy.bytes}
            for name, copy in self._copies.items()
        }  # fmt: skip
        return {"tables": tables, "memory": self._memory.used_bytes()}

    # Staging -------------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        if name in self._changes:
            self._abandon(self._changes[name])
        if len(self._changes) >= MAX_CHANGE_SETS:
            raise WorkerError("staging", f"There are already {MAX_CHANGE_SETS} change sets.")
        self._changes[name] = StagedChangeSet(name)

    def _stage(
        self, change: StagedChangeSet, table: str, request: dict[str, Any], body: Body
    ) -> None:
        if request["kind"] in ("new", "advance", "drop"):
            self._discard_table(change, table)  # replaces what was staged for it before
        match request["kind"]:
            case "new":
                change.tables[table] = self._begin_copy(request)
            case "advance":
                change.tables[table] = self._begin_advance(table, request)
            case "drop":
                change.tables[table] = StagedTable("drop")
            case "rows":
                self._stage_rows(change.get_staged(table), body)
            case "remove":
                staged = change.get_staged(table, "advance")
                staged.files.extend(int(number) for number in request.get("files", ()))
                if body:
                    self._add_positions(staged, body)
            case kind:
                raise WorkerError("staging", f"{str(kind)[:100]} is no kind of change.")

    def _begin_copy(self, request: dict[str, Any]) -> StagedTable:
        columns = [(str(name), duckdb_type(kind)) for name, kind in request["columns"]]
        names = [name for name, _ in columns]
        sort = request.get("sort")
        if FILE in names or POSITION in names or (sort is not None and sort not in names):
            raise WorkerError("staging", "These columns cannot be those of a copy.")
        self._memory.require(int(request.get("expect") or 0))
        copy = StoredCopy(
            self._next_name(), tuple(names), sort, request["snapshot"], request.get("since")
        )
        if copy.since is not None:
            parse_utc(copy.since)
        defined = ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in columns)
        self._writer.execute(f"CREATE TABLE {copy.relation} ({defined}, {_HIDDEN})")
        return StagedTable("new", copy, relation=copy.relation)

    def _begin_advance(self, table: str, request: dict[str, Any]) -> StagedTable:
        copy = self._copies.get(table)
        if copy is None:
            raise WorkerError("not-held", f"The node holds no copy of {table}.")
        if copy.snapshot != request["held"]:
            raise WorkerError("moved", f"The copy of {table} is at another snapshot.",
                         held=copy.snapshot)  # fmt: skip
        since = request.get("since")
        if since is not None and (copy.since is None or parse_utc(since) < parse_utc(copy.since)):
            raise WorkerError("staging", f"A copy of {table} cannot begin where it does not reach.")
        ahead = copy.with_snapshot(request["snapshot"], since or copy.since)
        return StagedTable(
            "advance", ahead, copy, relation=f"copies.{quote_identifier(self._next_name())}"
        )

    def _stage_rows(self, staged: StagedTable, body: Body) -> None:
        rows = _read_body(body)
        copy = staged.copy
        assert copy is not None
        expected = {*copy.columns, FILE, POSITION}
        if set(rows.column_names) != expected or rows.num_columns != len(expected):
            raise WorkerError("staging", "The rows have other columns than the copy.")
        self._memory.require(rows.nbytes)
        if staged.kind == "advance" and not staged.bodies:
            self._writer.execute(f"CREATE TABLE {staged.relation} AS FROM {copy.relation} LIMIT 0")
        if staged.kind == "new":
            self._bulk.submit(self._add, staged, copy, rows).result()
        else:
            self._add(staged, copy, rows)

    def _add(self, staged: StagedTable, copy: StoredCopy, rows: pa.Table) -> None:
        columns = ", ".join(quote_identifier(name) for name in (*copy.columns, FILE, POSITION))
        order = f"ORDER BY {quote_identifier(copy.sort)}" if copy.sort else ""
        self._insert(staged.relation, f"SELECT {columns} FROM staged_rows {order}", rows)
        staged.record_rows(rows)
        self._memory.record_rows(rows.num_rows, rows.nbytes)

    def _add_positions(self, staged: StagedTable, body: Body) -> None:
        positions = _read_body(body)
        relation = f"copies.{quote_identifier(self._next_name())}"
        self._writer.execute(f"CREATE TABLE {relation} ({_HIDDEN})")
        staged.positions.append(relation)
        self._insert(relation, f'SELECT "{FILE}", "{POSITION}" FROM staged_rows', positions)

    def _insert(self, relation: str, select: str, rows: pa.Table) -> None:
        self._writer.register("staged_rows", rows)
        try:
            self._writer.execute(f"INSERT INTO {relation} {select}")
        finally:
            self._writer.unregister("staged_rows")

    # Applying ------------------------------------------------------------------------------------

    def _apply(self, change: StagedChangeSet) -> dict[str, Any]:
        copies = dict(self._copies)
        for table, staged in change.tables.items():
            if staged.base is not None and copies.get(table) is not staged.base:
                self._abandon(change)
                raise WorkerError("moved", f"The copy of {table} was changed meanwhile.")
        try:
            for staged in change.tables.values():
                if staged.kind == "new":
                    self._bulk.submit(self._sort_copy, staged).result()
            self._writer.execute("BEGIN")
            for table, staged in change.tables.items():
                self._apply_table(table, staged, copies)
            self._writer.execute("COMMIT")
        except (duckdb.Error, MemoryError) as error:
            with contextlib.suppress(duckdb.Error):
                self._writer.execute("ROLLBACK")
            self._abandon(change)
            raise _to_failed("the change set", error) from error
        grown = any(staged.kind == "new" for staged in change.tables.values())
        kept_relations = {copy.relation for copy in copies.values()}
        obsolete = {copy.relation for copy in self._copies.values()} - kept_relations
        self._copies = copies
        del self._changes[change.name]
        self._drop_relations(
            obsolete
            | {relation for relation in change.relations() if relation not in kept_relations}
        )
        try:
            if grown or obsolete:
                self._memory.compact()
        except duckdb.Error as error:
            raise _to_failed("the change set", error) from error
        return self._describe_copies()

    def _apply_table(self, table: str, staged: StagedTable, copies: dict[str, StoredCopy]) -> None:
        view = quote_identifier(table)
        if staged.kind == "drop":
            self._writer.execute(f"DROP VIEW IF EXISTS {view}")
            self._writer.execute(f"DROP VIEW IF EXISTS held.{view}")
            copies.pop(table, None)
            return
        assert staged.copy is not None
        copy = staged.copy
        if staged.kind == "advance":
            copy = self._advance_copy(staged, copy)
        else:
            copy = copy.with_rows(staged.rows, 0, staged.bytes)
        copies[table] = copy
        if self._copies.get(table) is None or self._copies[table].relation != copy.relation:
            columns = ", ".join(quote_identifier(name) for name in copy.columns)
            self._writer.execute(
                f"CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM {copy.relation}"
            )
        since = "NULL" if copy.since is None else quote_literal(copy.since)
        self._writer.execute(
            f"CREATE OR REPLACE VIEW held.{view} AS "
            f"SELECT {quote_literal(copy.snapshot)} AS snapshot, {since}::VARCHAR AS since"
        )

    def _advance_copy(self, staged: StagedTable, copy: StoredCopy) -> StoredCopy:
        """In the transaction: delete and add rows; rewrite a copy with many deleted rows."""
        deleted = 0
        if staged.files:
            files = ", ".join(str(number) for number in staged.files)
            deleted += self._delete(f'{copy.relation} WHERE "{FILE}" IN ({files})')
        for relation in staged.positions:
            deleted += self._delete(
                f"{copy.relation} AS held WHERE EXISTS (SELECT 1 FROM {relation} AS gone WHERE "
                f'held."{FILE}" = gone."{FILE}" AND held."{POSITION}" = gone."{POSITION}")'
            )
        if staged.bodies:
            order = f"ORDER BY {quote_identifier(copy.sort)}" if copy.sort else ""
            self._writer.execute(f"INSERT INTO {copy.relation} FROM {staged.relation} {order}")
        if copy.sort and copy.since:
            deleted += self._delete(
                f"{copy.relation} WHERE {quote_identifier(copy.sort)} < "
                f"(TIMESTAMPTZ '{parse_utc(copy.since).isoformat()}' AT TIME ZONE 'UTC')"
            )
        copy = copy.with_rows(copy.rows + staged.rows - deleted, copy.dead + deleted,
                          copy.bytes_in + staged.bytes)  # fmt: skip
        if copy.dead > REBUILD_ROWS and copy.dead > REBUILD_SHARE * copy.rows:
            copy = self._rebuild(copy)
        return copy

    def _delete(self, what: str) -> int:
        found = self._writer.execute(f"DELETE FROM {what}").fetchone()
        return int(found[0]) if found else 0

    def _rebuild(self, copy: StoredCopy) -> StoredCopy:
        if not self._memory.fits(copy.bytes):
            return copy
        return self._rewrite(copy).with_rows(copy.rows, 0, copy.bytes)

    def _sort_copy(self, staged: StagedTable) -> None:
        """Sort a new copy by its time, so that queries can skip row groups."""
        copy = staged.copy
        if (
            copy is None
            or copy.sort is None
            or staged.in_order
            or not self._memory.fits(staged.bytes)
        ):
            return
        staged.copy = self._rewrite(copy)
        staged.obsolete.append(staged.relation)
        staged.relation = staged.copy.relation

    def _rewrite(self, copy: StoredCopy) -> StoredCopy:
        """Write the copy again, sorted."""
        rewritten = copy.with_name(self._next_name())
        order = f"ORDER BY {quote_identifier(copy.sort)}" if copy.sort else ""
        self._writer.execute(f"CREATE TABLE {rewritten.relation} AS FROM {copy.relation} {order}")
        return rewritten

    # Names and cleanup ---------------------------------------------------------------------------

    def _next_name(self) -> str:
        self._number += 1
        return str(self._number)

    def _discard_table(self, change: StagedChangeSet, table: str) -> None:
        staged = change.tables.pop(table, None)
        if staged is not None:
            self._drop_relations(staged.relations())

    def _abandon(self, change: StagedChangeSet) -> None:
        del self._changes[change.name]
        self._drop_relations(change.relations())

    def _drop_relations(self, relations: set[str]) -> None:
        for relation in sorted(relations):
            try:
                self._writer.execute(f"DROP TABLE IF EXISTS {relation}")
            except duckdb.Error as error:
                telemetry.log("node", "not dropped", level="ERROR", error=str(error))


def _read_body(body: Body) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        table = stream.read_all()
    table.validate()
    return table


def _to_failed(what: str, error: Exception) -> Exception:
    if is_fatal(error):
        telemetry.log("node", "broken", level="ERROR", error=str(error))
        return EngineBroken()
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return WorkerError("memory", f"There is no memory left for {what}.")
    return WorkerError("staging", f"{what}: {str(error).split(chr(10), 1)[0]}")

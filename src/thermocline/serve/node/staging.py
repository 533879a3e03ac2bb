"""The requests by which the replicator changes the copies of a node.

The replicator brings a node from one catalog poll to the next with one change set: it begins one,
stages the changes of each table, and applies it. Queries see all of a change set or nothing of it,
and continue meanwhile. A new copy takes longer: it has its own change set beside that. Each of
these is one request; wait for its reply before the next.

| request           | body                | effect                                                |
|-------------------|---------------------|-------------------------------------------------------|
| `reset()`         |                     | discard all change sets, of an earlier replicator     |
| `begin(c)`        |                     | begin change set `c`, one of at most eight            |
| `create(c, t, …)` |                     | a new copy of `t` beside the served one, if any       |
| `advance(c, t, …)`|                     | advance the copy of `t` from its current snapshot     |
| `add_rows(c, t)`  | `encode_body(rows)` | add rows: the table's columns, `__file` and `__pos`   |
| `remove(c, t, …)` | `encode_body(rows)` | remove whole files and, in the body, single rows      |
| `drop(c, t)`      |                     | drop the copy of `t`                                  |
| `apply(c)`        |                     | apply it atomically; return the copies after that     |
| `abandon(c)`      |                     | discard it                                            |

All are `{"do": "stage"}`. Replies are `{"ok": true}`, `apply`'s with `tables` and `memory` as
`{"do": "held"}` returns them. Errors: `moved` (a copy is not at the snapshot that `advance` names;
details.held), `not-held`, `memory` (it does not fit: the change set is discarded, the served copies
stay), `staging` (rows that don't fit the columns, a change set that was not begun, …).

In an advance, rows are removed before any are added: rows added by a change set are never removed
by it. `__file` (int32) is the replicator's number of a data file and `__pos` (int64) the row's
position in it. Types are those of Iceberg's JSON: a name, or an object for struct, list and map;
PyIceberg writes them with `json.loads(field.field_type.model_dump_json())`. Rows are in the
canonical Arrow form (a uuid is text), at most about 64k per body, preferably in order of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "__file"
POSITION = "__pos"

IcebergType = str | dict[str, Any]


def reset() -> dict[str, Any]:
    """Discard all unfinished change sets."""
    return {"do": "stage", "kind": "reset"}


def begin(change: str) -> dict[str, Any]:
    """Begin a change set; one of the same name is abandoned."""
    return _stage("begin", change)


def create(
    change: str,
    table: str,
    columns: Sequence[tuple[str, IcebergType]],
    snapshot: int,
    *,
    since: datetime | None = None,
    sort: str | None = None,
    expect: int = 0,
) -> dict[str, Any]:
    """Create a new copy of a table; `add_rows` follow.

    `since` is the time from which on it is complete (None: all rows), `sort` its time column,
    `expect` its Arrow size, if known: a copy that cannot fit is refused at once.
    """
    return _stage("new", change, table, columns=[list(column) for column in columns],
                  snapshot=str(snapshot), since=_iso(since), sort=sort, expect=expect)  # fmt: skip


def advance(
    change: str, table: str, held: int, snapshot: int, *, since: datetime | None = None
) -> dict[str, Any]:
    """Advance a copy from its current snapshot; `remove` and `add_rows` may follow.

    A later `since` deletes all older rows; None leaves them.
    """
    return _stage("advance", change, table, held=str(held), snapshot=str(snapshot),
                  since=_iso(since))  # fmt: skip


def add_rows(change: str, table: str) -> dict[str, Any]:
    """Add the rows in the body."""
    return _stage("rows", change, table)


def remove(change: str, table: str, files: Iterable[int] = ()) -> dict[str, Any]:
    """Remove the rows of data files, and those with `__file` and `__pos` in the body."""
    return _stage("remove", change, table, files=list(files))


def drop(change: str, table: str) -> dict[str, Any]:
    """Drop the copy of a table."""
    return _stage("drop", change, table)


def apply(change: str) -> dict[str, Any]:
    """Apply the change set."""
    return _stage("apply", change)


def abandon(change: str) -> dict[str, Any]:
    """Discard the change set."""
    return _stage("abandon", change)


def encode_body(table: pa.Table) -> bytes:
    """Return rows or positions as the body of a request."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _stage(kind: str, change: str, table: str | None = None, **more: Any) -> dict[str, Any]:
    fields = {"do": "stage", "kind": kind, "change": change, **more}
    return fields if table is None else {**fields, "table": table}


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()

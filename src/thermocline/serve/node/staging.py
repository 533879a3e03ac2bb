"""What a node is told to hold: the words that its keeper says.

A keeper brings a node from one look at the lake to the next with one change set: it begins one,
stages what each table needs, and applies it. Queries see all of a change or nothing of it, and go
on meanwhile. A new copy takes longer: it has a change set of its own beside that. Each of these is
a request of its own; wait for its reply before the next.

| say               | body                | what it does                                          |
|-------------------|---------------------|-------------------------------------------------------|
| `reset()`         |                     | forget all change sets: those of a keeper before      |
| `begin(c)`        |                     | start change set `c`, one of at most eight            |
| `new(c, t, …)`    |                     | a copy of `t` beside the one that serves, if any      |
| `advance(c, t, …)`|                     | take the copy of `t` on from the snapshot it is at    |
| `rows(c, t)`      | `body(table)`       | add rows: the real columns, `__file` and `__pos`      |
| `remove(c, t, …)` | `body(positions)`   | take out whole files and, in the body, single rows    |
| `drop(c, t)`      |                     | hold `t` no more                                      |
| `apply(c)`        |                     | all of it at once; replies what is then held          |
| `abandon(c)`      |                     | forget it                                             |

All are `{"do": "stage"}`. Replies are `{"ok": true}`, `apply`'s with `tables` and `memory` as
`{"do": "held"}` gives them. Errors: `moved` (a copy is not at the snapshot that `advance` names;
details.held), `not-held`, `memory` (it does not fit: the change set is gone, what was served still
is), `staging` (rows that don't fit the columns, a change set that was not begun, …).

Of an advance, rows are removed before any are added: what is added in a change is never removed by
it. `__file` (int32) is the keeper's number of a data file and `__pos` (int64) the row's place in
it. Types are those of Iceberg's JSON: a word, or an object for struct, list and map; PyIceberg
gives them with `json.loads(field.field_type.model_dump_json())`. Rows are in the canonical Arrow
form (a uuid is text), at most some 64k a body, best in order of time.
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
    """Forget all change sets that were not finished."""
    return {"do": "stage", "kind": "reset"}


def begin(change: str) -> dict[str, Any]:
    """Start a change set; one of the same name is abandoned."""
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
    """A new copy of a table; `rows` follow.

    `since` is from when on it is whole (None: always), `sort` the column of its time, `expect` how
    many bytes of Arrow will come, where that is known: a copy that cannot fit is refused at once.
    """
    return _stage("new", change, table, columns=[list(column) for column in columns],
                  snapshot=str(snapshot), since=_iso(since), sort=sort, expect=expect)  # fmt: skip


def advance(
    change: str, table: str, held: int, snapshot: int, *, since: datetime | None = None
) -> dict[str, Any]:
    """Take a copy on from the snapshot it is at; `remove` and `rows` may follow.

    A later `since` cuts everything that is older; None leaves it as it is.
    """
    return _stage("advance", change, table, held=str(held), snapshot=str(snapshot),
                  since=_iso(since))  # fmt: skip


def add_rows(change: str, table: str) -> dict[str, Any]:
    """Rows to add, in the body."""
    return _stage("rows", change, table)


def remove(change: str, table: str, files: Iterable[int] = ()) -> dict[str, Any]:
    """Data files whose rows go, and in the body `__file` and `__pos` of single rows that go."""
    return _stage("remove", change, table, files=list(files))


def drop(change: str, table: str) -> dict[str, Any]:
    """Hold a table no more."""
    return _stage("drop", change, table)


def apply(change: str) -> dict[str, Any]:
    """Make the change set what is served."""
    return _stage("apply", change)


def abandon(change: str) -> dict[str, Any]:
    """Forget the change set."""
    return _stage("abandon", change)


def encode_body(table: pa.Table) -> bytes:
    """Rows or positions as the body that goes with them."""
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

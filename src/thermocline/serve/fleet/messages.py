"""Encode queries for workers, and decode their replies and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, Transient
from thermocline.serve.failures import DivisionByZero, FilesMissing, TooLate, TooMuch
from thermocline.serve.values import EncodedRows, Format, ResultColumn

if TYPE_CHECKING:
    from thermocline.serve.wire.frame import Frame


class EngineFailed(Transient):
    """An engine could not answer for a reason that is not the query's: another engine may."""

    code = "engine-failed"


class QueryNotStarted(EngineFailed):
    """An engine is down or overloaded: it did not start the query."""

    code = "engine-away"


class QueryAborted(EngineFailed):
    """An engine failed after it worked on a query, which may have been the cause."""

    code = "engine-spent"


class CopyMoved(EngineFailed):
    """A node's copy is no longer at the requested snapshot.

    `details` may have the `table`, and in `held` the snapshot of the copy.
    """

    code = "moved"


@dataclass(frozen=True)
class QueryBudget:
    """The limits of a query.

    `patience` is how many seconds it may wait to start when another engine could answer instead.
    `caller` is for fair scheduling.
    """

    rows: int
    bytes: int
    seconds: float
    patience: float | None = None
    caller: str = ""


@dataclass(frozen=True)
class TableVersion:
    """A table in a query, at a snapshot.

    `since` is the time from which on the hot copy is complete, so that a node whose window moved
    meanwhile refuses the query.
    """

    table: str
    snapshot: int
    metadata: str
    since: datetime | None = None


@dataclass(frozen=True)
class EngineQuery:
    """A query in the dialect of one engine. It names tables by `views`."""

    sql: str
    views: Mapping[str, TableVersion]
    format: Format
    budget: QueryBudget


def encode_query(query: EngineQuery) -> dict[str, Any]:
    """Return the request of a query to a worker."""
    budget = query.budget
    return {
        "do": "query",
        "sql": query.sql,
        "tables": {view: _encode_version(version) for view, version in query.views.items()},
        "format": query.format,
        "rows": budget.rows,
        "bytes": budget.bytes,
        "seconds": max(budget.seconds, 0.001),
        "crowded_seconds": budget.patience,
    }


def decode_rows(engine: str, reply: Frame) -> EncodedRows:
    """Return the rows of a worker's reply. Raises the exception that its error stands for."""
    if reply.error is not None:
        raise _to_exception(engine, reply.error)
    header = reply.header
    columns = tuple(ResultColumn(*each) for each in header["columns"])
    return EncodedRows(columns, int(header["count"]), bytes(reply.body), header.get("ms", {}))


def _encode_version(version: TableVersion) -> dict[str, Any]:
    return {
        "table": version.table,
        "snapshot": str(version.snapshot),
        "metadata": version.metadata,
        "since": version.since.isoformat() if version.since else None,
    }


def _to_exception(engine: str, error: Mapping[str, Any]) -> Exception:
    """Return the exception for a worker's error."""
    if error.get("code") == DivisionByZero.code:
        return DivisionByZero()
    code, cause = str(error.get("code")), str(error.get("cause", "It failed."))
    step = str(error.get("next_step") or "Fix the SQL; `thermo show TABLE` lists columns.")
    error_class: Callable[..., Exception] = {
        "query": BadInput,
        "too-many-rows": TooMuch,
        "too-large": TooMuch,
        "memory": TooMuch,
        "too-long": TooLate,
        "busy": QueryNotStarted,
        "crowded": QueryAborted,
        "missing": FilesMissing,
        "moved": CopyMoved,
        "not-held": CopyMoved,
    }.get(code, EngineFailed)
    details = dict(error.get("details") or {}) if error_class is CopyMoved else {}
    text = (
        cause if error_class in (BadInput, TooMuch, TooLate, FilesMissing) else f"{engine}: {cause}"
    )
    return error_class(text, step, **{**details, "code": code})

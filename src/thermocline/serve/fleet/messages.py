"""A query as a worker is told it, and what the worker's reply means to whoever asked."""

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
    """An engine could not answer, for a reason that is not the question's: another may."""

    code = "engine-failed"


class QueryNotStarted(EngineFailed):
    """An engine is not there, or has too much to do: it was not asked."""

    code = "engine-away"


class QueryAborted(EngineFailed):
    """An engine failed after it worked on a query, which may have been the cause."""

    code = "engine-spent"


class CopyMoved(EngineFailed):
    """A node's copy is no longer the one that was asked for.

    `details` may say of which `table`, and at which snapshot it is `held`.
    """

    code = "moved"


@dataclass(frozen=True)
class QueryBudget:
    """How much a query may take and give.

    `patience` is how long it may wait to be begun, when somebody else can be asked instead.
    `caller` is who asks: callers take turns.
    """

    rows: int
    bytes: int
    seconds: float
    patience: float | None = None
    caller: str = ""


@dataclass(frozen=True)
class TableVersion:
    """A table in a query: under which name, and which state of it.

    `since` is from when on a hot copy is whole, so that a node whose window moved meanwhile says
    so.
    """

    table: str
    snapshot: int
    metadata: str
    since: datetime | None = None


def encode_query(
    sql: str, views: Mapping[str, TableVersion], format: Format, budget: QueryBudget
) -> dict[str, Any]:
    """What a worker is told."""
    return {
        "do": "query",
        "sql": sql,
        "tables": {view: _encode_version(reading) for view, reading in views.items()},
        "format": format,
        "rows": budget.rows,
        "bytes": budget.bytes,
        "seconds": max(budget.seconds, 0.001),
        "crowded_seconds": budget.patience,
    }


def decode_rows(who: str, reply: Frame) -> EncodedRows:
    """What a worker gave; raises what its error means."""
    if reply.error is not None:
        raise _to_exception(who, reply.error)
    header = reply.header
    columns = tuple(ResultColumn(*each) for each in header["columns"])
    return EncodedRows(columns, int(header["count"]), bytes(reply.body), header.get("ms", {}))


def _encode_version(reading: TableVersion) -> dict[str, Any]:
    return {
        "table": reading.table,
        "snapshot": str(reading.snapshot),
        "metadata": reading.metadata,
        "since": reading.since.isoformat() if reading.since else None,
    }


def _to_exception(who: str, error: Mapping[str, Any]) -> Exception:
    """A worker's error as what it means to the one who asked."""
    if error.get("code") == DivisionByZero.code:
        return DivisionByZero()
    code, cause = str(error.get("code")), str(error.get("cause", "It failed."))
    step = str(error.get("next_step") or "Mend the SQL; `thermo show TABLE` lists columns.")
    make: Callable[..., Exception] = {
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
    told = dict(error.get("details") or {}) if make is CopyMoved else {}
    text = cause if make in (BadInput, TooMuch, TooLate, FilesMissing) else f"{who}: {cause}"
    return make(text, step, **{**told, "code": code})

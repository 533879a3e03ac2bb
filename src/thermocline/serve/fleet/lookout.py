"""A Lookout between the keeper and the router: as plain JSON values, and back.

All moments are in UTC and say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from thermocline.serve.terms import FileStat, Head, Held, Lookout

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = "whole"


def written(lookout: Lookout) -> dict[str, Any]:
    """The Lookout as JSON values. `read` gives it back equal."""
    return {
        **still(lookout),
        "heads": {table: _head(head) for table, head in lookout.heads.items()},
        "held": {
            node: {table: _held(copy) for table, copy in copies.items()}
            for node, copies in lookout.held.items()
        },
    }


def still(lookout: Lookout) -> dict[str, Any]:
    """All that there is to tell whoever has a Lookout of this epoch already."""
    return {"epoch": lookout.epoch, "looked_at": lookout.looked_at.isoformat()}


def read(given: Mapping[str, Any], known: Lookout | None = None) -> Lookout:
    """The Lookout that `written` wrote, or the known one with what `still` says of it."""
    looked_at = datetime.fromisoformat(given["looked_at"])
    if "heads" not in given and known is not None:
        return replace(known, epoch=given["epoch"], looked_at=looked_at)
    return Lookout(
        epoch=given["epoch"],
        looked_at=looked_at,
        heads={table: _read_head(table, head) for table, head in given["heads"].items()},
        held={
            node: {table: read_held(copy) for table, copy in copies.items()}
            for node, copies in given["held"].items()
        },
    )


def read_held(given: Mapping[str, Any]) -> Held:
    """A node's copy from JSON values, where the snapshot is text or a number."""
    return Held(
        snapshot=int(given["snapshot"]),
        since=_moment(given.get("since")),
        rows=given.get("rows", 0),
        bytes=given.get("bytes", 0),
    )


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def _held(copy: Held) -> dict[str, Any]:
    return {
        "snapshot": str(copy.snapshot),
        "since": copy.since.isoformat() if copy.since else None,
        "rows": copy.rows,
        "bytes": copy.bytes,
    }


def _head(head: Head) -> dict[str, Any]:
    return {
        "uuid": head.uuid,
        "snapshot": str(head.snapshot),
        "metadata": head.metadata,
        "committed_at": head.committed_at.isoformat(),
        "columns": dict(head.columns),
        "time": head.time,
        "snapshots": [str(snapshot) for snapshot in head.snapshots],
        "files": [[f.bytes, f.rows, _micros(f.low), _micros(f.high), f.id] for f in head.files],
        "hot": _WHOLE if head.hot is not None and math.isinf(head.hot) else head.hot,
        "alike": head.alike,
        "deletes": head.deletes,
    }


def _read_head(table: str, given: Mapping[str, Any]) -> Head:
    return Head(
        table=table,
        uuid=given["uuid"],
        snapshot=int(given["snapshot"]),
        metadata=given["metadata"],
        committed_at=datetime.fromisoformat(given["committed_at"]),
        columns=given["columns"],
        time=given["time"],
        snapshots=tuple(int(snapshot) for snapshot in given["snapshots"]),
        files=tuple(
            FileStat(size, rows, moment(low), moment(high), id_)
            for size, rows, low, high, id_ in given["files"]
        ),
        hot=math.inf if given["hot"] == _WHOLE else given["hot"],
        alike=given["alike"],
        deletes=given["deletes"],
    )


def _micros(at: datetime | None) -> int | None:
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1)


def moment(micros: int | None) -> datetime | None:
    """The moment so many microseconds after 1970; None where no datetime can hold it."""
    if micros is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None

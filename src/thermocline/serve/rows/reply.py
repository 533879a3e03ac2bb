"""Parse a query request to a worker, and build its reply."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from thermocline.serve.rows.encode import encode
from thermocline.serve.wire.jobs import WorkerError

FORMATS = ("json", "arrow", "csv", "trino")


def parse_request(request: Mapping[str, Any]) -> tuple[str, Any, int, int]:
    """Return SQL, format, row limit and byte limit of a request.

    Raises WorkerError when one is missing.
    """
    sql, format_ = request.get("sql"), request.get("format", "json")
    rows, size = request.get("rows"), request.get("bytes")
    if (
        not isinstance(sql, str)
        or format_ not in FORMATS
        or not isinstance(rows, int)
        or not isinstance(size, int)
        or not isinstance(request.get("tables"), dict)
    ):
        raise WorkerError("query", "A query needs sql, tables, format, rows and bytes.")
    return sql, format_, rows, size


def build_reply(
    table: pa.Table, format_: Any, began: float, read: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """Encode a result; return the header of the reply and its body.

    The query began at `began`; `read` has further fields on what it read.
    """
    executed = time.perf_counter()
    columns, body = encode(table, format_)
    ms = {
        "execute": round((executed - began) * 1e3, 3),
        "encode": round((time.perf_counter() - executed) * 1e3, 3),
    }
    return {"columns": columns, "count": table.num_rows, "ms": ms, **read}, body


def requested_snapshots(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the snapshots that a request names, for a worker that reads exactly those."""
    tables = request["tables"].values()
    return {"snapshots": {of["table"]: str(of["snapshot"]) for of in tables}}

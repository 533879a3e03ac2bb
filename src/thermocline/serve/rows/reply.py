"""What every worker takes from a request, and what it says of its rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from thermocline.serve.rows.encode import encode
from thermocline.serve.wire.jobs import Failed

FORMATS = ("json", "arrow", "csv", "trino")


def checked(request: Mapping[str, Any]) -> tuple[str, Any, int, int]:
    """The SQL, format, most rows and most bytes of a request, or Failed when one is missing."""
    sql, format_ = request.get("sql"), request.get("format", "json")
    rows, size = request.get("rows"), request.get("bytes")
    if (
        not isinstance(sql, str)
        or format_ not in FORMATS
        or not isinstance(rows, int)
        or not isinstance(size, int)
        or not isinstance(request.get("tables"), dict)
    ):
        raise Failed("query", "A query needs sql, tables, format, rows and bytes.")
    return sql, format_, rows, size


def reply(
    table: pa.Table, format_: Any, began: float, read: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """What a worker says of rows, and the rows encoded.

    The query began at `began`; `read` is what more there is to say of what it read.
    """
    executed = time.perf_counter()
    columns, body = encode(table, format_)
    ms = {
        "execute": round((executed - began) * 1e3, 3),
        "encode": round((time.perf_counter() - executed) * 1e3, 3),
    }
    return {"columns": columns, "count": table.num_rows, "ms": ms, **read}, body


def as_asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker read that reads exactly the snapshots that a request names."""
    tables = request["tables"].values()
    return {"snapshots": {of["table"]: str(of["snapshot"]) for of in tables}}

"""The result of a statement: rows, and changes of the client's session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thermocline.serve.trino import type_names
from thermocline.serve.trino.catalog_tables import Cell


@dataclass(frozen=True)
class StatementResult:
    """The result of a statement. `body` has one JSON array per row, each on its own line.

    `headers` change the client's session; `update` names a statement that is not a query.
    """

    columns: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)
    count: int
    headers: Mapping[str, str] = field(default_factory=dict)
    update: str | None = None

    def describe_columns(self) -> list[dict[str, Any]]:
        """Return the columns in Trino's JSON."""
        return [
            {"name": name, "type": kind, "typeSignature": type_names.type_signature(kind)}
            for name, kind in self.columns
        ]


def table_result(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Cell]]
) -> StatementResult:
    """Return the result of a statement whose rows are known."""
    lines = [json.dumps(list(row), ensure_ascii=False) for row in rows]
    return StatementResult(tuple(columns), "\n".join(lines).encode(), len(lines))


def session_result(update: str, headers: Mapping[str, str] | None = None) -> StatementResult:
    """Return the result of a statement that only changes the session."""
    return StatementResult((), b"", 0, headers or {}, update)

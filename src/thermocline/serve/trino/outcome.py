"""What a statement comes to: rows, and what the client is to remember of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thermocline.serve.trino import kinds
from thermocline.serve.trino.catalog_tables import Cell


@dataclass(frozen=True)
class Outcome:
    """The end of a statement. `body` is one JSON array a row, each on its own line.

    `headers` change the client's session; `update` names a statement that is not a query.
    """

    columns: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)
    count: int
    headers: Mapping[str, str] = field(default_factory=dict)
    update: str | None = None

    def described(self) -> list[dict[str, Any]]:
        """The columns as clients read them."""
        return [
            {"name": name, "type": kind, "typeSignature": kinds.signature(kind)}
            for name, kind in self.columns
        ]


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Cell]]) -> Outcome:
    """Rows that are known here."""
    lines = [json.dumps(list(row), ensure_ascii=False) for row in rows]
    return Outcome(tuple(columns), "\n".join(lines).encode(), len(lines))


def done(update: str, headers: Mapping[str, str] | None = None) -> Outcome:
    """A statement that only changes the session."""
    return Outcome((), b"", 0, headers or {}, update)

"""Pieces of work, and what came of them, as values that fit into a line of JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from thermocline.errors import BadInput
from thermocline.lake.naming import validate_ref_name, validate_table_name
from thermocline.transform.inputs import Span
from thermocline.transform.target_parts import Touched

_READ: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "decimal": Decimal,
}
VERSION = 1


@dataclass(frozen=True)
class Piece:
    """Some partitions of a table, to be computed from fixed snapshots and put on a run's branch.

    Without `parts` it is the whole step, in the way and with the bookmark that `whole` says.
    """

    run: str
    table: str
    branch: str
    base: int
    spans: Mapping[str, Span]
    parts: Touched | None = None
    whole: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for the same work, whoever hands it out and whenever."""
        said = json.dumps(self.as_dict(), sort_keys=True).encode()
        return f"{self.run}/{hashlib.sha256(said).hexdigest()[:32]}"

    @property
    def title(self) -> str:
        """What it is about, for a person."""
        return ", ".join(self.labels()) if self.parts is not None else self.table

    def labels(self) -> list[str]:
        """Its partitions' names."""
        return [label(values) for values in self.parts.values] if self.parts else []

    def as_dict(self) -> dict[str, Any]:
        """For programs, and for a line of JSON."""
        parts = self.parts and {
            "columns": list(self.parts.columns),
            "values": [[written_value(value) for value in values] for values in self.parts.values],
        }
        return {
            "version": VERSION,
            "run": self.run,
            "table": self.table,
            "branch": self.branch,
            "base": self.base,
            "spans": {s.table: [s.start, s.end] for s in self.spans.values()},
            "parts": parts,
            "whole": dict(self.whole),
        }

    @classmethod
    def from_dict(cls, said: Any) -> Piece:
        """A piece as `as_dict` gave it; anything else is BadInput."""
        try:
            if said["version"] != VERSION:
                raise ValueError(f"version {said['version']}")
            spans = {t: Span(validate_table_name(t), start, int(end))
                     for t, (start, end) in said["spans"].items()}  # fmt: skip
            parts = said["parts"] and Touched(
                tuple(said["parts"]["columns"]),
                tuple(tuple(read_value(v) for v in values) for values in said["parts"]["values"]),
            )
            return cls(
                str(said["run"]),
                validate_table_name(said["table"]),
                validate_ref_name(said["branch"]),
                int(said["base"]),
                spans,
                parts,
                dict(said["whole"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(
                f"This is not a piece of work: {error}",
                "Pass on a line that `thermo backfill --hand-out` printed, unchanged.",
            ) from error


@dataclass(frozen=True)
class Done:
    """What came of a piece: the snapshot that holds it, and what it took."""

    snapshot: int
    rows: int = 0
    files: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    way: str = ""
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For programs, and for a line of JSON."""
        return dict(vars(self))


def cut(parts: Touched, batch: int) -> Iterator[Touched]:
    """The parts, so many at a time."""
    for first in range(0, len(parts.values), batch):
        yield Touched(parts.columns, parts.values[first : first + batch])


def label(values: Sequence[Any]) -> str:
    """A partition's name, as people write it."""
    return "/".join("null" if value is None else str(value) for value in values)


def speakable(parts: Touched) -> bool:
    """Whether a piece can say these parts."""
    kinds = (str, bool, int, float, date, Decimal)
    return all(v is None or isinstance(v, kinds) for values in parts.values for v in values)


def written_value(value: Any) -> Any:
    """A value of a partition as JSON can say it."""
    if isinstance(value, datetime):
        return {"timestamp": value.isoformat()}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def read_value(said: Any) -> Any:
    """The value that `written_value` wrote."""
    if not isinstance(said, dict):
        return said
    ((kind, text),) = said.items()
    return _READ[kind](text)

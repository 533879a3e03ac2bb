"""Work units and their results, as values that fit into a line of JSON."""

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
from thermocline.transform.inputs import SourceSpan
from thermocline.transform.target_parts import TouchedParts

_DECODERS: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "decimal": Decimal,
}
VERSION = 1


@dataclass(frozen=True)
class WorkUnit:
    """Partitions of a table to compute from fixed snapshots and to commit to a run's branch.

    Without `parts` it is a whole step; `whole` holds its refresh mode, bookmark and base snapshots.
    """

    run: str
    table: str
    branch: str
    base: int
    spans: Mapping[str, SourceSpan]
    parts: TouchedParts | None = None
    whole: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The idempotency key: equal for equal work."""
        text = json.dumps(self.as_dict(), sort_keys=True).encode()
        return f"{self.run}/{hashlib.sha256(text).hexdigest()[:32]}"

    @property
    def title(self) -> str:
        """The partitions or the table that it computes, for people."""
        return ", ".join(self.labels()) if self.parts is not None else self.table

    def labels(self) -> list[str]:
        """Return the names of its partitions."""
        return [format_partition(values) for values in self.parts.values] if self.parts else []

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        parts = self.parts and {
            "columns": list(self.parts.columns),
            "values": [[encode_value(value) for value in values] for values in self.parts.values],
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
    def from_dict(cls, values: Any) -> WorkUnit:
        """Read a unit from the values of `as_dict`; raise BadInput for anything else."""
        try:
            if values["version"] != VERSION:
                raise ValueError(f"version {values['version']}")
            spans = {t: SourceSpan(validate_table_name(t), start, int(end))
                     for t, (start, end) in values["spans"].items()}  # fmt: skip
            parts = values["parts"] and TouchedParts(
                tuple(values["parts"]["columns"]),
                tuple(tuple(decode_value(v) for v in part) for part in values["parts"]["values"]),
            )
            return cls(
                str(values["run"]),
                validate_table_name(values["table"]),
                validate_ref_name(values["branch"]),
                int(values["base"]),
                spans,
                parts,
                dict(values["whole"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(
                f"This is not a work unit: {error}",
                "Pass on a line that `thermo backfill --hand-out` printed, unchanged.",
            ) from error


@dataclass(frozen=True)
class WorkResult:
    """The result of a work unit: the snapshot that holds it, and its cost."""

    snapshot: int
    rows: int = 0
    files: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    refresh_mode: str = ""
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(vars(self))


def split_parts(parts: TouchedParts, batch: int) -> Iterator[TouchedParts]:
    """Split the parts into batches."""
    for first in range(0, len(parts.values), batch):
        yield TouchedParts(parts.columns, parts.values[first : first + batch])


def format_partition(values: Sequence[Any]) -> str:
    """Format a partition's name for people."""
    return "/".join("null" if value is None else str(value) for value in values)


def is_serializable(parts: TouchedParts) -> bool:
    """Return whether a work unit can hold these parts."""
    kinds = (str, bool, int, float, date, Decimal)
    return all(v is None or isinstance(v, kinds) for values in parts.values for v in values)


def encode_value(value: Any) -> Any:
    """Encode a partition's value for JSON."""
    if isinstance(value, datetime):
        return {"timestamp": value.isoformat()}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def decode_value(encoded: Any) -> Any:
    """Decode a value that `encode_value` encoded."""
    if not isinstance(encoded, dict):
        return encoded
    ((kind, text),) = encoded.items()
    return _DECODERS[kind](text)

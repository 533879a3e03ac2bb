"""The changes between two snapshots, as a value that renders as text, HTML and JSON."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from thermocline.engine import arrow
from thermocline.engine.frames import ArrowConvertible
from thermocline.lake import rowdiff

_SHOWN_ROWS = 10


class ChangedCell(NamedTuple):
    """One value of one row that changed."""

    key: tuple[Any, ...]
    column: str
    old: Any
    new: Any


@dataclass(frozen=True)
class ChangeSet(ArrowConvertible):
    """The net row changes from one snapshot of a table to another.

    `inserts` and `deletes` are rows; `before` and `after` are the two sides of the updates, row by
    row. Without a key there are no updates: a changed row is one delete and one insert. All four
    tables have the same columns, in the canonical Arrow form.
    """

    table: str
    start: int | None
    end: int
    key: tuple[str, ...]
    inserts: pa.Table
    deletes: pa.Table
    before: pa.Table
    after: pa.Table

    @property
    def columns(self) -> list[str]:
        """The compared columns."""
        return list(self.inserts.column_names)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows were inserted, updated and deleted."""
        return {
            "inserts": self.inserts.num_rows,
            "updates": self.after.num_rows,
            "deletes": self.deletes.num_rows,
        }

    @property
    def is_empty(self) -> bool:
        """Whether both snapshots hold the same rows."""
        return not any(self.counts.values())

    def changed_cells(self) -> Iterator[ChangedCell]:
        """Yield each value that an update changed, by row and column."""
        names = [name for name in self.columns if name not in self.key]
        if not names or not self.after.num_rows:
            return
        masks = [rowdiff.differing_mask(self.before[name], self.after[name]) for name in names]
        for row, column in np.argwhere(np.stack(masks, axis=1)).tolist():
            name = names[column]
            key = tuple(self.after[part][row].as_py() for part in self.key)
            yield ChangedCell(
                key, name, self.before[name][row].as_py(), self.after[name][row].as_py()
            )

    def as_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return the changes as JSON, at most `limit` rows of each kind; counts are exact."""
        pairs = zip(
            arrow.to_json_rows(self.before, limit),
            arrow.to_json_rows(self.after, limit),
            strict=True,
        )
        return {
            "table": self.table,
            "start": self.start,
            "end": self.end,
            "key": list(self.key),
            "columns": self.columns,
            "counts": self.counts,
            "inserts": list(arrow.to_json_rows(self.inserts, limit)),
            "updates": [{"before": before, "after": after} for before, after in pairs],
            "deletes": list(arrow.to_json_rows(self.deletes, limit)),
        }

    def to_arrow(self) -> pa.Table:
        """Return one Arrow table: its column `change` is insert, delete, before or after."""
        parts = {
            "insert": self.inserts, "delete": self.deletes,
            "before": self.before, "after": self.after,
        }  # fmt: skip
        names = [pa.repeat(name, rows.num_rows) for name, rows in parts.items()]
        rows = pa.concat_tables(parts.values())
        return rows.add_column(0, _change_column_name(rows), pa.chunked_array(names))

    def __repr__(self) -> str:
        counts = ", ".join(f"{number:,} {kind}" for kind, number in self.counts.items())
        return f"<ChangeSet {self.table} {self.start or 'empty'}→{self.end}: {counts}>"

    def _repr_html_(self) -> str:
        rows = [
            *(("+", row, {}) for row in arrow.to_json_rows(self.inserts, _SHOWN_ROWS)),
            *_html_updates(self),
            *(("−", row, {}) for row in arrow.to_json_rows(self.deletes, _SHOWN_ROWS)),
        ]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *self.columns))
        body = "".join(
            f"<tr><td>{sign}</td>"
            + "".join(f"<td>{_html_cell(row, old, name)}</td>" for name in self.columns)
            + "</tr>"
            for sign, row, old in rows
        )
        title = html.escape(repr(self)[1:-1])
        return f"<table><caption>{title}</caption><tr>{head}</tr>{body}</table>"


def _change_column_name(rows: pa.Table) -> str:
    """Return "change", with leading underscores if the rows have a column of that name."""
    name = "change"
    while name in rows.column_names:
        name = f"_{name}"
    return name


def _html_updates(changes: ChangeSet) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    before = arrow.to_json_rows(changes.before, _SHOWN_ROWS)
    for old, new in zip(before, arrow.to_json_rows(changes.after, _SHOWN_ROWS), strict=True):
        yield "~", new, {name: value for name, value in old.items() if value != new[name]}


def _html_cell(row: dict[str, Any], old: dict[str, Any], name: str) -> str:
    new = html.escape(str(row[name]))
    return f"<s>{html.escape(str(old[name]))}</s> {new}" if name in old else new

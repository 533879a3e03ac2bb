"""The input of a SQL model's step: its sources at fixed snapshots, or only their changes.

This module decides what to read, in the same way for every engine; an `InputReader` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from thermocline.contract.definition import WriteMode
from thermocline.lake.changes import diff_snapshots, has_only_appends
from thermocline.transform import target_parts
from thermocline.transform.models import Model, find_table_references
from thermocline.transform.part_verification import sample_values
from thermocline.transform.target_parts import CHANGED, EITHER, TouchedParts

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp

    from thermocline.lake import Lake
    from thermocline.transform.impact import TouchQuery

MAX_COMPARED_PARTS = 10_000
"""Most parts to compare: every reader receives their names."""
R = TypeVar("R")
"""An engine's lazy rows."""


@dataclass(frozen=True)
class SourceSpan:
    """A source from the snapshot that was last read (None: never) to the one to read now."""

    table: str
    start: int | None
    end: int

    @property
    def has_changed(self) -> bool:
        """Whether the source changed since it was last read."""
        return self.start != self.end


class InputReader(Protocol[R]):
    """An engine that reads tables and runs queries over them."""

    def read_snapshot(self, table: str, snapshot: int) -> R:
        """Return a table's rows at a snapshot."""
        ...

    def read_appended(self, span: SourceSpan) -> R:
        """Return the rows that were added in a span of appends only."""
        ...

    def add_changed(self, rows: pa.Table, table: str) -> R:
        """Make images of a table's changed rows, with the column OLD, readable by the engine."""
        ...

    def add_old_images(self, rows: R, changed: R) -> R:
        """Return the rows together with the old images among the changed rows."""
        ...

    def filter_values(self, rows: R, column: str, values: Sequence[Any], *, days: bool) -> R | None:
        """Return the rows whose column has one of the values, or lies in one of the days.

        None if the column's type does not allow a safe comparison.
        """
        ...

    def create_view(self, rows: R) -> str:
        """Create a view of the rows and return its name."""
        ...

    def run_query(self, query: exp.Query) -> R:
        """Run a query over views."""
        ...

    def find_parts(self, rows: R, model: Model, columns: Sequence[str], most: int) -> set[Any]:
        """Return the parts of the target that rows lie in; stops after more than `most`."""
        ...

    def filter_parts(self, rows: R, model: Model, touched: TouchedParts) -> R:
        """Return a model's rows of the touched parts."""
        ...

    def sample_rows(self, rows: R, share: float, most: int) -> R:
        """Return a random share of rows, at most `most`."""
        ...

    def find_differing(
        self, rows: R, stored: R, model: Model, columns: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """Return the parts in which a model's rows differ from its table's rows."""
        ...

    def close(self) -> None:
        """Drop the views."""
        ...


@dataclass
class Inputs(Generic[R]):
    """The input of one step of a SQL model."""

    lake: Lake
    model: Model
    spans: Mapping[str, SourceSpan]
    reader: InputReader[R]
    _deltas: dict[str, pa.Table] = field(default_factory=dict)

    def read_all(self) -> R:
        """Return the model's rows, computed from all rows of its sources."""
        return self._run_query(self.model.query(), self._read_sources())

    def read_new(self) -> R | None:
        """Return the model's rows, computed from new input rows; None if they do not suffice.

        They do not when a source lost or changed rows: a row-by-row model cannot retract the rows
        that it returned for them before.
        """
        spans = self.spans.values()
        if not all(is_append_only(self.lake, span) for span in spans if span.has_changed):
            return None
        frames = {span.table: self.reader.read_appended(span) for span in spans}
        return self._run_query(self.model.query(), frames)

    def find_touched(self, columns: Sequence[str], most: int) -> TouchedParts | None:
        """Return the target parts that the changes can touch; None if more than `most`."""
        found: set[tuple[Any, ...]] = set()
        for touch in target_parts.analyze_model(self.model).touches:
            span = self.spans[touch.table]
            if not span.has_changed or not self._read_delta(span).num_rows:
                continue
            name_parts = self._name_parts(touch, columns)
            found |= self._query_parts(touch, columns, most) if name_parts is None else name_parts
            if len(found) > most:
                return None
        return TouchedParts.of(columns, found)

    def find_all_parts(self, columns: Sequence[str], most: int) -> TouchedParts | None:
        """Return the parts that the model has rows in; None if more than `most`."""
        rows = self.read_all()
        found = self.reader.find_parts(rows, self.model, columns, most)
        return None if len(found) > most else TouchedParts.of(columns, found)

    def read_parts(self, touched: TouchedParts) -> R:
        """Return the model's rows of the touched parts, from source rows that can reach them."""
        query = self.model.query()
        self._prune_sources(query, touched)
        rows = self._run_query(query, self._read_sources())
        return self.reader.filter_parts(rows, self.model, touched)

    def sample_parts(
        self, columns: Sequence[str], snapshot: int, share: float
    ) -> set[tuple[Any, ...]]:
        """Return a random share of the parts with rows in the table at a snapshot or the model."""
        found: set[tuple[Any, ...]] = set()
        keyed = self.model.contract.write is WriteMode.MERGE
        for rows in (self.reader.read_snapshot(self.model.table, snapshot), self.read_all()):
            some = self.reader.sample_rows(rows, share, MAX_COMPARED_PARTS) if keyed else rows
            found |= self.reader.find_parts(some, self.model, columns, MAX_COMPARED_PARTS)
        return found if keyed else sample_values(found, share)

    def find_differing(self, target_parts: TouchedParts, snapshot: int) -> list[tuple[Any, ...]]:
        """Return those parts whose rows at a snapshot differ from the model's rows."""
        rows, stored = (
            self.reader.filter_parts(each, self.model, target_parts)
            for each in (self.read_all(), self.reader.read_snapshot(self.model.table, snapshot))
        )
        return self.reader.find_differing(rows, stored, self.model, target_parts.columns)

    def close(self) -> None:
        """Release the resources that were created for reading."""
        self.reader.close()

    def _name_parts(self, touch: TouchQuery, columns: Sequence[str]) -> set[tuple[Any, ...]] | None:
        """Return the parts that a column of the changed rows names; None if it takes a query."""
        changed = self._read_delta(self.spans[touch.table])
        if not touch.column:
            return None
        name = self._column_name(touch.table, touch.column)
        days = touch.day or target_parts.is_by_day(self.model, columns[0])
        return target_parts.name_parts(changed[name], days=days)

    def _query_parts(
        self, touch: TouchQuery, columns: Sequence[str], most: int
    ) -> set[tuple[Any, ...]]:
        """Return the parts that a query finds for changed rows; stops after more than `most`."""
        rows = self._run_query(touch.query.copy(), self._read_sources())
        return self.reader.find_parts(rows, self.model, columns, most)

    def _column_name(self, table: str, column: str) -> str:
        """Return a column's name as its table spells it; queries may use any case."""
        return next(n for n in self.model.columns[table] if n.lower() == column)

    def _prune_sources(self, query: exp.Query, touched: TouchedParts) -> None:
        """Prune the query's sources to rows that can reach the touched parts."""
        from thermocline.transform import impact

        if self.model.contract.write is not WriteMode.PARTITIONS or len(touched.columns) != 1:
            return
        values = [value for (value,) in touched.values]
        is_by_day = target_parts.is_by_day(self.model, touched.columns[0])
        mentions = impact.find_stored_tables(query)
        for each in target_parts.analyze_model(self.model).filters:
            span = self.spans[each.table]
            rows = self.reader.read_snapshot(span.table, span.end)
            column = self._column_name(each.table, each.column)
            filtered = self.reader.filter_values(rows, column, values, days=is_by_day or each.day)
            if filtered is not None:
                _point_to_view(mentions[each.position], self.reader.create_view(filtered))

    def _run_query(self, query: exp.Query, frames: Mapping[str, R]) -> R:
        """Run a query with its tables replaced by views of the frames."""
        views: dict[str, str] = {}
        for reference in find_table_references(query):
            if reference.db:
                name = f"{reference.db}.{reference.name}"
                if name not in views:
                    views[name] = self.reader.create_view(
                        self._resolve_reference(reference, frames)
                    )
                _point_to_view(reference, views[name])
        return self.reader.run_query(query)

    def _resolve_reference(self, reference: exp.Table, frames: Mapping[str, R]) -> R:
        """Return the rows of a table reference: all rows, changed rows, or current and old rows."""
        if reference.db not in {CHANGED, EITHER}:
            return frames[f"{reference.db}.{reference.name}"]
        changed = self.reader.add_changed(
            self._read_delta(self.spans[reference.name]), reference.name
        )
        if reference.db == CHANGED:
            return changed
        return self.reader.add_old_images(frames[reference.name], changed)

    def _read_sources(self) -> dict[str, R]:
        return {s.table: self.reader.read_snapshot(s.table, s.end) for s in self.spans.values()}

    def _read_delta(self, span: SourceSpan) -> pa.Table:
        """Return old and new images of changed rows, in the columns that the model reads."""
        import pyarrow as pa

        from thermocline.transform import impact

        if span.table not in self._deltas:
            table = self.lake.iceberg(span.table)
            available = [f["name"] for f in self.lake.state(span.table).schema["fields"]]
            columns = impact.find_columns_read(self.model.query(), available) or available[:1]
            found = diff_snapshots(table, span.start, span.end, columns=columns)
            rows = pa.concat_tables([found.inserts, found.deletes])
            old = pa.array([False] * found.inserts.num_rows + [True] * found.deletes.num_rows)
            self._deltas[span.table] = rows.append_column(target_parts.OLD, old)
        return self._deltas[span.table]


def is_append_only(lake: Lake, span: SourceSpan) -> bool:
    """Return whether a span of a source has only appends."""
    return has_only_appends(lake.state(span.table), span.start, span.end)


def _point_to_view(reference: exp.Table, view: str) -> None:
    """Point a table reference to a view, and keep the name that the query uses for it."""
    from thermocline.engine.view_rewrite import replace_with_view

    replace_with_view(reference, view)

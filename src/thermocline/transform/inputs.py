"""What a step of a SQL model reads: its sources at fixed snapshots, or only what changed in them.

What is to be read is decided here, for every engine alike; a `Reader` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from thermocline.contract.definition import WriteMode
from thermocline.lake.changes import diff_snapshots, has_only_appends
from thermocline.transform import target_parts
from thermocline.transform.models import Model, table_references
from thermocline.transform.part_verification import some_of
from thermocline.transform.target_parts import CHANGED, EITHER, Touched

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp

    from thermocline.lake import Lake
    from thermocline.transform.impact import Touch

MOST_COMPARED = 10_000
"""So many parts are compared at the most; their names are sent to all who read."""
R = TypeVar("R")
"""An engine's rows that are yet to be computed."""


@dataclass(frozen=True)
class Span:
    """A source between the snapshot last read (None: never) and the one to read now."""

    table: str
    start: int | None
    end: int

    @property
    def moved(self) -> bool:
        """Whether there is anything to read that was not read before."""
        return self.start != self.end


class Reader(Protocol[R]):
    """An engine that reads tables and runs queries over them."""

    def at(self, table: str, snapshot: int) -> R:
        """A table's rows at a snapshot."""
        ...

    def appended(self, span: Span) -> R:
        """The rows that a source got in a span in which rows were only added."""
        ...

    def changed(self, rows: pa.Table, table: str) -> R:
        """Images of a table's changed rows, with the column OLD."""
        ...

    def with_old(self, rows: R, changed: R) -> R:
        """Rows, and those of the changed ones that are old images."""
        ...

    def within(self, rows: R, column: str, values: Sequence[Any], *, days: bool) -> R | None:
        """The rows whose column has one of the values, or lies in one of the days.

        None where the column's type leaves a doubt.
        """
        ...

    def view(self, rows: R) -> str:
        """A name by which a query can read rows."""
        ...

    def select(self, query: exp.Query) -> R:
        """What a query gives whose tables are views."""
        ...

    def target_parts(self, rows: R, model: Model, columns: Sequence[str], most: int) -> set[Any]:
        """The parts of the target that rows lie in, or some more than `most` of them."""
        ...

    def of_parts(self, rows: R, model: Model, touched: Touched) -> R:
        """A model's rows of the touched parts."""
        ...

    def some(self, rows: R, share: float, most: int) -> R:
        """A random share of rows, and no more than `most`."""
        ...

    def differing(
        self, rows: R, held: R, model: Model, columns: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """The parts in which a model's rows are not those that its table holds."""
        ...

    def close(self) -> None:
        """Drop the views."""
        ...


@dataclass
class Inputs(Generic[R]):
    """The sources of one step of a SQL model."""

    lake: Lake
    model: Model
    spans: Mapping[str, Span]
    reader: Reader[R]
    _deltas: dict[str, pa.Table] = field(default_factory=dict)

    def everything(self) -> R:
        """The model's rows computed from all rows of its sources."""
        return self._select(self.model.query(), self._whole())

    def new_rows(self) -> R | None:
        """The model's rows computed from new input rows alone; None if that is not enough.

        It is not when a source lost or changed rows: a row-by-row model cannot take back what it
        gave for them before.
        """
        spans = self.spans.values()
        if not all(appended_only(self.lake, span) for span in spans if span.moved):
            return None
        frames = {span.table: self.reader.appended(span) for span in spans}
        return self._select(self.model.query(), frames)

    def touched(self, columns: Sequence[str], most: int) -> Touched | None:
        """Which values of the target columns the changes can touch; None when more than `most`."""
        found: set[tuple[Any, ...]] = set()
        for touch in target_parts.impact_of(self.model).touches:
            span = self.spans[touch.table]
            if not span.moved or not self._delta(span).num_rows:
                continue
            named = self._named(touch, columns)
            found |= self._asked(touch, columns, most) if named is None else named
            if len(found) > most:
                return None
        return Touched.of(columns, found)

    def every_part(self, columns: Sequence[str], most: int) -> Touched | None:
        """The parts that the model has rows in; None when there are more than `most`."""
        rows = self.everything()
        found = self.reader.target_parts(rows, self.model, columns, most)
        return None if len(found) > most else Touched.of(columns, found)

    def only(self, touched: Touched) -> R:
        """The model's rows of the touched parts, from the source rows that can reach them."""
        query = self.model.query()
        self._narrow(query, touched)
        rows = self._select(query, self._whole())
        return self.reader.of_parts(rows, self.model, touched)

    def some_parts(
        self, columns: Sequence[str], snapshot: int, share: float
    ) -> set[tuple[Any, ...]]:
        """A random share of the parts that the table at a snapshot or the model has rows in."""
        found: set[tuple[Any, ...]] = set()
        keyed = self.model.contract.write is WriteMode.MERGE
        for rows in (self.reader.at(self.model.table, snapshot), self.everything()):
            some = self.reader.some(rows, share, MOST_COMPARED) if keyed else rows
            found |= self.reader.target_parts(some, self.model, columns, MOST_COMPARED)
        return found if keyed else some_of(found, share)

    def differing(self, target_parts: Touched, snapshot: int) -> list[tuple[Any, ...]]:
        """Those of some parts whose rows at a snapshot are not what the model gives."""
        rows, held = (
            self.reader.of_parts(each, self.model, target_parts)
            for each in (self.everything(), self.reader.at(self.model.table, snapshot))
        )
        return self.reader.differing(rows, held, self.model, target_parts.columns)

    def close(self) -> None:
        """Let go of what was made to read them."""
        self.reader.close()

    def _named(self, touch: Touch, columns: Sequence[str]) -> set[tuple[Any, ...]] | None:
        """The parts that changed rows name themselves; None where a query must be asked."""
        changed = self._delta(self.spans[touch.table])
        if not touch.column:
            return None
        name = self._written(touch.table, touch.column)
        days = touch.day or target_parts.by_day(self.model, columns[0])
        return target_parts.named(changed[name], days=days)

    def _asked(self, touch: Touch, columns: Sequence[str], most: int) -> set[tuple[Any, ...]]:
        """The parts that a query gives for changed rows, or some more than `most` of them."""
        rows = self._select(touch.query.copy(), self._whole())
        return self.reader.target_parts(rows, self.model, columns, most)

    def _written(self, table: str, column: str) -> str:
        """A column's name as its table has it, which queries may write in any case."""
        return next(n for n in self.model.columns[table] if n.lower() == column)

    def _narrow(self, query: exp.Query, touched: Touched) -> None:
        """Have the query read only rows of the touched parts where its text says which they are."""
        from thermocline.transform import impact

        if self.model.contract.write is not WriteMode.PARTITIONS or len(touched.columns) != 1:
            return
        values = [value for (value,) in touched.values]
        by_day = target_parts.by_day(self.model, touched.columns[0])
        mentions = impact.stored_tables(query)
        for each in target_parts.impact_of(self.model).filters:
            span = self.spans[each.table]
            rows = self.reader.at(span.table, span.end)
            column = self._written(each.table, each.column)
            few = self.reader.within(rows, column, values, days=by_day or each.day)
            if few is not None:
                _replace(mentions[each.place], self.reader.view(few))

    def _select(self, query: exp.Query, frames: Mapping[str, R]) -> R:
        """Run a query with its tables replaced by views of the frames."""
        views: dict[str, str] = {}
        for reference in table_references(query):
            if reference.db:
                said = f"{reference.db}.{reference.name}"
                if said not in views:
                    views[said] = self.reader.view(self._frame(reference, frames))
                _replace(reference, views[said])
        return self.reader.select(query)

    def _frame(self, reference: exp.Table, frames: Mapping[str, R]) -> R:
        """The rows that a reference stands for: a table's, its changed ones, or both."""
        if reference.db not in {CHANGED, EITHER}:
            return frames[f"{reference.db}.{reference.name}"]
        changed = self.reader.changed(self._delta(self.spans[reference.name]), reference.name)
        if reference.db == CHANGED:
            return changed
        return self.reader.with_old(frames[reference.name], changed)

    def _whole(self) -> dict[str, R]:
        return {s.table: self.reader.at(s.table, s.end) for s in self.spans.values()}

    def _delta(self, span: Span) -> pa.Table:
        """Old and new images of the rows that changed, in the columns that the model reads."""
        import pyarrow as pa

        from thermocline.transform import impact

        if span.table not in self._deltas:
            table = self.lake.iceberg(span.table)
            available = [f["name"] for f in self.lake.state(span.table).schema["fields"]]
            columns = impact.columns_read(self.model.query(), available) or available[:1]
            found = diff_snapshots(table, span.start, span.end, columns=columns)
            rows = pa.concat_tables([found.inserts, found.deletes])
            old = pa.array([False] * found.inserts.num_rows + [True] * found.deletes.num_rows)
            self._deltas[span.table] = rows.append_column(target_parts.OLD, old)
        return self._deltas[span.table]


def appended_only(lake: Lake, span: Span) -> bool:
    """Whether nothing but new rows came to a source in a span."""
    return has_only_appends(lake.state(span.table), span.start, span.end)


def _replace(reference: exp.Table, view: str) -> None:
    """Point a table reference to a view, keeping the name by which the query calls it."""
    from thermocline.engine.view_rewrite import replace_with_view

    replace_with_view(reference, view)

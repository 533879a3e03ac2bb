"""What a step of a Python model reads as polars frames, and the call of its function.

DuckDB reads the tables and writes what the function gave; polars is what the function speaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.arrow import normalize
from thermocline.errors import EngineUnavailable
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.session import Session
from thermocline.transform.inputs import appended_only
from thermocline.transform.model_decorator import How
from thermocline.transform.python_models import CHANGE, PythonInputs, called, changed_rows

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class PolarsInputs(PythonInputs["pa.Table", str]):
    """The sources of one step of a Python model, as polars frames. Its rows are a query."""

    session: Session

    def close(self) -> None:
        """Drop what was made."""
        self.session.clear()

    def _call(self, read: Callable[[str, How], pa.Table]) -> str:
        pl = _polars()
        frames = {
            name: pl.from_arrow(read(each.table, each.how))
            for name, each in self.model.reads.items()
        }
        rows = called(self.model, frames, gives=(pl.DataFrame, pl.LazyFrame))
        given = rows.collect() if isinstance(rows, pl.LazyFrame) else rows
        return f"SELECT * FROM {self.session.register(normalize(given.to_arrow()))}"

    def _whole(self, table: str, how: How) -> pa.Table:
        rows = self.session.table(table, self.spans[table].end)
        return self._read(rows, marked=how is How.CHANGES)

    def _new(self, table: str, how: How) -> pa.Table:
        span = self.spans[table]
        if how is not How.CHANGES:
            return self._whole(table, how)
        if not span.moved or appended_only(self.session.lake, span):
            return self._read(DuckReader(self.session).appended(span), marked=True)
        return changed_rows(self.session.lake, span)

    def _read(self, rows: str, *, marked: bool) -> pa.Table:
        more = f", 'insert' AS {CHANGE}" if marked else ""
        found = self.session.connection.execute(f"SELECT *{more} FROM ({rows})").to_arrow_table()
        return normalize(found)


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise EngineUnavailable(
            "A Python model wants polars, which is not installed.",
            "Install it: pip install 'thermocline[polars]'.",
        ) from error
    return polars

"""The input of a Python model's step as polars frames, and the call of its function.

DuckDB reads the tables and writes the function's rows; the function itself works on polars frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.arrow import normalize
from thermocline.errors import EngineUnavailable
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.session import Session
from thermocline.transform.inputs import is_append_only
from thermocline.transform.model_decorator import ReadMode
from thermocline.transform.python_models import CHANGE, PythonInputs, call_model, read_changed_rows

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class PolarsInputs(PythonInputs["pa.Table", str]):
    """The input of a Python model's step, as polars frames. The function's rows become a query."""

    session: Session

    def close(self) -> None:
        """Drop the views and tables of the step."""
        self.session.clear()

    def _call(self, read: Callable[[str, ReadMode], pa.Table]) -> str:
        pl = _import_polars()
        frames = {
            name: pl.from_arrow(read(each.table, each.mode))
            for name, each in self.model.reads.items()
        }
        rows = call_model(self.model, frames, expected=(pl.DataFrame, pl.LazyFrame))
        collected = rows.collect() if isinstance(rows, pl.LazyFrame) else rows
        return f"SELECT * FROM {self.session.register(normalize(collected.to_arrow()))}"

    def _read_all(self, table: str, mode: ReadMode) -> pa.Table:
        rows = self.session.scan(table, self.spans[table].end)
        return self._read(rows, with_change=mode is ReadMode.CHANGES)

    def _read_new(self, table: str, mode: ReadMode) -> pa.Table:
        span = self.spans[table]
        if mode is not ReadMode.CHANGES:
            return self._read_all(table, mode)
        if not span.has_changed or is_append_only(self.session.lake, span):
            return self._read(DuckReader(self.session).read_appended(span), with_change=True)
        return read_changed_rows(self.session.lake, span)

    def _read(self, rows: str, *, with_change: bool) -> pa.Table:
        more = f", 'insert' AS {CHANGE}" if with_change else ""
        found = self.session.connection.execute(f"SELECT *{more} FROM ({rows})").to_arrow_table()
        return normalize(found)


def _import_polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise EngineUnavailable(
            "A Python model needs polars, which is not installed.",
            "Install it: pip install 'thermocline[polars]'.",
        ) from error
    return polars

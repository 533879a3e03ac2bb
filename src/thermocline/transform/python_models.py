"""Python models: call a model's function, and read the changed rows that it may request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from thermocline.errors import Permanent, ThermoclineError
from thermocline.lake.changes import diff_snapshots
from thermocline.transform.inputs import SourceSpan
from thermocline.transform.model_decorator import ReadMode
from thermocline.transform.models import Model

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.lake import Lake

F = TypeVar("F")
"""A source as the model's function receives it."""
R = TypeVar("R")
"""An engine's lazy rows."""
CHANGE = "_change"
"""The column with the kind of change of a row, in tables read by changes."""


@dataclass
class PythonInputs(Generic[F, R]):
    """The sources of one step of a Python model. Its function computes all rows or the new ones.

    The inputs of a function's rows are unknown, so no part of the target is computed alone.
    """

    model: Model
    spans: Mapping[str, SourceSpan]

    def read_all(self) -> R:
        """Return the model's rows, computed from all rows of its sources."""
        return self._call(self._read_all)

    def read_new(self) -> R | None:
        """Return the model's rows, computed from the changes of the tables read by changes."""
        return self._call(self._read_new)

    def find_touched(self, columns: Sequence[str], most: int) -> None:
        """Return None: the parts that changes touch are unknown."""

    def find_all_parts(self, columns: Sequence[str], most: int) -> None:
        """Return None: the parts that the function has rows in are unknown."""

    def read_parts(self, touched: object) -> R:
        """Never called, because no touched parts are found."""
        raise AssertionError(touched)

    def sample_parts(self, *arguments: object) -> set[tuple[object, ...]]:
        """Never called, because no touched parts are found."""
        raise AssertionError(arguments)

    def find_differing(self, *arguments: object) -> list[tuple[object, ...]]:
        """Never called, because no touched parts are found."""
        raise AssertionError(arguments)

    def close(self) -> None:
        """Release what the step made to read its sources."""

    def _call(self, read: Callable[[str, ReadMode], F]) -> R:
        """Call the function with its sources, each read by `read`."""
        raise NotImplementedError

    def _read_all(self, table: str, mode: ReadMode) -> F:
        raise NotImplementedError

    def _read_new(self, table: str, mode: ReadMode) -> F:
        raise NotImplementedError


def call_model(
    model: Model,
    frames: Mapping[str, Any],
    *,
    expected: type | tuple[type, ...],
    pass_through: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """Call a model's function with its frames; a failure names the line of the model.

    Errors of the types in `pass_through` are raised unchanged.
    """
    path = f"models/{model.contract.layer}/{model.path.name}"
    try:
        rows = model.function()(**frames)
    except ThermoclineError:
        raise
    except Exception as error:
        if isinstance(error, pass_through):
            raise
        # A user's code may raise anything; its author needs the line.
        lines = (f.lineno for f in reversed(extract_tb(error.__traceback__))
                 if f.filename == str(model.path))  # fmt: skip
        raise Permanent(
            f"{path}:{next(lines, 0)}  {type(error).__name__}: {error}",
            "Fix the model. Nothing was published.",
        ) from error
    if not isinstance(rows, expected):
        raise Permanent(
            f"{path}  it returned a {type(rows).__name__}, not a DataFrame.",
            "Return the rows as a DataFrame. Nothing was published.",
        )
    return rows


def read_changed_rows(lake: Lake, span: SourceSpan) -> pa.Table:
    """Return inserted and updated rows as they are now, deleted rows as they were, and CHANGE."""
    import pyarrow as pa

    state = lake.state(span.table)
    key = state.schema.get("identifier-field-ids") or ()
    names = {f["id"]: f["name"] for f in state.schema["fields"]}
    found = diff_snapshots(
        lake.iceberg(span.table), span.start, span.end, key=[names[i] for i in key]
    )
    kinds = (("insert", found.inserts), ("update", found.after), ("delete", found.deletes))
    return pa.concat_tables(
        rows.append_column(CHANGE, pa.array([kind] * rows.num_rows, pa.string()))
        for kind, rows in kinds
    )

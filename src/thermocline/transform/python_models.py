"""Python models: the call of a model's function, and the changed rows that it may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from thermocline.errors import Permanent, ThermoclineError
from thermocline.lake.changes import diff_snapshots
from thermocline.transform.inputs import Span
from thermocline.transform.model_decorator import How
from thermocline.transform.models import Model

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.lake import Lake

F = TypeVar("F")
"""A source as the model's function receives it."""
R = TypeVar("R")
"""An engine's rows that are yet to be computed."""
CHANGE = "_change"
"""The column that says what happened to a row that is read by its changes."""


@dataclass
class PythonInputs(Generic[F, R]):
    """The sources of one step of a Python model. Its function computes all rows or the new ones.

    What a function's rows depend on is unknown, so no parts of the target can be told apart.
    """

    model: Model
    spans: Mapping[str, Span]

    def everything(self) -> R:
        """Return the model's rows, computed from all rows of its sources."""
        return self._call(self._whole)

    def new_rows(self) -> R | None:
        """Return the model's rows, computed from the changes of the tables read by changes."""
        return self._call(self._new)

    def touched(self, columns: Sequence[str], most: int) -> None:
        """Return None: the parts that changes touch are unknown."""

    def every_part(self, columns: Sequence[str], most: int) -> None:
        """Return None: the parts that the function has rows in are unknown."""

    def only(self, touched: object) -> R:
        """Never called, because no touched parts are found."""
        raise AssertionError(touched)

    def some_parts(self, *arguments: object) -> set[tuple[object, ...]]:
        """Never called, because no touched parts are found."""
        raise AssertionError(arguments)

    def differing(self, *arguments: object) -> list[tuple[object, ...]]:
        """Never called, because no touched parts are found."""
        raise AssertionError(arguments)

    def close(self) -> None:
        """Release what the step made to read its sources."""

    def _call(self, read: Callable[[str, How], F]) -> R:
        """Call the function with its sources, each read by `read`."""
        raise NotImplementedError

    def _whole(self, table: str, how: How) -> F:
        raise NotImplementedError

    def _new(self, table: str, how: How) -> F:
        raise NotImplementedError


def called(
    model: Model,
    frames: Mapping[str, Any],
    *,
    gives: type | tuple[type, ...],
    passes: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """What a model's function gives for its frames; a failure names the line of the model.

    Errors of the kinds in `passes` are somebody else's to explain.
    """
    path = f"models/{model.contract.layer}/{model.path.name}"
    try:
        rows = model.function()(**frames)
    except ThermoclineError:
        raise
    except Exception as error:
        if isinstance(error, passes):
            raise
        # A user's code may fail in any way; where it failed is what its author needs.
        lines = (f.lineno for f in reversed(extract_tb(error.__traceback__))
                 if f.filename == str(model.path))  # fmt: skip
        raise Permanent(
            f"{path}:{next(lines, 0)}  {type(error).__name__}: {error}",
            "Mend the model. Nothing was published.",
        ) from error
    if not isinstance(rows, gives):
        raise Permanent(
            f"{path}  it gave a {type(rows).__name__}, not a DataFrame.",
            "Return the rows as a DataFrame. Nothing was published.",
        )
    return rows


def changed_rows(lake: Lake, span: Span) -> pa.Table:
    """Inserted and updated rows as they are now, deleted ones as they were, with CHANGE."""
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

"""Python models: the call of a model's function, and the changed rows that it may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from thermocline.errors import Permanent, ThermoclineError
from thermocline.lake.changes import changes
from thermocline.transform.inputs import Span
from thermocline.transform.models import Model

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.lake import Lake

CHANGE = "_change"
"""The column that says what happened to a row that is read by its changes."""


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
    found = changes(lake.iceberg(span.table), span.start, span.end, key=[names[i] for i in key])
    kinds = (("insert", found.inserts), ("update", found.after), ("delete", found.deletes))
    return pa.concat_tables(
        rows.append_column(CHANGE, pa.array([kind] * rows.num_rows, pa.string()))
        for kind, rows in kinds
    )

"""Fields that the contract does not name, in the form of the `_rescued` column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract, DriftMode
from thermocline.ingest.unambiguous_json import NeedsSpark

if TYPE_CHECKING:
    import pyarrow as pa


def refuse_unknown_fields(names: list[str], contract: Contract) -> None:
    """Raise NeedsSpark if there are such fields, unless the contract rescues them."""
    if names and contract.drift is not DriftMode.RESCUE:
        raise NeedsSpark(f"fields that the contract does not name: {', '.join(names)[:80]}")


def rescue_fields(texts: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """Return, for each row, a map from every field to its text, including nulls."""
    import numpy as np
    import pyarrow as pa

    count = len(texts)
    keys = pa.array(list(texts), pa.string()).take(pa.array(np.tile(np.arange(count), rows)))
    # Reorder the texts from field by field to row by row.
    order = np.arange(count * rows).reshape(count, rows).T.reshape(-1)
    values = pa.concat_arrays(list(texts.values())).take(pa.array(order))
    offsets = pa.array(np.arange(0, count * rows + 1, count), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, values)

"""Fields that the contract does not name, as `_rescued` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract, DriftMode
from thermocline.ingest.unambiguous_json import NeedsSpark

if TYPE_CHECKING:
    import pyarrow as pa


def refuse_unknown_fields(names: list[str], contract: Contract) -> None:
    """Decline a file with such fields, unless the contract wants them rescued."""
    if names and contract.drift is not DriftMode.RESCUE:
        raise NeedsSpark(f"fields that the contract does not name: {', '.join(names)[:80]}")


def rescue_fields(texts: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """A map of every field's text, whether it is there or null, for each row."""
    import numpy as np
    import pyarrow as pa

    count = len(texts)
    keys = pa.array(list(texts), pa.string()).take(pa.array(np.tile(np.arange(count), rows)))
    # Row by row the fields' texts, which lie field by field.
    order = np.arange(count * rows).reshape(count, rows).T.reshape(-1)
    values = pa.concat_arrays(list(texts.values())).take(pa.array(order))
    offsets = pa.array(np.arange(0, count * rows + 1, count), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, values)

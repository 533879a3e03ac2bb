"""One step of a run on an engine: the way it takes, and what is written by it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, Write
from thermocline.lake.partitions import partition_count
from thermocline.transform import replay
from thermocline.transform.executor import Executor
from thermocline.transform.inputs import Span
from thermocline.transform.models import Model
from thermocline.transform.parts import Touched, touched_columns
from thermocline.transform.plan import Way
from thermocline.transform.verify import verify

if TYPE_CHECKING:
    from thermocline.lake.draft import Draft

FEW_PARTITIONS, FEW_KEYS, MOST_KEYS = 30, 1_000, 10_000


def compute(
    executor: Executor[Any],
    model: Model,
    draft: Draft,
    way: Way,
    spans: Mapping[str, Span],
    bookmark: Mapping[str, Any],
) -> tuple[int, Way, str]:
    """Compute a step on an engine and write it: the snapshot, the way it took, and how much."""
    inputs = executor.inputs(model, spans)
    put = partial(executor.write, model=model, draft=draft, bookmark=bookmark)
    try:
        if way is Way.EVENTS:
            rows = inputs.new_rows()
            if rows is not None:
                return put(rows), way, "new rows"
        if way is Way.TOUCHED:
            found = inputs.touched(touched_columns(model), _worthwhile(model, draft))
            if found is not None:
                snapshot = (
                    put(inputs.only(found), touched=found)
                    if found.values
                    else replay.mark(draft, model.table, bookmark)
                )
                verify(inputs, model, draft, found)
                return snapshot, way, _counted(found, model.contract)
        return put(inputs.everything(), full=True), Way.FULL, "all rows"
    except executor.failures as error:
        raise executor.failed(error, model.contract) from error
    finally:
        inputs.close()


def _worthwhile(model: Model, draft: Draft) -> int:
    """How many parts may be touched before computing everything is the better way.

    The sources are read either way: what is saved is the work on the other parts, and what it
    costs is to find the parts and to send their names to all who read.
    """
    contract, head = model.contract, draft.head(model.table)
    if contract.write is Write.PARTITIONS:
        return max(FEW_PARTITIONS, partition_count(draft.lake, contract.table, head) // 2)
    rows = draft.lake.state(contract.table).snapshot(head).count("total-records")
    return min(MOST_KEYS, max(FEW_KEYS, rows // 20))


def _counted(touched: Touched, contract: Contract) -> str:
    if not touched.values:
        return "nothing touched"
    what = "partitions" if contract.write is Write.PARTITIONS else "keys"
    return f"{len(touched.values):,} {what} touched"

"""One step of a run on an engine: the way it takes, and what is written by it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, Write
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.partitions import partition_count
from thermocline.transform import replay
from thermocline.transform.columns import other_columns
from thermocline.transform.declare import How
from thermocline.transform.executor import Executor, StepInputs
from thermocline.transform.formulas import Formulas
from thermocline.transform.inputs import Span
from thermocline.transform.models import Model
from thermocline.transform.parts import MOST_PARTS, Touched, standing, touched_columns
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
    formulas = _formulas(model, draft, spans)
    if not formulas.known(model.fingerprint) or _reads_others(model, draft, spans):
        way = Way.FULL  # also where that came to be after the plan was made
    inputs = executor.inputs(model, spans)
    put = partial(executor.write, model=model, draft=draft, bookmark=bookmark)
    try:
        if way is Way.EVENTS:
            rows = inputs.new_rows()
            if rows is not None:
                return put(rows), way, "new rows"
        if way is Way.TOUCHED:
            found = _touched(inputs, model, draft, formulas)
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


def _formulas(model: Model, draft: Draft, spans: Mapping[str, Span]) -> Formulas:
    """Which models computed the table as it is on the draft, as far as it still counts."""
    marked = bookmarks.read(draft.lake.state(model.table), draft.branch)
    states = {table: draft.lake.state(table) for table in spans}
    ends = {table: span.end for table, span in spans.items()}
    return Formulas.of(marked).beside(states, ends, marked)


def _reads_others(model: Model, draft: Draft, spans: Mapping[str, Span]) -> bool:
    """Whether a source has other columns under the names that the model read before."""
    moved = [span for span in spans.values() if span.moved]
    return any(
        span.start is None
        or other_columns(model, draft.lake.state(span.table), span.start, span.end)
        for span in moved
        if model.how(span.table) is not How.LOOKUP
    )


def _touched(
    inputs: StepInputs[Any], model: Model, draft: Draft, formulas: Formulas
) -> Touched | None:
    """The parts to compute: those that changes touch, and those that another model computed."""
    from thermocline.lake.rewrite import OlderPartitioning

    columns, most = touched_columns(model), _worthwhile(model, draft)
    found = inputs.touched(columns, most)
    if found is None or formulas.uniform(model.fingerprint):
        return found
    every = inputs.every_part(columns, MOST_PARTS)
    if every is None:
        return None
    try:
        held = standing(draft.lake, model.table, draft.head(model.table))
    except OlderPartitioning:
        return None
    stale = formulas.stale([*every.values, *held], model.fingerprint)
    parts = Touched.of(columns, {*found.values, *stale})
    return parts if len(parts.values) <= most else None


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

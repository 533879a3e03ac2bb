"""One step of a run on an engine: the way it takes, and what is written by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from thermocline.contract.definition import Contract, WriteMode
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.partition_cardinality import max_partitions
from thermocline.transform import rebase
from thermocline.transform.column_changes import other_columns
from thermocline.transform.executor import Executor, StepInputs
from thermocline.transform.inputs import Span
from thermocline.transform.model_decorator import How
from thermocline.transform.model_versions import Formulas
from thermocline.transform.models import Model
from thermocline.transform.part_verification import verify
from thermocline.transform.run_plan import Way
from thermocline.transform.target_parts import MOST_PARTS, Touched, standing, touched_columns

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.draft import Draft

R = TypeVar("R")
FEW_PARTITIONS, FEW_KEYS, MOST_KEYS = 30, 1_000, 10_000


@dataclass(frozen=True)
class Decision(Generic[R]):
    """What a step computes: new rows, touched parts, or everything where it has neither."""

    way: Way
    rows: R | None = None
    touched: Touched | None = None


@dataclass(frozen=True)
class Stand:
    """A step's table as it is before the step: its snapshot, and what its bookmark says."""

    lake: Lake
    model: Model
    head: int
    marked: Mapping[str, Any]

    @classmethod
    def on(cls, lake: Lake, model: Model, branch: str, head: int) -> Stand:
        """The table of a model on a branch."""
        return cls(lake, model, head, bookmarks.read(lake.state(model.table), branch))


def decide(inputs: StepInputs[R], stand: Stand, way: Way, spans: Mapping[str, Span]) -> Decision[R]:
    """Decide which rows or parts a step computes, given the way that its plan took.

    A run computes by it, and a look at partitions says by it which are stale.
    """
    model, formulas = stand.model, _formulas(stand, spans)
    if not formulas.known(model.fingerprint) or _reads_others(stand, spans):
        return Decision(Way.FULL)  # also where that came to be after the plan was made
    if way is Way.EVENTS and (rows := inputs.new_rows()) is not None:
        return Decision(way, rows=rows)
    if way is Way.TOUCHED and (found := _touched(inputs, stand, formulas)) is not None:
        return Decision(way, touched=found)
    return Decision(Way.FULL)


def compute(
    executor: Executor[Any],
    model: Model,
    draft: Draft,
    way: Way,
    spans: Mapping[str, Span],
    bookmark: Mapping[str, Any],
) -> tuple[int, Way, str]:
    """Compute a step on an engine and write it: the snapshot, the way it took, and how much."""
    stand = Stand.on(draft.lake, model, draft.branch, draft.head(model.table))
    inputs = executor.inputs(model, spans)
    put = partial(executor.write, model=model, draft=draft, bookmark=bookmark)
    try:
        decision = decide(inputs, stand, way, spans)
        if decision.rows is not None:
            return put(decision.rows), decision.way, "new rows"
        if (found := decision.touched) is not None:
            snapshot = (
                put(inputs.only(found), touched=found)
                if found.values
                else rebase.mark(draft, model.table, bookmark)
            )
            verify(inputs, model, draft, found)
            return snapshot, decision.way, _counted(found, model.contract)
        return put(inputs.everything(), full=True), Way.FULL, "all rows"
    except executor.failures as error:
        raise executor.failed(error, model.contract) from error
    finally:
        inputs.close()


def _formulas(stand: Stand, spans: Mapping[str, Span]) -> Formulas:
    """Which models computed the table as it is, as far as it still counts."""
    states = {table: stand.lake.state(table) for table in spans}
    ends = {table: span.end for table, span in spans.items()}
    return Formulas.of(stand.marked).beside(states, ends, stand.marked)


def _reads_others(stand: Stand, spans: Mapping[str, Span]) -> bool:
    """Whether a source has other columns under the names that the model read before."""
    model, moved = stand.model, [span for span in spans.values() if span.moved]
    return any(
        span.start is None
        or other_columns(model, stand.lake.state(span.table), span.start, span.end)
        for span in moved
        if model.how(span.table) is not How.LOOKUP
    )


def _touched(inputs: StepInputs[Any], stand: Stand, formulas: Formulas) -> Touched | None:
    """The parts to compute: those that changes touch, and those that another model computed."""
    from thermocline.lake.overwrite import OlderPartitioning

    model = stand.model
    columns, most = touched_columns(model), _worthwhile(stand)
    found = inputs.touched(columns, most)
    if found is None or formulas.uniform(model.fingerprint):
        return found
    every = inputs.every_part(columns, MOST_PARTS)
    if every is None:
        return None
    try:
        held = standing(stand.lake, model.table, stand.head)
    except OlderPartitioning:
        return None
    stale = formulas.stale([*every.values, *held], model.fingerprint)
    parts = Touched.of(columns, {*found.values, *stale})
    return parts if len(parts.values) <= most else None


def _worthwhile(stand: Stand) -> int:
    """How many parts may be touched before computing everything is the better way.

    The sources are read either way: what is saved is the work on the other parts, and what it
    costs is to find the parts and to send their names to all who read.
    """
    contract, lake = stand.model.contract, stand.lake
    if contract.write is WriteMode.PARTITIONS:
        return max(FEW_PARTITIONS, max_partitions(lake, contract.table, stand.head) // 2)
    rows = lake.state(contract.table).snapshot(stand.head).count("total-records")
    return min(MOST_KEYS, max(FEW_KEYS, rows // 20))


def _counted(touched: Touched, contract: Contract) -> str:
    if not touched.values:
        return "nothing touched"
    what = "partitions" if contract.write is WriteMode.PARTITIONS else "keys"
    return f"{len(touched.values):,} {what} touched"

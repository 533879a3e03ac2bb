"""Compute one step of a run on an engine: decide what to refresh, and write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from thermocline.contract.definition import Contract, WriteMode
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.partition_cardinality import max_partitions
from thermocline.transform import rebase
from thermocline.transform.column_changes import changed_columns
from thermocline.transform.executor import Executor, StepInputs, StepWrite
from thermocline.transform.inputs import SourceSpan
from thermocline.transform.model_decorator import ReadMode
from thermocline.transform.model_versions import ModelVersions
from thermocline.transform.models import Model
from thermocline.transform.part_verification import verify_untouched_parts
from thermocline.transform.run_plan import RefreshMode
from thermocline.transform.target_parts import (
    MAX_PARTS,
    TouchedParts,
    find_partitions,
    part_columns,
)

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.draft import Draft

R = TypeVar("R")
MIN_PARTITIONS, MIN_KEYS, MAX_KEYS = 30, 1_000, 10_000


@dataclass(frozen=True)
class RefreshDecision(Generic[R]):
    """What a step computes: new rows, touched parts, or everything if it has neither."""

    refresh_mode: RefreshMode
    rows: R | None = None
    touched: TouchedParts | None = None


@dataclass(frozen=True)
class TargetState:
    """A step's table before the step: its snapshot and its bookmark."""

    lake: Lake
    model: Model
    head: int
    bookmark: Mapping[str, Any]

    @classmethod
    def load(cls, lake: Lake, model: Model, branch: str, head: int) -> TargetState:
        """Load the state of a model's table on a branch."""
        return cls(lake, model, head, bookmarks.read(lake.state(model.table), branch))


def decide_refresh(
    inputs: StepInputs[R],
    target: TargetState,
    refresh_mode: RefreshMode,
    spans: Mapping[str, SourceSpan],
) -> RefreshDecision[R]:
    """Decide which rows or parts a step computes, given the refresh mode of its plan.

    Runs compute by this decision, and partition maps derive the stale partitions from it.
    """
    model, versions = target.model, _load_versions(target, spans)
    if not versions.includes(model.fingerprint) or _has_changed_columns(target, spans):
        return RefreshDecision(RefreshMode.FULL)  # it may have changed since the plan
    if refresh_mode is RefreshMode.EVENTS and (rows := inputs.read_new()) is not None:
        return RefreshDecision(refresh_mode, rows=rows)
    if (
        refresh_mode is RefreshMode.TOUCHED
        and (found := _find_touched(inputs, target, versions)) is not None
    ):
        return RefreshDecision(refresh_mode, touched=found)
    return RefreshDecision(RefreshMode.FULL)


def compute_step(
    executor: Executor[Any],
    model: Model,
    draft: Draft,
    refresh_mode: RefreshMode,
    spans: Mapping[str, SourceSpan],
    bookmark: Mapping[str, Any],
) -> tuple[int, RefreshMode, str]:
    """Compute and write a step; return the snapshot, the refresh mode, and a summary."""
    target = TargetState.load(draft.lake, model, draft.branch, draft.head(model.table))
    inputs = executor.open_inputs(model, spans)
    build_write = partial(StepWrite, model, draft, bookmark)
    try:
        decision = decide_refresh(inputs, target, refresh_mode, spans)
        if decision.rows is not None:
            return executor.write(decision.rows, build_write()), decision.refresh_mode, "new rows"
        if (found := decision.touched) is not None:
            snapshot = (
                executor.write(inputs.read_parts(found), build_write(touched=found))
                if found.values
                else rebase.commit_bookmark(draft, model.table, bookmark)
            )
            verify_untouched_parts(inputs, model, draft, found)
            return snapshot, decision.refresh_mode, _describe_touched(found, model.contract)
        snapshot = executor.write(inputs.read_all(), build_write(full=True))
        return snapshot, RefreshMode.FULL, "all rows"
    except executor.failures as error:
        raise executor.explain_failure(error, model.contract) from error
    finally:
        inputs.close()


def _load_versions(target: TargetState, spans: Mapping[str, SourceSpan]) -> ModelVersions:
    """Load the model versions that computed the table, as far as their sources still exist."""
    states = {table: target.lake.state(table) for table in spans}
    ends = {table: span.end for table, span in spans.items()}
    return ModelVersions.from_bookmark(target.bookmark).without_lost_sources(
        states, ends, target.bookmark
    )


def _has_changed_columns(target: TargetState, spans: Mapping[str, SourceSpan]) -> bool:
    """Return whether a name that the model reads now means another column of a source."""
    model, moved = target.model, [span for span in spans.values() if span.has_changed]
    return any(
        span.start is None
        or changed_columns(model, target.lake.state(span.table), span.start, span.end)
        for span in moved
        if model.read_mode(span.table) is not ReadMode.LOOKUP
    )


def _find_touched(
    inputs: StepInputs[Any], target: TargetState, versions: ModelVersions
) -> TouchedParts | None:
    """Return the parts that changes touch or another model version computed; None for all."""
    from thermocline.lake.overwrite import OutdatedPartitioning

    model = target.model
    columns, most = part_columns(model), _max_touched_parts(target)
    found = inputs.find_touched(columns, most)
    if found is None or versions.is_uniform(model.fingerprint):
        return found
    every = inputs.find_all_parts(columns, MAX_PARTS)
    if every is None:
        return None
    try:
        existing = find_partitions(target.lake, model.table, target.head)
    except OutdatedPartitioning:
        return None
    stale = versions.find_stale([*every.values, *existing], model.fingerprint)
    parts = TouchedParts.of(columns, {*found.values, *stale})
    return parts if len(parts.values) <= most else None


def _max_touched_parts(target: TargetState) -> int:
    """Return how many parts may be touched before a full refresh is cheaper.

    Both read the sources. Recomputing parts saves the work on the other parts, and costs the
    search for the parts and the transfer of their names to all readers.
    """
    contract, lake = target.model.contract, target.lake
    if contract.write is WriteMode.PARTITIONS:
        return max(MIN_PARTITIONS, max_partitions(lake, contract.table, target.head) // 2)
    rows = lake.state(contract.table).snapshot(target.head).count("total-records")
    return min(MAX_KEYS, max(MIN_KEYS, rows // 20))


def _describe_touched(touched: TouchedParts, contract: Contract) -> str:
    if not touched.values:
        return "nothing touched"
    what = "partitions" if contract.write is WriteMode.PARTITIONS else "keys"
    return f"{len(touched.values):,} {what} touched"

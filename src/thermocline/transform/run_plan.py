"""Plan a run from metadata, without starting an engine: what is stale, and how to compute it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from thermocline.contract import evolution
from thermocline.contract.definition import Contract, IncrementalMode
from thermocline.errors import BadInput, ContractError, NotFound
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.metadata import MAIN, TableState
from thermocline.lake.schema import shape_of
from thermocline.lake.table_setup import REFUSED_NEXT_STEP
from thermocline.transform import model_graph
from thermocline.transform.column_changes import changed_columns
from thermocline.transform.engine_choice import SPARK, EngineChoice, EngineSelector
from thermocline.transform.model_decorator import ReadMode
from thermocline.transform.model_versions import ModelVersions
from thermocline.transform.models import Model
from thermocline.transform.target_parts import find_incremental_blocker, is_event_based

if TYPE_CHECKING:
    from thermocline.lake import Lake

MEMORY_LIMIT_KEY = "@beyond"
"""Bookmark key of the number of input bytes that once exceeded DuckDB's memory."""


class RefreshMode(StrEnum):
    """How a step computes its rows."""

    EVENTS = "events"
    """From new input rows only."""
    TOUCHED = "touched"
    """By recomputing the partitions or keys that a change touches."""
    FULL = "full"
    """From all input rows; the result replaces the table's content."""


@dataclass(frozen=True)
class SourceChange:
    """The changes of one source since the table last read it."""

    table: str
    start: int | None
    snapshots: int = 0
    rows: int = 0
    pending: bool = False

    def __str__(self) -> str:
        if self.pending:
            return f"{self.table} will change"
        if self.start is None:
            return f"{self.table} was not read yet"
        return f"{self.table} moved {self.snapshots} snapshots, {self.rows:,} rows"


@dataclass(frozen=True)
class Step:
    """One stale table to compute."""

    model: Model
    refresh_mode: RefreshMode
    why: tuple[str, ...]
    source_changes: tuple[SourceChange, ...]
    creates: bool = False
    choice: EngineChoice = SPARK

    @property
    def table(self) -> str:
        """The table it writes."""
        return self.model.table

    @property
    def summary(self) -> str:
        """The write strategy and the engine, for people."""
        what = ", all rows," if self.refresh_mode is RefreshMode.FULL else ""
        return f"{self.model.contract.write}{what} on {self.choice}"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "table": self.table,
            "write": str(self.model.contract.write),
            "refresh_mode": str(self.refresh_mode),
            "why": list(self.why),
            "how": self.summary,
            "engine": self.choice.engine,
            "workers": self.choice.worker_mode,
            "bytes": self.choice.bytes,
            "creates": self.creates,
            "sources": [
                {"table": m.table, "since": m.start, "snapshots": m.snapshots, "rows": m.rows,
                 "pending": m.pending}
                for m in self.source_changes
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The steps of a run in order, and the fresh tables."""

    steps: tuple[Step, ...]
    fresh: tuple[str, ...]
    into: str = MAIN
    pins: Mapping[str, int] = field(default_factory=dict)
    """The snapshot of each source that the run does not write, so that all steps read one state."""
    evolving: tuple[Contract, ...] = ()
    """Contracts of fresh tables that evolve without a recomputation."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "into": self.into,
            "steps": [step.as_dict() for step in self.steps],
            "fresh": list(self.fresh),
            "evolving": [contract.table for contract in self.evolving],
        }


def plan(
    lake: Lake,
    models: Mapping[str, Model],
    *,
    select: Sequence[str] = (),
    full_refresh: bool = False,
    into: str = MAIN,
    workers: str | None = None,
) -> Plan:
    """Decide which selected models are stale, why, and how to compute each of them."""
    selected = model_graph.select(models, select)
    states = _load_states(lake, [models[name] for name in selected])
    evolving = _find_evolving([models[name].contract for name in sorted(selected)], states)
    steps: list[Step] = []
    fresh: list[str] = []
    planned: set[str] = set()
    pins: dict[str, int] = {}
    heads = {table: (state, _head(state, into)) for table, state in states.items()}
    selector = EngineSelector(lake.settings, models, heads)
    for model in model_graph.sort_models(models):
        if model.table not in selected:
            continue
        for source in model.sources:
            head = _head(states.get(source), into)
            if head is not None:
                pins[source] = head
        step = _plan_step(model, models, states, planned, into, full_refresh=full_refresh)
        if step is None:
            fresh.append(model.table)
        else:
            choice = selector.choose(
                model,
                step.source_changes,
                only_new=step.refresh_mode is RefreshMode.EVENTS,
                workers=workers,
                memory_limit=_read_bookmark(states.get(model.table), into).get(MEMORY_LIMIT_KEY),
            )
            steps.append(replace(step, choice=choice))
            planned.add(model.table)
    left = tuple(contract for contract in evolving if contract.table not in planned)
    return Plan(tuple(steps), tuple(fresh), into, pins, left)


def _find_evolving(
    contracts: Sequence[Contract], states: Mapping[str, TableState]
) -> tuple[Contract, ...]:
    """Return the contracts whose tables must change; raise ContractError for refused changes."""
    problems: list[Any] = []
    changing = []
    for contract in contracts:
        if contract.table in states:
            found = evolution.plan_evolution(shape_of(states[contract.table]), contract)
            problems.extend(found.problems)
            if found.changes:
                changing.append(contract)
    if problems:
        raise ContractError(problems, REFUSED_NEXT_STEP)
    return tuple(changing)


def _load_states(lake: Lake, models: Sequence[Model]) -> dict[str, TableState]:
    """Load the tables that the models write and read, all at one moment."""
    return lake.states({name for model in models for name in (model.table, *model.sources)})


def _head(state: TableState | None, into: str) -> int | None:
    if state is None:
        return None
    head = state.head(into)
    return state.head() if head is None else head


def _plan_step(
    model: Model,
    models: Collection[str],
    states: Mapping[str, TableState],
    planned: set[str],
    into: str,
    *,
    full_refresh: bool,
) -> Step | None:
    _require_incremental(model)
    for source in model.sources:
        if source not in states and source not in planned:
            select_it = f"Select its model too: thermo run --select +{model.table}."
            raise NotFound(
                f"{model.table} reads {source}, which does not exist yet.",
                select_it if source in models else "Ingest it first: thermo ingest.",
            )
    state = states.get(model.table)
    bookmark = _read_bookmark(state, into)
    found = [
        _find_source_change(
            read.table, bookmark.get(read.table), states.get(read.table), planned, into
        )
        for read in dict.fromkeys(model.reads.values())
        if read.mode is not ReadMode.LOOKUP
    ]
    source_changes = tuple(change for change in found if change is not None)
    reasons = [str(change) for change in source_changes]
    heads = {t: head for t in model.sources if (head := _head(states.get(t), into)) is not None}
    versions = ModelVersions.from_bookmark(bookmark).without_lost_sources(states, heads, bookmark)
    changed = _changed_columns(model, bookmark, states, heads)
    if not bookmark:
        reasons = ["never computed" if state is None or into == MAIN else "new here"]
    elif versions.default != model.fingerprint:
        reasons.insert(0, "the model or its contract changed")
    elif full_refresh:
        reasons.insert(0, "a full refresh was requested")
    elif not source_changes and not changed and versions.is_uniform(model.fingerprint):
        return None
    if versions.default == model.fingerprint:
        reasons += [*versions.describe_others(model.fingerprint), *changed]
    whole = (
        full_refresh or not bookmark or not versions.includes(model.fingerprint) or bool(changed)
    )
    lost = [each for each in source_changes if each.start is None and not each.pending]
    if lost and not whole:
        reasons.append("its bookmark is not in the source's history, so all rows are read")
    refresh_mode, reason = (
        (RefreshMode.FULL, None) if whole or lost else choose_refresh_mode(model, source_changes)
    )
    if reason is not None:
        reasons.append(f"computed in full: {reason}")
    return Step(model, refresh_mode, tuple(reasons), source_changes, creates=state is None)


def _changed_columns(
    model: Model,
    bookmark: Mapping[str, Any],
    states: Mapping[str, TableState],
    heads: Mapping[str, int],
) -> list[str]:
    """Return where a name that the model reads now means another column of its source."""
    reasons = []
    for source, head in heads.items():
        since = bookmark.get(source)
        if not isinstance(since, int) or since not in states[source].snapshots:
            continue
        if model.read_mode(source) is not ReadMode.LOOKUP:
            found = changed_columns(model, states[source], since, head)
            reasons += [f"{source}.{name} is another column than before" for name in found]
    return reasons


def _read_bookmark(state: TableState | None, into: str) -> dict[str, Any]:
    if state is None:
        return {}
    ref = into if into in state.refs else MAIN
    return bookmarks.read(state, ref)


def _find_source_change(
    source: str,
    since: int | None,
    state: TableState | None,
    planned: set[str],
    into: str,
) -> SourceChange | None:
    """Return how far a source is ahead of the bookmark; None if it has not changed."""
    if source in planned or state is None:
        return SourceChange(source, since, pending=True)
    head = _head(state, into)
    if head == since:
        return None
    between = state.between(since, head) if since is not None else None
    if between is None:
        return SourceChange(source, None)
    changing = [s for s in between if s.operation != "replace"]
    if not changing:
        return None  # maintenance only: the same rows in other files
    rows = sum(s.count("added-records") for s in changing)
    return SourceChange(source, since, len(changing), rows)


def choose_refresh_mode(
    model: Model, source_changes: Sequence[SourceChange]
) -> tuple[RefreshMode, str | None]:
    """Return the cheapest refresh mode that is safe; if it is FULL, also the reason."""
    if not model.is_sql:
        modes = {read.table: read.mode for read in model.reads.values()}
        whole = [each.table for each in source_changes if modes[each.table] is not ReadMode.CHANGES]
        if whole:
            return RefreshMode.FULL, f"its function reads all of {whole[0]}"
        return RefreshMode.EVENTS, None
    reason = find_incremental_blocker(model)
    if reason is not None:
        return RefreshMode.FULL, reason
    return (RefreshMode.EVENTS if is_event_based(model) else RefreshMode.TOUCHED), None


def _require_incremental(model: Model) -> None:
    """Raise BadInput if the contract is `incremental: strict` and the model is not incremental."""
    if model.contract.incremental is not IncrementalMode.STRICT:
        return
    reason = "it is a Python model" if not model.is_sql else find_incremental_blocker(model)
    if reason is not None:
        raise BadInput(
            f"{model.table} cannot be computed incrementally: {reason}.",
            f"Rewrite models/{model.contract.layer}/{model.path.name}, or remove"
            " incremental: strict from its contract. Nothing was written.",
        )

"""What is stale and how each stale table is computed: decided from metadata, starting nothing."""

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
from thermocline.transform import graph
from thermocline.transform.column_changes import other_columns
from thermocline.transform.engine_choice import SPARK, Choice, Sizes
from thermocline.transform.model_decorator import How
from thermocline.transform.model_versions import Formulas
from thermocline.transform.models import Model
from thermocline.transform.target_parts import by_events, not_incremental

if TYPE_CHECKING:
    from thermocline.lake import Lake

BEYOND_KEY = "@beyond"
"""Where it keeps how many bytes to read were once too much for DuckDB's memory."""


class Way(StrEnum):
    """How a step gets its rows."""

    EVENTS = "events"
    """From the new input rows alone."""
    TOUCHED = "touched"
    """By computing again the partitions or keys that the change touches."""
    FULL = "full"
    """From all input rows, replacing the table's content."""


@dataclass(frozen=True)
class SourceMove:
    """What happened to one source since the table last read it."""

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
    """One table to bring up to date."""

    model: Model
    way: Way
    why: tuple[str, ...]
    moves: tuple[SourceMove, ...]
    creates: bool = False
    choice: Choice = SPARK

    @property
    def table(self) -> str:
        """The table it writes."""
        return self.model.table

    @property
    def how(self) -> str:
        """The write strategy and the engine, for people."""
        what = ", all rows," if self.way is Way.FULL else ""
        return f"{self.model.contract.write}{what} on {self.choice}"

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "table": self.table,
            "write": str(self.model.contract.write),
            "way": str(self.way),
            "why": list(self.why),
            "how": self.how,
            "engine": self.choice.engine,
            "workers": self.choice.crew,
            "bytes": self.choice.bytes,
            "creates": self.creates,
            "sources": [
                {"table": m.table, "since": m.start, "snapshots": m.snapshots, "rows": m.rows,
                 "pending": m.pending}
                for m in self.moves
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The steps of a run in order, and the tables that are fresh."""

    steps: tuple[Step, ...]
    fresh: tuple[str, ...]
    into: str = MAIN
    pins: Mapping[str, int] = field(default_factory=dict)
    """The snapshot of each source outside the run, so that all steps read the same state."""
    evolving: tuple[Contract, ...] = ()
    """Contracts of fresh tables that differ from them in what needs no computing."""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
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
    """Decide which of the selected models are stale, why, and how each will be computed."""
    chosen = graph.select(models, select)
    states = _states(lake, [models[name] for name in chosen])
    evolving = _evolving([models[name].contract for name in sorted(chosen)], states)
    steps: list[Step] = []
    fresh: list[str] = []
    planned: set[str] = set()
    pins: dict[str, int] = {}
    heads = {table: (state, _head(state, into)) for table, state in states.items()}
    sizes = Sizes(lake.settings, models, heads)
    for model in graph.ordered(models):
        if model.table not in chosen:
            continue
        for source in model.sources:
            head = _head(states.get(source), into)
            if head is not None:
                pins[source] = head
        step = _step(model, models, states, planned, into, full_refresh=full_refresh)
        if step is None:
            fresh.append(model.table)
        else:
            choice = sizes.choose(
                model,
                step.moves,
                only_new=step.way is Way.EVENTS,
                workers=workers,
                beyond=_marked(states.get(model.table), into).get(BEYOND_KEY),
            )
            steps.append(replace(step, choice=choice))
            planned.add(model.table)
    left = tuple(contract for contract in evolving if contract.table not in planned)
    return Plan(tuple(steps), tuple(fresh), into, pins, left)


def _evolving(
    contracts: Sequence[Contract], states: Mapping[str, TableState]
) -> tuple[Contract, ...]:
    """The contracts whose tables must change; those that ask for too much raise ContractError."""
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


def _states(lake: Lake, models: Sequence[Model]) -> dict[str, TableState]:
    """The tables that the models write and read, all as they are at one moment."""
    return lake.states({name for model in models for name in (model.table, *model.sources)})


def _head(state: TableState | None, into: str) -> int | None:
    if state is None:
        return None
    head = state.head(into)
    return state.head() if head is None else head


def _step(
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
            made = f"Select its model too: thermo run --select +{model.table}."
            raise NotFound(
                f"{model.table} reads {source}, which does not exist yet.",
                made if source in models else "Ingest it first: thermo ingest.",
            )
    state = states.get(model.table)
    marked = _marked(state, into)
    moves = [
        _move(read.table, marked.get(read.table), states.get(read.table), planned, into)
        for read in dict.fromkeys(model.reads.values())
        if read.how is not How.LOOKUP
    ]
    moved = tuple(move for move in moves if move is not None)
    reasons = [str(move) for move in moved]
    heads = {t: head for t in model.sources if (head := _head(states.get(t), into)) is not None}
    formulas = Formulas.of(marked).beside(states, heads, marked)
    others = _other_columns(model, marked, states, heads)
    if not marked:
        reasons = ["never computed" if state is None or into == MAIN else "new here"]
    elif formulas.default != model.fingerprint:
        reasons.insert(0, "the model or its contract changed")
    elif full_refresh:
        reasons.insert(0, "a full refresh was asked for")
    elif not moved and not others and formulas.uniform(model.fingerprint):
        return None
    if formulas.default == model.fingerprint:
        reasons += [*formulas.others(model.fingerprint), *others]
    whole = full_refresh or not marked or not formulas.known(model.fingerprint) or bool(others)
    lost = [move for move in moved if move.start is None and not move.pending]
    if lost and not whole:
        reasons.append("its bookmark is not in the source's history, so all rows are read")
    way, doubt = (Way.FULL, None) if whole or lost else incremental_way(model, moved)
    if doubt is not None:
        reasons.append(f"computed in full: {doubt}")
    return Step(model, way, tuple(reasons), moved, creates=state is None)


def _other_columns(
    model: Model,
    marked: Mapping[str, Any],
    states: Mapping[str, TableState],
    heads: Mapping[str, int],
) -> list[str]:
    """Where the model would read other columns of its sources than before, by the same names."""
    said = []
    for source, head in heads.items():
        since = marked.get(source)
        if not isinstance(since, int) or since not in states[source].snapshots:
            continue
        if model.how(source) is not How.LOOKUP:
            found = other_columns(model, states[source], since, head)
            said += [f"{source}.{name} is another column than before" for name in found]
    return said


def _marked(state: TableState | None, into: str) -> dict[str, Any]:
    if state is None:
        return {}
    ref = into if into in state.refs else MAIN
    return bookmarks.read(state, ref)


def _move(
    source: str,
    since: int | None,
    state: TableState | None,
    planned: set[str],
    into: str,
) -> SourceMove | None:
    """How far a source is ahead of the bookmark; None when it is where it was."""
    if source in planned or state is None:
        return SourceMove(source, since, pending=True)
    head = _head(state, into)
    if head == since:
        return None
    between = state.between(since, head) if since is not None else None
    if between is None:
        return SourceMove(source, None)
    changing = [s for s in between if s.operation != "replace"]
    if not changing:
        return None  # only maintenance: the same rows in other files
    rows = sum(s.count("added-records") for s in changing)
    return SourceMove(source, since, len(changing), rows)


def incremental_way(model: Model, moves: Sequence[SourceMove]) -> tuple[Way, str | None]:
    """Whether new input rows suffice, touched parts can be found, or everything must be read.

    In the last case with the reason.
    """
    if not model.is_sql:
        how = {read.table: read.how for read in model.reads.values()}
        whole = [move.table for move in moves if how[move.table] is not How.CHANGES]
        return (Way.FULL, f"its function reads all of {whole[0]}") if whole else (Way.EVENTS, None)
    reason = not_incremental(model)
    if reason is not None:
        return Way.FULL, reason
    return (Way.EVENTS if by_events(model) else Way.TOUCHED), None


def _require_incremental(model: Model) -> None:
    """Raise for a model whose contract insists on something that its query does not allow."""
    if model.contract.incremental is not IncrementalMode.STRICT:
        return
    reason = "it is a Python model" if not model.is_sql else not_incremental(model)
    if reason is not None:
        raise BadInput(
            f"{model.table} cannot be computed incrementally: {reason}.",
            f"Rewrite models/{model.contract.layer}/{model.path.name}, or take incremental: strict"
            " out of its contract. Nothing was written.",
        )

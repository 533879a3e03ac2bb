"""Which partitions of a table are fresh, which are stale, and where a backfill of it stands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import WriteMode
from thermocline.engine.duck_types import quote_identifier
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.draft import source_head
from thermocline.lake.metadata import MAIN, TableState
from thermocline.lake.naming import RUN_PREFIX
from thermocline.transform import run_plan
from thermocline.transform.duck.conform import shaped
from thermocline.transform.duck.executor import DuckExecutor
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.row_partitions import placed
from thermocline.transform.duck.session import Session, Unable
from thermocline.transform.executor import first_line
from thermocline.transform.inputs import Inputs, Span
from thermocline.transform.models import Model
from thermocline.transform.step import Stand, decide
from thermocline.transform.target_parts import MOST_PARTS, touched_columns
from thermocline.transform.workers.backfill import FAILED, noted
from thermocline.transform.workers.work_unit import label
from thermocline.transform.write_rules import DELETED

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from thermocline.lake import Lake


class Standing(StrEnum):
    """How a partition stands."""

    FRESH = "fresh"
    STALE = "stale"
    MISSING = "missing"
    """It is not there yet, and a run would make it."""
    DONE = "done"
    """An unfinished backfill has it on its branch."""
    FAILED = "failed"
    """An unfinished backfill could not compute it."""


@dataclass(frozen=True)
class PartitionState:
    """One partition as it is now."""

    name: str
    standing: Standing
    rows: int = 0
    files: int = 0
    bytes: int = 0
    why: str = ""


@dataclass(frozen=True)
class PartitionMap:
    """A table's partitions in their order. `note` says what the map cannot know."""

    table: str
    partitions: tuple[PartitionState, ...]
    note: str = ""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many stand how."""
        return Counter(str(each.standing) for each in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "table": self.table,
            "counts": dict(self.counts),
            "note": self.note,
            "partitions": [dict(vars(each)) for each in self.partitions],
        }


def partition_map(lake: Lake, models: Mapping[str, Model], model: Model) -> PartitionMap:
    """Look at a table's partitions. Changes nothing, and starts no JVM."""
    from thermocline.lake.overwrite import standing_partitions, values_of

    held: dict[tuple[Any, ...], list[DataFile]] = {}
    state: TableState | None = None
    if lake.exists(model.table):
        state = lake.state(model.table)
        iceberg = lake.iceberg(model.table)
        found = standing_partitions(iceberg, source_head(state, MAIN))
        held = {values_of(iceberg, record): files for record, files in found.items()}
        stands = dict(_backfilled(state, iceberg))
    else:
        stands = {}
    stale, note = _stale(lake, models, model, held)
    named = {label(values): values for values in (*held, *stale)}
    states = [
        _one(name, held.get(named.get(name, ()), ()), stale=named.get(name) in stale, stands=stands)
        for name in sorted({*named, *stands})
    ]
    return PartitionMap(model.table, tuple(states), note)


def _one(
    name: str,
    files: Sequence[DataFile],
    *,
    stale: bool,
    stands: Mapping[str, tuple[Standing, str]],
) -> PartitionState:
    how, why = Standing.FRESH, ""
    if stale:
        how = Standing.STALE if files else Standing.MISSING
    if name in stands:
        how, why = stands[name]
    return PartitionState(
        name,
        how,
        rows=sum(file.record_count for file in files),
        files=len(files),
        bytes=sum(file.file_size_in_bytes for file in files),
        why=why,
    )


def _stale(
    lake: Lake, models: Mapping[str, Model], model: Model, held: Collection[tuple[Any, ...]]
) -> tuple[set[tuple[Any, ...]], str]:
    """The partitions that a run of this model alone would compute, and what is left open."""
    import duckdb

    upstream = {step.table for step in run_plan.plan(lake, models).steps} & set(model.sources)
    note = f"{', '.join(sorted(upstream))} will change first" if upstream else ""
    steps = run_plan.plan(lake, models, select=[model.table]).steps
    if not steps or not model.is_sql:
        return (set(held) if steps else set()), note
    (step,) = steps
    state = lake.state(model.table) if lake.exists(model.table) else None
    spans = {
        source: Span(source, _since(state, source), source_head(lake.state(source), MAIN))
        for source in model.sources
    }
    executor = DuckExecutor(lake)
    inputs = executor.sql_inputs(model, spans)
    try:
        found = _decided(lake, step, inputs, executor.session, held)
    except (Unable, duckdb.Error) as error:
        found, said = None, error.cause if isinstance(error, Unable) else first_line(error)
        note = "; ".join(filter(None, (note, f"which ones DuckDB cannot tell: {said}")))
    finally:
        inputs.close()
        executor.close()
    return (set(held) if found is None else found), note


def _decided(
    lake: Lake, step: run_plan.Step, inputs: Inputs[str], session: Session, held: Collection[Any]
) -> set[tuple[Any, ...]] | None:
    """The partitions that a run's own decision reaches; None where it is not known which."""
    model = step.model
    if not lake.exists(model.table):
        columns = touched_columns(model) if model.contract.write is WriteMode.PARTITIONS else []
        every = inputs.every_part(columns, MOST_PARTS) if columns else None
        return None if every is None else set(every.values)
    head = source_head(lake.state(model.table), MAIN)
    stand = Stand.on(lake, model, MAIN, head)
    decision = decide(inputs, stand, step.way, inputs.spans)
    if decision.touched is not None and model.contract.write is WriteMode.PARTITIONS:
        return set(decision.touched.values)
    rows = inputs.everything() if decision.rows is None else decision.rows
    if decision.touched is not None:
        rows = inputs.only(decision.touched)
    contract, iceberg = model.contract, lake.iceberg(model.table)
    given = shaped(session, rows, contract, deletes=contract.write is not WriteMode.APPEND)
    coming = placed(session, f"SELECT * FROM ({given}) WHERE NOT {DELETED}", iceberg)
    if coming is None or decision.way is run_plan.Way.FULL:
        return None if coming is None else {*held, *coming}
    if contract.write is WriteMode.APPEND:
        return coming
    # A row that changes leaves the partition where the row of its key is now.
    keys = given
    if decision.touched is not None:
        keys = DuckReader(session).touched(model, decision.touched)
    same = " AND ".join(
        f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in contract.key
    )
    now = f"({session.table(model.table, head)}) AS t SEMI JOIN ({keys}) AS s ON {same}"
    leaving = placed(session, f"SELECT t.* FROM {now}", iceberg)
    return None if leaving is None else coming | leaving


def _since(state: TableState | None, source: str) -> int | None:
    since = bookmarks.read(state).get(source) if state is not None else None
    return None if since is None else int(since)


def _backfilled(state: TableState, iceberg: Table) -> Iterator[tuple[str, tuple[Standing, str]]]:
    """What unfinished backfills have done, and what they could not do."""
    from thermocline.lake.overwrite import changed_partitions, values_of

    for name, ref in state.refs.items():
        run = name.removeprefix(RUN_PREFIX)
        note = noted(state, run, ref.snapshot) if run != name else None
        if note is None or note.parent is None:
            continue
        for record in changed_partitions(iceberg, note.parent, ref.snapshot):
            yield label(values_of(iceberg, record)), (Standing.DONE, f"run {run}")
        failed = state.snapshot(ref.snapshot).summary.get(FAILED)
        for text, why in json.loads(failed or "{}").items():
            yield text, (Standing.FAILED, str(why))

"""Map a table's partitions: fresh, stale, or part of an unfinished backfill."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import WriteMode
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.engine.duck_types import quote_identifier
from thermocline.errors import first_line
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.draft import source_head
from thermocline.lake.metadata import MAIN, TableState
from thermocline.lake.naming import RUN_PREFIX
from thermocline.transform import run_plan
from thermocline.transform.duck.conform import conform_rows
from thermocline.transform.duck.executor import DuckExecutor
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.row_partitions import find_row_partitions
from thermocline.transform.duck.session import Session
from thermocline.transform.inputs import Inputs, SourceSpan
from thermocline.transform.models import Model
from thermocline.transform.step import TargetState, decide_refresh
from thermocline.transform.target_parts import MAX_PARTS, part_columns
from thermocline.transform.workers.backfill import FAILED_KEY, find_request
from thermocline.transform.workers.work_unit import format_partition
from thermocline.transform.write_rules import DELETED

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from thermocline.lake import Lake


class PartitionStatus(StrEnum):
    """The status of a partition."""

    FRESH = "fresh"
    STALE = "stale"
    MISSING = "missing"
    """It does not exist yet, and a run would create it."""
    DONE = "done"
    """It is on the branch of an unfinished backfill."""
    FAILED = "failed"
    """An unfinished backfill could not compute it."""


@dataclass(frozen=True)
class PartitionState:
    """The current state of one partition."""

    name: str
    status: PartitionStatus
    rows: int = 0
    files: int = 0
    bytes: int = 0
    why: str = ""


@dataclass(frozen=True)
class PartitionMap:
    """A table's partitions in their order. `note` names what the map cannot know."""

    table: str
    partitions: tuple[PartitionState, ...]
    note: str = ""

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of partitions by status."""
        return Counter(str(each.status) for each in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "table": self.table,
            "counts": dict(self.counts),
            "note": self.note,
            "partitions": [dict(vars(each)) for each in self.partitions],
        }


def map_partitions(lake: Lake, models: Mapping[str, Model], model: Model) -> PartitionMap:
    """Map a table's partitions. It changes nothing and starts no JVM."""
    from thermocline.lake.overwrite import live_partitions, partition_values

    existing: dict[tuple[Any, ...], list[DataFile]] = {}
    state: TableState | None = None
    if lake.exists(model.table):
        state = lake.state(model.table)
        iceberg = lake.iceberg(model.table)
        found = live_partitions(iceberg, source_head(state, MAIN))
        existing = {partition_values(iceberg, record): files for record, files in found.items()}
        backfilled = dict(_find_backfilled(state, iceberg))
    else:
        backfilled = {}
    stale, note = _find_stale(lake, models, model, existing)
    named = {format_partition(values): values for values in (*existing, *stale)}
    states = [
        _build_state(
            name,
            existing.get(named.get(name, ()), ()),
            stale=named.get(name) in stale,
            backfilled=backfilled,
        )
        for name in sorted({*named, *backfilled})
    ]
    return PartitionMap(model.table, tuple(states), note)


def _build_state(
    name: str,
    files: Sequence[DataFile],
    *,
    stale: bool,
    backfilled: Mapping[str, tuple[PartitionStatus, str]],
) -> PartitionState:
    status, why = PartitionStatus.FRESH, ""
    if stale:
        status = PartitionStatus.STALE if files else PartitionStatus.MISSING
    if name in backfilled:
        status, why = backfilled[name]
    return PartitionState(
        name,
        status,
        rows=sum(file.record_count for file in files),
        files=len(files),
        bytes=sum(file.file_size_in_bytes for file in files),
        why=why,
    )


def _find_stale(
    lake: Lake, models: Mapping[str, Model], model: Model, existing: Collection[tuple[Any, ...]]
) -> tuple[set[tuple[Any, ...]], str]:
    """Return the partitions that a run of this model alone would compute, and a note."""
    import duckdb

    upstream = {step.table for step in run_plan.plan(lake, models).steps} & set(model.sources)
    note = f"{', '.join(sorted(upstream))} will change first" if upstream else ""
    steps = run_plan.plan(lake, models, select=[model.table]).steps
    if not steps or not model.is_sql:
        return (set(existing) if steps else set()), note
    (step,) = steps
    state = lake.state(model.table) if lake.exists(model.table) else None
    spans = {
        source: SourceSpan(source, _since(state, source), source_head(lake.state(source), MAIN))
        for source in model.sources
    }
    executor = DuckExecutor(lake)
    inputs = executor.open_sql_inputs(model, spans)
    try:
        found = _find_computed(lake, step, inputs, executor.session, existing)
    except (UnsupportedByDuckDB, duckdb.Error) as error:
        found = None
        cause = error.cause if isinstance(error, UnsupportedByDuckDB) else first_line(error)
        note = "; ".join(filter(None, (note, f"DuckDB cannot determine which: {cause}")))
    finally:
        inputs.close()
        executor.close()
    return (set(existing) if found is None else found), note


def _find_computed(
    lake: Lake,
    step: run_plan.Step,
    inputs: Inputs[str],
    session: Session,
    existing: Collection[Any],
) -> set[tuple[Any, ...]] | None:
    """Return the partitions that a run's own decision reaches; None if unknown."""
    model = step.model
    if not lake.exists(model.table):
        columns = part_columns(model) if model.contract.write is WriteMode.PARTITIONS else []
        every = inputs.find_all_parts(columns, MAX_PARTS) if columns else None
        return None if every is None else set(every.values)
    head = source_head(lake.state(model.table), MAIN)
    target = TargetState.load(lake, model, MAIN, head)
    decision = decide_refresh(inputs, target, step.refresh_mode, inputs.spans)
    if decision.touched is not None and model.contract.write is WriteMode.PARTITIONS:
        return set(decision.touched.values)
    rows = inputs.read_all() if decision.rows is None else decision.rows
    if decision.touched is not None:
        rows = inputs.read_parts(decision.touched)
    contract, iceberg = model.contract, lake.iceberg(model.table)
    conformed = conform_rows(
        session, rows, contract, deletes=contract.write is not WriteMode.APPEND
    )
    coming = find_row_partitions(
        session, f"SELECT * FROM ({conformed}) WHERE NOT {DELETED}", iceberg
    )
    if coming is None or decision.refresh_mode is run_plan.RefreshMode.FULL:
        return None if coming is None else {*existing, *coming}
    if contract.write is WriteMode.APPEND:
        return coming
    # A changed row leaves the partition where the row of its key is now.
    keys = conformed
    if decision.touched is not None:
        keys = DuckReader(session).register_parts(model, decision.touched)
    same = " AND ".join(
        f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in contract.key
    )
    now = f"({session.scan(model.table, head)}) AS t SEMI JOIN ({keys}) AS s ON {same}"
    leaving = find_row_partitions(session, f"SELECT t.* FROM {now}", iceberg)
    return None if leaving is None else coming | leaving


def _since(state: TableState | None, source: str) -> int | None:
    since = bookmarks.read(state).get(source) if state is not None else None
    return None if since is None else int(since)


def _find_backfilled(
    state: TableState, iceberg: Table
) -> Iterator[tuple[str, tuple[PartitionStatus, str]]]:
    """Yield the partitions that unfinished backfills have computed, or failed to compute."""
    from thermocline.lake.overwrite import changed_partitions, partition_values

    for name, ref in state.refs.items():
        run = name.removeprefix(RUN_PREFIX)
        note = find_request(state, run, ref.snapshot) if run != name else None
        if note is None or note.parent is None:
            continue
        for record in changed_partitions(iceberg, note.parent, ref.snapshot):
            yield (
                format_partition(partition_values(iceberg, record)),
                (PartitionStatus.DONE, f"run {run}"),
            )
        failed = state.snapshot(ref.snapshot).summary.get(FAILED_KEY)
        for text, why in json.loads(failed or "{}").items():
            yield text, (PartitionStatus.FAILED, str(why))

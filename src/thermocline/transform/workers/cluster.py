"""Compute work units as tasks of a Spark cluster; Spark schedules them and retries lost tasks.

The project's folder, this package, and the environment variables that the settings use must exist
on the executors.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.transform.workers.pool import (
    ProgressCallback,
    UnitCounters,
    UnitOutcome,
    parse_answer,
)
from thermocline.transform.workers.work_unit import WorkUnit

if TYPE_CHECKING:
    from thermocline.lake import Lake


def compute_units(
    lake: Lake, units: Sequence[WorkUnit], *, on_progress: ProgressCallback = lambda *_: None
) -> list[UnitOutcome]:
    """Compute all units in one Spark job, one task per unit, and return their outcomes."""
    settings = lake.settings
    project, profile = str(settings.project), settings.profile
    memory = settings.workers.bytes
    by_key = {unit.key: unit for unit in units}
    lines = [(unit.key, json.dumps(unit.as_dict())) for unit in units]

    def compute(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
        return _compute_task(project, profile, memory, lines)

    context = lake.spark.session.sparkContext
    tasks = context.parallelize(lines, len(lines)).mapPartitions(compute)
    counters = UnitCounters(sum(len(unit.labels()) for unit in units))
    outcomes = []
    for key, answer in tasks.collect():
        outcome = parse_answer(by_key[key], answer)
        counters.done += len(outcome.unit.labels()) if outcome.done else 0
        counters.failed += len(outcome.unit.labels()) if outcome.error else 0
        on_progress(outcome, counters)
        outcomes.append(outcome)
    return outcomes


def _compute_task(
    project: str, profile: str | None, memory: int, lines: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Compute the units of one task, on a Spark executor."""
    from thermocline.transform.workers.__main__ import answer_lines

    for key, line in lines:
        (answer,) = answer_lines(Path(project), profile, io.StringIO(line), memory, 1)
        yield key, answer

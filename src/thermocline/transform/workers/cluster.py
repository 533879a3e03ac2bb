"""Pieces as tasks of a Spark cluster: Spark says who does which, and does it again when one dies.

The project's folder and this package must be where the executors are, and so must what the
settings ask of the environment.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.transform.workers.pool import Outcome, Tally, Watch, outcome_of
from thermocline.transform.workers.work_unit import Piece

if TYPE_CHECKING:
    from thermocline.lake import Lake


def work(lake: Lake, pieces: Sequence[Piece], *, watch: Watch = lambda *_: None) -> list[Outcome]:
    """Do all pieces as tasks of one Spark job, a piece a task; says what came of each."""
    settings = lake.settings
    project, profile = str(settings.project), settings.profile
    memory = settings.workers.bytes
    by_key = {piece.key: piece for piece in pieces}
    lines = [(piece.key, json.dumps(piece.as_dict())) for piece in pieces]

    def each(given: Iterable[tuple[str, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
        return _done_by_task(project, profile, memory, given)

    context = lake.spark.session.sparkContext
    tasks = context.parallelize(lines, len(lines)).mapPartitions(each)
    tally = Tally(sum(len(piece.labels()) for piece in pieces))
    outcomes = []
    for key, answer in tasks.collect():
        outcome = outcome_of(by_key[key], answer)
        tally.done += len(outcome.piece.labels()) if outcome.done else 0
        tally.failed += len(outcome.piece.labels()) if outcome.error else 0
        watch(outcome, tally)
        outcomes.append(outcome)
    return outcomes


def _done_by_task(
    project: str, profile: str | None, memory: int, given: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """In an executor: do the pieces of one task."""
    from thermocline.transform.workers.__main__ import answered

    for key, line in given:
        (answer,) = answered(Path(project), profile, io.StringIO(line), memory, 1)
        yield key, answer

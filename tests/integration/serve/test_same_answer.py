"""A seeded part of the random questions: DuckDB and Spark give the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.serve import asking, awkward, same_answer
from tests.integration.serve.maker import Maker

SEED, COUNT = 5, 150
CHOSEN = Path(__file__).with_name("questions.sql")
"""Questions in which each construct that is translated meets the awkward rows."""

Askers = tuple[same_answer.Asker, same_answer.Asker]


@pytest.fixture(scope="module")
def askers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Askers]:
    folder = tmp_path_factory.mktemp("same")
    lake = awkward.build(folder)
    with asking.duckdb(lake, folder) as duck, asking.other(lake, folder, "spark") as spark:
        yield duck, spark


def test_random_questions(askers: Askers) -> None:
    maker = Maker(SEED)
    tally = same_answer.compare([maker.question() for _ in range(COUNT)], *askers)
    assert tally.different == []
    # Most are really asked: a translation that refuses everything is never wrong.
    assert tally.same > 0.8 * COUNT, (tally.refused, tally.failed)


def test_chosen_questions(askers: Askers) -> None:
    questions = [line for line in CHOSEN.read_text().splitlines() if line.strip()]
    tally = same_answer.compare(questions, *askers)
    assert tally.different == []
    assert sum(tally.refused.values()) == 0, tally.refused
    assert tally.unanswered == []

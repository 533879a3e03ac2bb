"""No changed part is missed: random chains of CTEs, random changes, the query run before and after.

The parts of the output that really differ must be among those that the analysis names, and rows
that it leaves out must reach none of the parts that are asked for. The same chains find each of
the analysis's guards missing when it is taken out. `make soak` runs more of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.random_chains import DAY, Chain
from tests.unit.transform.impact_mutants import MUTANTS, mutant
from tests.unit.transform.impact_trial import FIRST, Trial, analyze_query, failed, verdict

QUERIES = 250


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    opened = Trial()
    yield opened
    opened.connection.close()


def test_every_part_that_differs_is_named(trial: Trial) -> None:
    seen = Counter[str]()
    for seed in range(QUERIES):
        found = verdict(trial, seed)
        assert not failed(found), f"seed {seed}: {found}"
        seen[found.partition(":")[0]] += 1
    assert seen["no query"] == 0
    # Not by computing everything whole.
    assert seen["incremental"] > QUERIES // 2
    assert seen["whole"] > QUERIES // 8


@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_that_is_taken_out_is_missed(trial: Trial, name: str) -> None:
    _, seed, asked = MUTANTS[name]
    assert not failed(verdict(trial, seed, asked))
    with mutant(name):
        assert failed(verdict(trial, seed, asked))


def test_closing_a_version_touches_nothing_that_happened_before(trial: Trial) -> None:
    sql = (
        "select e.day, c.name, count(*) as n from s.events as e left join s.keys as c "
        "on c.k = e.k and e.n >= c.segment and e.day >= c.since group by e.day, c.name"
    )
    asked = Chain(sql, (("day", DAY),))
    day = FIRST.replace(day=30)
    events = [(n, None, day + timedelta(days=n), 1, n, None, "a") for n in range(4)]
    # Of the same name, and found by other rows: a new image beside each old one but the first.
    before = {"s.events": events, "s.keys": [(1, 0, day, "x")]}
    after = {"s.events": events, "s.keys": [(1, 2, day, "x")]}
    named = trial.named(asked, analyze_query(asked), before, after)
    assert named == {day, day + timedelta(days=1)}

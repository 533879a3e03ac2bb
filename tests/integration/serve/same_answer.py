"""Random questions have the same answer hot, direct, on Spark and on Trino, at the same snapshots.

Every question is made so that there is one right answer: windows and LIMIT stand on a total order.
Rows are compared as multisets, in their order where one is asked for; decimals by their digits,
fractions up to the last ones, in which the order of adding shows. A seeded part is a test;
`python -m benchmarks.questions` asks ten thousand.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import SETTINGS
from tests.integration.serve import asking, awkward, shop_tables
from tests.integration.serve.maker import Maker, ShopMaker

from thermocline.serve.wire.protocol import Frame
from thermocline.sql.guard import QueryRefused
from thermocline.sql.translate import Untranslatable

if TYPE_CHECKING:
    from thermocline.lake import Lake

Asker = Callable[[str], Frame | None]
"""Gives None when the question is not for it: a hot copy does not hold all that is asked for."""
Askers = Mapping[str, Asker]
THREADS = 3
CHUNK = 200
MOST_ASKED = 2
"""So many times the count is asked at most: a translation that refuses everything ends, too."""


@dataclass
class Tally:
    """What came of the questions."""

    asked: int = 0
    same: int = 0
    """Answered by everybody, with the same rows."""
    partly: int = 0
    """The same rows from everybody it was for: not hot, as more is asked for than is held."""
    empty: int = 0
    """Of those: without any row."""
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Questions that have no answer for anybody, by what each said."""
    unanswered: list[tuple[str, str]] = field(default_factory=list)
    """Questions that some could answer and others not."""
    different: list[tuple[str, str]] = field(default_factory=list)

    def add(self, sql: str, answers: Mapping[str, Frame | None] | QueryRefused) -> str | None:
        """Count what the engines said to a question; gives what is wrong with that, if it is."""
        self.asked += 1
        if isinstance(answers, QueryRefused):
            self.refused[answers.cause] += 1
            return None
        given = {name: frame for name, frame in answers.items() if frame is not None}
        errors = {name: frame.error for name, frame in given.items() if frame.error is not None}
        self.answered.update(name for name in given if name not in errors)
        if errors:
            causes = " | ".join(
                f"{who}: {error.get('cause')}"[:140] for who, error in errors.items()
            )
            if len(errors) == len(given):
                self.failed[causes] += 1
                return None
            self.unanswered.append((sql, causes))
            return causes
        found = _differences(given, ordered=ORDERED.search(sql) is not None)
        if found is not None:
            self.different.append((sql, found))
            return found
        self.empty += not any(frame.header["count"] for frame in given.values())
        self.same += len(given) == len(answers)
        self.partly += len(given) < len(answers)
        return None


# Comparing ---------------------------------------------------------------------------------------


def _differences(given: Mapping[str, Frame], ordered: bool) -> str | None:
    """Who differs from the first, and how; None when nobody does."""
    (first, one), *others = given.items()
    for name, other in others:
        found = difference(one, other, ordered)
        if found is not None:
            return f"{first}, {name}: {found}"
    return None


def difference(one: Frame, other: Frame, ordered: bool) -> str | None:
    """What is different between two answers; None when nothing is."""
    names = [[column[0] for column in frame.header["columns"]] for frame in (one, other)]
    if names[0] != names[1]:
        return f"names {names}"
    kinds = [[_kind(column[1]) for column in frame.header["columns"]] for frame in (one, other)]
    if kinds[0] != kinds[1]:
        return f"types {kinds}"
    return rows_differ(asking.rows(one), asking.rows(other), ordered)


def rows_differ(left: list[list[Any]], right: list[list[Any]], ordered: bool) -> str | None:
    """What is different between the rows of two answers; None when nothing is."""
    if len(left) != len(right):
        return f"{len(left)} and {len(right)} rows"
    if not ordered:
        left, right = sorted(left, key=_sortable), sorted(right, key=_sortable)
    for mine, theirs in zip(left, right, strict=True):
        if not all(_equal(a, b) for a, b in zip(mine, theirs, strict=True)):
            return f"{mine} and {theirs}"
    return None


# At the end of the question, not inside of a window.
ORDERED = re.compile(r"(?i)\border by [^()]*$")


def _kind(word: str) -> str:
    """A type without its width: int32 and int64 are the same answer, double and decimal not."""
    if word.startswith("decimal128"):
        return "decimal" + word.partition(",")[2]
    return "int" if word.startswith("int") else word


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return type(one) is type(other) and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


def _sortable(row: list[Any]) -> list[tuple[int, str, str]]:
    """Fractions last and coarsely, so that their last digits don't decide the order."""
    cells = list(enumerate(row))
    exact = [(n, type(v).__name__, str(v)) for n, v in cells if not isinstance(v, float)]
    rough = [(n, "float", f"{v + 0.0:.6e}") for n, v in cells if isinstance(v, float)]
    return exact + rough


# Asking ------------------------------------------------------------------------------------------


def asked(sql: str, askers: Askers) -> dict[str, Frame | None] | QueryRefused:
    """What everybody says to a question; or why it cannot be asked of them all."""
    try:
        return {name: ask(sql) for name, ask in askers.items()}
    except Untranslatable as error:
        return error


def compare(questions: Iterable[str], askers: Askers) -> Tally:
    """Ask everybody, question after question."""
    tally = Tally()
    for sql in questions:
        tally.add(sql, asked(sql, askers))
    return tally


def compare_many(questions: Iterator[str], askers: Askers, count: int, tally: Tally) -> None:
    """Ask several questions at a time, until `count` of them were answered by everybody."""
    with ThreadPoolExecutor(THREADS) as pool:
        while tally.same < count and tally.asked < MOST_ASKED * count:
            chunk = list(itertools.islice(questions, CHUNK))
            for sql, answers in zip(chunk, pool.map(lambda sql: asked(sql, askers), chunk)):
                wrong = tally.add(sql, answers) if tally.same < count else None
                if wrong:
                    print(f"  {sql}\n      {wrong[:400]}", file=sys.stderr, flush=True)
            if not chunk:
                break
            print(f"{tally.same} the same of {tally.asked}", file=sys.stderr, flush=True)


def endless(seed: int) -> Iterator[str]:
    """Questions by chance, always the same ones from a seed: of facts and of the shop in turn."""
    makers = Maker(seed), ShopMaker(seed)
    while True:
        yield from (maker.question() for maker in makers)


def build(folder: Path, settings: str = SETTINGS) -> Lake:
    """A lake with awkward facts and the shop's tables."""
    lake = awkward.build(folder, settings)
    shop_tables.build(lake)
    return lake


def stir(lake: Lake) -> None:
    """Commits to a lake that is served, so that hot copies are carried on and not only made."""
    awkward.stir(lake)
    shop_tables.stir(lake)

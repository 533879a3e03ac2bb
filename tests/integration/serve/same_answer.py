"""Random questions, asked of DuckDB and of Spark, must have the same answer.

    python -m tests.integration.serve.same_answer --count 10000 --seed 1

Every question is made so that there is one right answer: windows and LIMIT stand on a total order.
Rows are compared as multisets, in their order where one is asked for; decimals by their digits,
fractions up to the last ones, in which the order of adding shows.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.serve import asking, awkward
from tests.integration.serve.maker import Maker

from thermocline.serve.question.translate import Unfaithful
from thermocline.serve.wire.wire import Frame

Asker = Callable[[str], Frame]


# Comparing ---------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What came of the questions."""

    same: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)
    """Which only DuckDB could answer."""
    different: list[tuple[str, str]] = field(default_factory=list)


def difference(one: Frame, other: Frame, ordered: bool) -> str | None:
    """What is different between two answers; None when nothing is."""
    names = [[column[0] for column in frame.header["columns"]] for frame in (one, other)]
    if names[0] != names[1]:
        return f"names {names}"
    kinds = [[_kind(column[1]) for column in frame.header["columns"]] for frame in (one, other)]
    if kinds[0] != kinds[1]:
        return f"types {kinds}"
    left, right = asking.rows(one), asking.rows(other)
    if len(left) != len(right):
        return f"{len(left)} and {len(right)} rows"
    if not ordered:
        left, right = sorted(left, key=_sortable), sorted(right, key=_sortable)
    for mine, theirs in zip(left, right, strict=True):
        if not all(_equal(a, b) for a, b in zip(mine, theirs, strict=True)):
            return f"{mine} and {theirs}"
    return None


# At the end of the question, not inside of a window.
_ORDERED = re.compile(r"(?i)\border by [^()]*$")


def _kind(word: str) -> str:
    """A type without its width: int32 and int64 are the same answer, double and decimal not."""
    if word.startswith("decimal128"):
        return "decimal" + word.partition(",")[2]
    return "int" if word.startswith("int") else word


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return type(one) is type(other) and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


def _sortable(row: list[Any]) -> list[tuple[str, str]]:
    """Fractions last and coarsely, so that their last digits don't decide the order."""
    exact = [(type(v).__name__, str(v)) for v in row if not isinstance(v, float)]
    rough = [("float", f"{v + 0.0:.6e}") for v in row if isinstance(v, float)]
    return exact + rough


def compare(questions: Iterable[str], duck: Asker, other: Asker) -> Tally:
    """Ask both, question after question."""
    tally = Tally()
    for sql in questions:
        try:
            theirs, ours = other(sql), duck(sql)
        except Unfaithful as error:
            tally.refused[error.cause] += 1
            continue
        if ours.error is not None or theirs.error is not None:
            # Both must fail; the one that answers may only answer what the other cannot.
            causes = [str((f.error or {}).get("cause", "answered"))[:140] for f in (ours, theirs)]
            tally.failed[" | ".join(causes)] += 1
            if ours.error is None:
                tally.unanswered.append(sql)
            continue
        found = difference(ours, theirs, ordered=_ORDERED.search(sql) is not None)
        if found is None:
            tally.same += 1
        else:
            tally.different.append((sql, found))
    return tally


def main() -> int:
    """Make a lake, start both workers, and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--questions", type=Path, help="a file of questions instead, one a line")
    parser.add_argument("--engine", choices=("spark", "trino"), default="spark")
    parser.add_argument("--dialect", choices=("duckdb", "trino"), default="duckdb")
    given = parser.parse_args()
    lake = awkward.build(given.folder)
    maker = Maker(given.seed)
    questions = [maker.question() for _ in range(given.count)]
    if given.questions:
        questions = [line for line in given.questions.read_text().splitlines() if line.strip()]
    began = time.monotonic()
    with (
        asking.duckdb(lake, given.folder, given.dialect) as duck,
        asking.other(lake, given.folder, given.engine, given.dialect) as other,
    ):
        tally = compare(questions, duck, other)
    report(tally, time.monotonic() - began)
    return 1 if tally.different else 0


def report(tally: Tally, seconds: float) -> None:
    """Say what came of it."""
    print(f"{tally.same} the same in {seconds:.0f} s")
    for name, found in (("refused", tally.refused), ("failed", tally.failed)):
        print(f"{sum(found.values())} {name}")
        for cause, count in found.most_common(40):
            print(f"  {count:5} {cause}")
    for sql in tally.unanswered[:20]:
        print(f"  only DuckDB: {sql}")
    print(f"{len(tally.different)} DIFFERENT")
    for sql, found in tally.different[:40]:
        print(f"  {sql}\n      {found[:400]}")


if __name__ == "__main__":
    sys.exit(main())

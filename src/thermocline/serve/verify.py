"""A second opinion: some hot answers are computed again from the files, at the same snapshots.

A copy in memory that is wrong would be wrong for everybody who asks, and quickly. So a sample is
held against the lake behind the caller's back. A table whose copy gave another answer is not
served hot until the copy was made anew.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from thermocline import telemetry
from thermocline.errors import ThermoclineError
from thermocline.sql.translate import undetermined

if TYPE_CHECKING:
    from thermocline.serve.fleet.fleet import Fleet
    from thermocline.serve.fleet.messages import Allowance, Reading
    from thermocline.serve.route import Way
    from thermocline.serve.terms import Format, Lookout, Rows
    from thermocline.sql.guard import Question

MOST_AT_ONCE = 2
REPEAT_SECONDS = 1.0


class Verifier:
    """Looks at hot answers twice, a few at a time, and remembers whom not to trust."""

    def __init__(self, fleet: Fleet, forget: Callable[[], None] = lambda: None) -> None:
        """`forget` is called when a copy was wrong: what it answered before may be kept."""
        self._fleet = fleet
        self._forget = forget
        self._tasks: set[asyncio.Task[None]] = set()
        self._distrusted: dict[str, int | None] = {}
        """Tables whose copies were wrong, and from which epoch on they are new ones."""
        self.looked = 0
        self.mismatches = 0

    def distrusted(self, lookout: Lookout) -> frozenset[str]:
        """The tables whose copies are not to be used."""
        for table, epoch in list(self._distrusted.items()):
            if epoch is not None and lookout.epoch >= epoch:
                del self._distrusted[table]
        return frozenset(self._distrusted)

    def look(
        self,
        question: Question,
        rows: Rows,
        way: Way,
        sql: str,
        views: Mapping[str, Reading],
        format: Format,
        allowed: Allowance,
    ) -> None:
        """Compare with what the direct way gives, in the background; not when that is busy.

        Answers in Arrow or CSV are passed over: here is nothing that could read them.
        """
        if format not in ("json", "trino") or len(self._tasks) >= MOST_AT_ONCE:
            return
        if undetermined(question) is not None:
            return
        work = self._compare(rows, way, sql, views, format, allowed)
        task = asyncio.create_task(work, name="second opinion")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Wait for the comparisons under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await self.settled()

    async def _compare(
        self,
        rows: Rows,
        way: Way,
        sql: str,
        views: Mapping[str, Reading],
        format: Format,
        allowed: Allowance,
    ) -> None:
        try:
            other = await self._fleet.ask(way, sql, views, format, allowed)
        except (ThermoclineError, TimeoutError):
            return  # no opinion
        self.looked += 1
        if same(rows, other):
            return
        self.mismatches += 1
        tables = sorted(way.snapshots)
        telemetry.log(
            "serve", "mismatch", level="ERROR", tables=tables, query=sql[:2000],
            snapshots={table: str(each) for table, each in way.snapshots.items()},
            rows=[rows.count, other.count],
        )  # fmt: skip
        self._distrusted.update(dict.fromkeys(tables))
        self._forget()
        while True:
            try:
                epoch = await self._fleet.rebuild(tables)
            except (ThermoclineError, TimeoutError):
                await asyncio.sleep(REPEAT_SECONDS)
                continue
            self._distrusted.update(dict.fromkeys(tables, epoch))
            return


def same(one: Rows, other: Rows) -> bool:
    """Whether two answers have the same rows, in any order.

    A sum of fractions depends on the order in which they are added, which is nobody's promise:
    such numbers are the same when they differ in their last digits only.
    """
    if one.columns != other.columns or one.count != other.count:
        return False
    lines = Counter(one.body.splitlines()), Counter(other.body.splitlines())
    if lines[0] == lines[1]:
        return True
    inexact = [n for n, column in enumerate(one.columns) if column.type in ("float", "double")]
    if not inexact:
        return False
    left, right = (_ordered(rows, inexact) for rows in lines)
    return all(_close(mine, theirs, inexact) for mine, theirs in zip(left, right, strict=True))


def _ordered(lines: Counter[bytes], inexact: list[int]) -> list[list[Any]]:
    """The rows, sorted by what is exact in them and then by the rest."""
    rows = [json.loads(line) for line in lines.elements()]

    def key(row: list[Any]) -> tuple[str, list[float]]:
        exact = [value for n, value in enumerate(row) if n not in inexact]
        return json.dumps(exact), [_number(row[n]) for n in inexact]

    return sorted(rows, key=key)


def _close(mine: list[Any], theirs: list[Any], inexact: list[int]) -> bool:
    for n, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        both = isinstance(one, float | int) and isinstance(other, float | int)
        if n in inexact and both:
            if not math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9):
                return False
        elif one != other:
            return False
    return True


def _number(value: Any) -> float:
    return float(value) if isinstance(value, float | int) else -math.inf

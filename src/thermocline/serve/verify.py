"""Verify a sample of hot answers: recompute them from the files, at the same snapshots.

A wrong copy in memory would give wrong answers to all callers. So a sample is compared with the
lake in the background. A table whose copy gave another answer is not served hot until it is
rebuilt.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thermocline import telemetry
from thermocline.errors import ThermoclineError
from thermocline.sql.translate import explain_nondeterminism

if TYPE_CHECKING:
    from thermocline.serve.fleet.fleet import Fleet
    from thermocline.serve.fleet.messages import EngineQuery
    from thermocline.serve.route import AccessPath
    from thermocline.serve.values import EncodedRows, LakeState
    from thermocline.sql.guard import GuardedQuery

MAX_CONCURRENT = 2
RETRY_SECONDS = 1.0


class Verifier:
    """Recomputes hot answers, a few at a time, and tracks tables with wrong copies."""

    def __init__(self, fleet: Fleet, clear_cache: Callable[[], None] = lambda: None) -> None:
        """`clear_cache` is called when a copy was wrong: its earlier results may be cached."""
        self._fleet = fleet
        self._clear_cache = clear_cache
        self._tasks: set[asyncio.Task[None]] = set()
        self._distrusted: dict[str, int | None] = {}
        """Tables whose copies were wrong, and the epoch from which on they are rebuilt."""
        self.checked = 0
        self.mismatches = 0

    def distrusted_tables(self, lake_state: LakeState) -> frozenset[str]:
        """Return the tables whose copies must not be used."""
        for table, epoch in list(self._distrusted.items()):
            if epoch is not None and lake_state.epoch >= epoch:
                del self._distrusted[table]
        return frozenset(self._distrusted)

    def verify(
        self,
        query: GuardedQuery,
        rows: EncodedRows,
        access_path: AccessPath,
        recomputation: EngineQuery,
    ) -> None:
        """Compare with the direct worker's answer in the background, unless too many comparisons
        run.

        Answers in Arrow or CSV are skipped: the router cannot parse them.
        """
        if recomputation.format not in ("json", "trino") or len(self._tasks) >= MAX_CONCURRENT:
            return
        if explain_nondeterminism(query) is not None:
            return
        work = self._compare(rows, access_path, recomputation)
        task = asyncio.create_task(work, name="verify")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait for running comparisons."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Cancel running comparisons."""
        for task in self._tasks:
            task.cancel()
        await self.wait()

    async def _compare(
        self, rows: EncodedRows, access_path: AccessPath, recomputation: EngineQuery
    ) -> None:
        try:
            other = await self._fleet.execute(access_path, recomputation)
        except (ThermoclineError, TimeoutError):
            return  # nothing to compare with
        self.checked += 1
        if have_same_rows(rows, other):
            return
        self.mismatches += 1
        tables = sorted(access_path.snapshots)
        telemetry.log(
            "serve", "mismatch", level="ERROR", tables=tables, query=recomputation.sql[:2000],
            snapshots={table: str(each) for table, each in access_path.snapshots.items()},
            rows=[rows.count, other.count],
        )  # fmt: skip
        self._distrusted.update(dict.fromkeys(tables))
        self._clear_cache()
        while True:
            try:
                epoch = await self._fleet.rebuild(tables)
            except (ThermoclineError, TimeoutError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._distrusted.update(dict.fromkeys(tables, epoch))
            return


def have_same_rows(one: EncodedRows, other: EncodedRows) -> bool:
    """Return whether two answers have the same rows, in any order.

    A sum of floating-point numbers depends on their order, which no engine guarantees: such numbers
    are equal when they differ only in their last digits.
    """
    if one.columns != other.columns or one.count != other.count:
        return False
    lines = Counter(one.body.splitlines()), Counter(other.body.splitlines())
    if lines[0] == lines[1]:
        return True
    inexact = [n for n, column in enumerate(one.columns) if column.type in ("float", "double")]
    if not inexact:
        return False
    left, right = (_sort_rows(rows, inexact) for rows in lines)
    return all(
        _is_close(left_row, right_row, inexact)
        for left_row, right_row in zip(left, right, strict=True)
    )


def _sort_rows(lines: Counter[bytes], inexact: list[int]) -> list[list[Any]]:
    """Return the rows, sorted by their exact values and then by the others."""
    rows = [json.loads(line) for line in lines.elements()]

    def key(row: list[Any]) -> tuple[str, list[float]]:
        exact = [value for n, value in enumerate(row) if n not in inexact]
        return json.dumps(exact), [_number(row[n]) for n in inexact]

    return sorted(rows, key=key)


def _is_close(left_row: list[Any], right_row: list[Any], inexact: list[int]) -> bool:
    for n, (one, other) in enumerate(zip(left_row, right_row, strict=True)):
        both = isinstance(one, float | int) and isinstance(other, float | int)
        if n in inexact and both:
            if not math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9):
                return False
        elif one != other:
            return False
    return True


def _number(value: Any) -> float:
    return float(value) if isinstance(value, float | int) else -math.inf

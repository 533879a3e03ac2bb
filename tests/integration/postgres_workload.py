"""Random transactions on the orders table, the same for the same seed."""

from __future__ import annotations

import random
import threading
from typing import Any


class Workload:
    """Two connections that change rows of their own, so that neither waits for the other.

    Their transactions overlap: the order of commits is not the order of changes. Some are rolled
    back; keys are changed, rows deleted and inserted again.
    """

    def __init__(self, one: Any, other: Any, seed: int) -> None:
        self._random = random.Random(seed)
        self._connections = (one, other)
        for connection in self._connections:
            connection.autocommit = False
        self._live: tuple[set[int], set[int]] = (set(), set())
        self._open: list[set[int] | None] = [None, None]
        self.changes = 0

    def run(self, changes: int) -> None:
        """Do about so many changes of rows, and commit what is open."""
        until = self.changes + changes
        while self.changes < until:
            side = self._random.randrange(2)
            self._statement(side)
            if self._random.random() < 0.35:
                self._end(side)
        for side in (0, 1):
            self._end(side)

    def run_until(self, done: threading.Event) -> None:
        """Go on, not too fast, until somebody is done; then commit what is open."""
        while not done.wait(0.005):
            side = self._random.randrange(2)
            self._statement(side)
            if self._random.random() < 0.1:
                self._end(side)
        for side in (0, 1):
            self._end(side)

    def _end(self, side: int) -> None:
        before = self._open[side]
        if before is None:
            return
        if self._random.random() < 0.15:
            self._connections[side].rollback()
            self._live[side].clear()
            self._live[side].update(before)
        else:
            self._connections[side].commit()
        self._open[side] = None

    def _statement(self, side: int) -> None:
        live = self._live[side]
        if self._open[side] is None:
            self._open[side] = set(live)
        chosen = self._random.random()
        with self._connections[side].cursor() as cursor:
            if chosen < 0.4 or len(live) < 50:
                self._insert(cursor, side, live)
            elif chosen < 0.75:
                self._update(cursor, live)
            elif chosen < 0.9:
                self._delete(cursor, live)
            else:
                self._rekey(cursor, side, live)

    def _insert(self, cursor: Any, side: int, live: set[int]) -> None:
        wanted = {
            self._random.randrange(1000) * 2 + side for _ in range(self._random.randint(1, 40))
        }
        fresh = sorted(wanted - live)
        for key in fresh:
            row = (key, f"n{self._random.random()}", self._random.randrange(10**6) / 100)
            cursor.execute("insert into orders (id, customer, amount) values (%s, %s, %s)", row)
        live.update(fresh)
        self.changes += len(fresh)

    def _update(self, cursor: Any, live: set[int]) -> None:
        keys = self._some(live, 30)
        cursor.execute(
            "update orders set customer = %s, amount = amount + 1 where id = any(%s)",
            (f"u{self._random.random()}", keys),
        )
        self.changes += len(keys)

    def _delete(self, cursor: Any, live: set[int]) -> None:
        keys = self._some(live, 15)
        cursor.execute("delete from orders where id = any(%s)", (keys,))
        live.difference_update(keys)
        self.changes += len(keys)

    def _rekey(self, cursor: Any, side: int, live: set[int]) -> None:
        [key] = self._some(live, 1)
        new = self._random.randrange(1000) * 2 + side
        if new in live:
            return
        cursor.execute("update orders set id = %s where id = %s", (new, key))
        live.remove(key)
        live.add(new)
        self.changes += 2

    def _some(self, live: set[int], most: int) -> list[int]:
        return self._random.sample(sorted(live), min(len(live), self._random.randint(1, most)))

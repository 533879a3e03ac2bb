"""Brings one node to the newest look, and keeps it there.

One thread tends a node. After each look it stages the differences of all copies and applies them
in one step, so that the copies of a node are always of one look. Copies that are not there yet are
built beside what is served, a batch at a time between the looks; a new one joins the others at
their next step. Only copies that are at the node's look are told of.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from thermocline import telemetry
from thermocline.serve.keeper import steps
from thermocline.serve.keeper.copies import Copy, fits
from thermocline.serve.keeper.link import Link, Refused
from thermocline.serve.keeper.policy import needed
from thermocline.serve.keeper.steps import Build, Step, Unfed, or_unfed
from thermocline.serve.terms import Held
from thermocline.serve.wire.frame import Lost, Malformed

if TYPE_CHECKING:
    from thermocline.serve.keeper.goals import Goal, Want

BUILD_BYTES = 64 << 20
"""A difference that reads more than this does not hold up the other tables: it is a new copy."""
RETRY_SECONDS = 10.0
CONNECT_SECONDS = 0.1
PING_SECONDS = 1.0


class Feeder:
    """One node, tended until `stop`. Calls `told` when what it holds has changed."""

    def __init__(self, name: str, address: str, token: str, told: Callable[[], None]) -> None:
        self.name = name
        self.up = False
        self.held: Mapping[str, Held] = {}
        """What may be asked of the node: the copies that are at its look."""
        self.room = sys.maxsize
        """How many bytes of copies it has room for, as far as it let us know."""
        self._place = (address, token)
        self._told = told
        self._changed = threading.Condition()
        self._goal: Goal | None = None
        self._stopped = False
        self._copies: dict[str, Copy] = {}
        self._failed: dict[str, tuple[str, float]] = {}
        self._building: Build | None = None
        threading.Thread(target=self._run, name=f"feed {name}", daemon=True).start()

    def is_at(self, address: str, token: str) -> bool:
        """Whether this is the node that is reached there."""
        return self._place == (address, token)

    def aim(self, goal: Goal) -> None:
        """Hold this from now on."""
        with self._changed:
            self._goal = goal
            self._changed.notify_all()

    def distrust(self, tables: Iterable[str]) -> None:
        """Tell of no copy of these tables that is there now, and make new ones."""
        with self._changed:
            for table in set(tables) & self._copies.keys():
                self._copies[table] = replace(self._copies[table], stale=True, hidden=True)
            self.held = {t: held for t, held in self.held.items() if t not in set(tables)}
            self._changed.notify_all()

    def stop(self) -> None:
        """Let go of the node."""
        with self._changed:
            self._stopped = True
            self.up = False
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._stopped:
            link = None
            try:
                link = Link.open(*self._place)
                self._tend(link)
            except (Lost, Malformed, Refused) as error:
                if link is not None and not self._stopped:
                    telemetry.log(
                        "keeper", "node lost", level="WARNING", node=self.name, error=str(error)
                    )
            finally:
                if link is not None:
                    link.close()
            self._lost()
            time.sleep(CONNECT_SECONDS)

    def _lost(self) -> None:
        with self._changed:
            was_up, self.up = self.up, False
            self.held, self._copies, self._building = {}, {}, None
        if was_up and not self._stopped:
            self._told()

    def _tend(self, link: Link) -> None:
        """Keep the node at its goal until the connection is lost."""
        link.reset()
        found = link.held()
        with self._changed:
            self._copies = {
                table: Copy(held.snapshot, held.since, rows=held.rows, bytes=held.bytes, stale=True)
                for table, held in found.items()
            }
            self._failed.clear()
            self.room = sys.maxsize
            self.up = True
        self._told()
        reached: Goal | None = None
        while not self._stopped:
            goal = self._awaited(reached)
            if goal is None:
                link.ping()
                continue
            # A look is followed between two batches of a copy that is in the making.
            if goal is not reached or self._build(link, goal):
                self._follow(link, goal)
                reached = goal

    def _awaited(self, reached: Goal | None) -> Goal | None:
        """The goal, as soon as there is something to do for it; None if there was not for long."""
        with self._changed:
            if not self._busy(reached):
                self._changed.wait(PING_SECONDS)
            return self._goal if self._busy(reached) else None

    def _busy(self, reached: Goal | None) -> bool:
        if self._goal is not reached or self._building is not None:
            return True
        return reached is not None and self._lacking(reached) is not None

    # Following: all copies to the look, in one step -----------------------------------------------

    def _follow(self, link: Link, goal: Goal) -> None:
        """Bring the copies to the goal's look; one that cannot be brought there is dropped."""
        unfed: set[str] = set()
        while True:
            try:
                self._tell(goal, *self._apply(link, goal, unfed))
                return
            except Unfed as error:
                unfed.add(error.table)
                self._fail(goal.wants[error.table], error.__cause__)

    def _apply(
        self, link: Link, goal: Goal, unfed: set[str]
    ) -> tuple[dict[str, Copy], dict[str, Held]]:
        """Do what every copy needs at once, or nothing; gives the copies as they are then."""
        copies = {t: c for t, c in self._copies.items() if self._keeps(t, c, goal, unfed)}
        drops = self._copies.keys() - copies.keys()
        found: list[Step] = []
        for table, copy in copies.items():
            want = goal.wants[table]
            step = steps.step(copy, want)
            if step is not None and step.found.bytes <= BUILD_BYTES:
                found.append(step)
                copies[table] = step.after
            elif copy.snapshot != want.sight.head.snapshot or not fits(copy, want):
                copies[table] = replace(copy, stale=True)
        if not found and not drops:
            return copies, link.held()
        change = link.begin()
        try:
            for table in drops:
                link.drop(change, table)
            for step in found:
                steps.send(link, change, step)
            with or_unfed(steps.heaviest(found)):
                held = link.apply(change)
        except Unfed:
            link.abandon(change)
            raise
        for step in found:
            step.taken()
        return copies, held

    def _keeps(self, table: str, copy: Copy, goal: Goal, unfed: set[str]) -> bool:
        # A stale copy whose successor found no room makes it, when it goes.
        return table in goal.wants and table not in unfed and not (
            copy.stale and self._has_failed(goal.wants[table])
        )  # fmt: skip

    def _tell(self, goal: Goal, copies: Mapping[str, Copy], on_node: Mapping[str, Held]) -> None:
        """Tell of the copies that are at the look."""
        with self._changed:
            now = self._copies  # somebody may have come to distrust one meanwhile
            self._copies = {
                table: replace(
                    copy,
                    rows=on_node[table].rows,
                    bytes=on_node[table].bytes,
                    stale=copy.stale or now[table].hidden,
                    hidden=now[table].hidden,
                )
                for table, copy in copies.items()
                if table in on_node
            }
            before = self.held
            self.held = {
                table: Held(copy.snapshot, copy.since, copy.rows, copy.bytes)
                for table, copy in self._copies.items()
                if not copy.hidden and copy.snapshot == goal.wants[table].sight.head.snapshot
            }
            same = before == self.held
        if not same:
            self._told()

    # Building: copies that are not there yet ------------------------------------------------------

    def _build(self, link: Link, goal: Goal) -> bool:
        """Go on with a new copy by one batch; says whether it is done."""
        build, table = self._building, self._lacking(goal)
        try:
            if build is None:
                self._building = steps.begin(link, goal.wants[table]) if table else None
                return False
            table = build.want.sight.head.table
            if not steps.is_wanted(build, goal):
                raise Unfed(table)
            with or_unfed(table):
                for batch in build.batches:
                    link.rows(build.change, table, batch)
                    return False
                link.apply(build.change)
        except Unfed as error:
            if error.__cause__ is not None:
                self._fail(build.want if build else goal.wants[error.table], error.__cause__)
            if build is not None:
                link.abandon(build.change)
            self._building = None
            return False
        with self._changed:
            self._copies[table] = build.after
        self._building = None
        return True

    def _lacking(self, goal: Goal) -> str | None:
        """The table to make a copy of next: the most valuable first, of equal ones the smaller."""
        tables = [
            table
            for table, want in goal.wants.items()
            if (table not in self._copies or self._copies[table].stale)
            and not self._has_failed(want)
        ]
        return min(tables, key=lambda t: goal.wants[t].rank, default=None)

    def _fail(self, want: Want, cause: BaseException | None) -> None:
        head = want.sight.head
        self._failed[head.table] = head.metadata, time.monotonic()
        telemetry.log(
            "keeper", "unfed", level="ERROR", node=self.name, table=head.table, error=str(cause)
        )
        if isinstance(cause, Refused) and cause.details["code"] == "memory":
            # What is there and this do not go together: one of them is to go, by its value.
            there = sum(c.bytes for t, c in self._copies.items() if t != head.table)
            self.room = min(self.room, there + needed(head, want.since) - 1)
            self._told()

    def _has_failed(self, want: Want) -> bool:
        """Whether the same was tried in vain, not long ago."""
        pointer, at = self._failed.get(want.sight.head.table, ("", 0.0))
        recent = time.monotonic() - at < RETRY_SECONDS
        return recent and pointer == want.sight.head.metadata

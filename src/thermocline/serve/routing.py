"""From a prepared question to its route: with a view of the lake that is new enough for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.errors import BadInput, NotFound
from thermocline.serve.question.span import EVERYTHING
from thermocline.serve.route import Engines, Route, Wanted, decide
from thermocline.serve.routed import Routed, in_order, is_newest
from thermocline.serve.terms import Ask, Caller, Lookout

if TYPE_CHECKING:
    from thermocline.serve.fleet.fleet import Fleet
    from thermocline.serve.freshness import Freshness
    from thermocline.serve.prepare import Prepared
    from thermocline.serve.readers import Readers
    from thermocline.serve.verify import Verifier

LOOK_SECONDS = 2.0


class Routing:
    """Decides routes, and remembers them for as long as they are right."""

    def __init__(
        self, fleet: Fleet, readers: Readers, freshness: Freshness, verifier: Verifier
    ) -> None:
        self._fleet = fleet
        self._readers = readers
        self._freshness = freshness
        self._verifier = verifier

    async def fresh(self, prepared: Prepared, ask: Ask, caller: Caller) -> Lookout:
        """A lookout that is new enough for the request and has all its tables.

        A table that the caller may not read is looked for as long as one that is not there.
        """
        tables = prepared.tables
        hidden = {table for table in tables if not self._readers.may(caller, table)}
        lookout = self._fleet.lookout
        age = (datetime.now(UTC) - lookout.looked_at).total_seconds()
        unknown = [table for table in tables if table in hidden or table not in lookout.heads]
        asked = [each for each in (ask.snapshot, ask.min_snapshot) if each is not None]
        table = self._pinned(prepared, ask) if asked else None
        head = lookout.heads.get(table) if table else None
        unseen = head is not None and any(each not in head.snapshots for each in asked)
        too_old = ask.max_staleness is not None and age > ask.max_staleness
        if unknown or unseen or too_old:
            lookout = await self._fleet.look(LOOK_SECONDS)
        for table in tables:
            if table in hidden or table not in lookout.heads:
                raise _no_table(table)
        return lookout

    def _pinned(self, prepared: Prepared, ask: Ask) -> str:
        """The table that a snapshot in the request is of."""
        if ask.table_id is not None:
            return ask.table_id.lower()
        if len(prepared.tables) != 1:
            raise BadInput("A snapshot is of one table.", "Name it with table_id.")
        return prepared.tables[0]

    def route(self, prepared: Prepared, ask: Ask, lookout: Lookout) -> tuple[Wanted, Route]:
        """Which snapshots will do, and where the question goes. Raises NotFound, BadInput."""
        for table in prepared.tables:
            if table not in lookout.heads:  # dropped since the last look
                raise _no_table(table)
        exactly: dict[str, int] = {}
        at_least: dict[str, int] = {}
        for snapshot, into in ((ask.snapshot, exactly), (ask.min_snapshot, at_least)):
            if snapshot is not None:
                table = self._pinned(prepared, ask)
                if snapshot not in lookout.heads[table].snapshots:
                    raise NotFound(
                        f"{table} has no snapshot {snapshot}.",
                        f"`thermo history {table}` lists them.",
                    )
                into[table] = snapshot
        wanted = Wanted(exactly, at_least, self._freshness.tolerated(ask), self._fleet.left)
        distrusted = self._verifier.distrusted(lookout)
        engines = self._fleet.engines()
        if ask.format == "arrow":  # Trino gives JSON, and nobody here could turn it into Arrow
            cold = tuple(name for name in engines.cold if name != "trino")
            engines = replace(engines, cold=cold)
        if exactly or at_least:
            return wanted, self._decided(prepared, lookout, wanted, engines, distrusted)
        who = (*engines.nodes, engines.direct, engines.cold, wanted.tolerance, distrusted)
        known = prepared.routed
        if known is not None and known.holds(lookout, who):
            return wanted, known.route
        route = self._decided(prepared, lookout, wanted, engines, distrusted)
        lasting = is_newest(route, lookout) and not route.soon
        prepared.routed = Routed.of(route, prepared.tables, lookout, who) if lasting else None
        return wanted, route

    def _decided(
        self,
        prepared: Prepared,
        lookout: Lookout,
        wanted: Wanted,
        engines: Engines,
        distrusted: frozenset[str],
    ) -> Route:
        # An older snapshot may have had other columns: nothing is concluded from today's.
        found = prepared.spans(lookout.heads)
        spans = {t: EVERYTHING if t in wanted.exactly else span for t, span in found.items()}
        now = datetime.now(UTC)
        route = decide(spans, lookout, wanted, engines, now=now, distrusted=distrusted)
        return replace(route, ways=in_order(route.ways, lookout.heads, self._fleet.busy))


def _no_table(table: str) -> NotFound:
    return NotFound(
        f"There is no table {table}.",
        "`thermo tables` lists them; `thermo doctor` says why one of those is not served.",
    )

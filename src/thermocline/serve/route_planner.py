"""Plan the route of a prepared query, with a fresh enough state of the lake."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.errors import BadInput, NotFound
from thermocline.serve.analysis.time_range import UNBOUNDED
from thermocline.serve.route import Engines, Route, SnapshotRequirements, decide_route
from thermocline.serve.route_cache import CachedRoute, order_paths, reads_newest
from thermocline.serve.values import Caller, LakeState, QueryRequest

if TYPE_CHECKING:
    from thermocline.serve.fleet.fleet import Fleet
    from thermocline.serve.freshness import Freshness
    from thermocline.serve.query_preparation import PreparedQuery
    from thermocline.serve.table_access import TableAccess
    from thermocline.serve.verify import Verifier

POLL_SECONDS = 2.0


class RoutePlanner:
    """Decides routes, and caches them while they are valid."""

    def __init__(
        self, fleet: Fleet, table_access: TableAccess, freshness: Freshness, verifier: Verifier
    ) -> None:
        self._fleet = fleet
        self._table_access = table_access
        self._freshness = freshness
        self._verifier = verifier

    async def wait_for_fresh_state(
        self, prepared: PreparedQuery, request: QueryRequest, caller: Caller
    ) -> LakeState:
        """Return a state that is fresh enough for the request and has all its tables.

        A table that the caller may not read takes as long as one that does not exist.
        """
        tables = prepared.tables
        hidden = {table for table in tables if not self._table_access.can_read(caller, table)}
        lake_state = self._fleet.lake_state
        age = (datetime.now(UTC) - lake_state.polled_at).total_seconds()
        unknown = [
            table for table in tables if table in hidden or table not in lake_state.table_heads
        ]
        requested = [each for each in (request.snapshot, request.min_snapshot) if each is not None]
        table = self._pinned_table(prepared, request) if requested else None
        head = lake_state.table_heads.get(table) if table else None
        is_unseen = head is not None and any(each not in head.snapshots for each in requested)
        is_too_old = request.max_staleness is not None and age > request.max_staleness
        if unknown or is_unseen or is_too_old:
            lake_state = await self._fleet.poll(POLL_SECONDS)
        for table in tables:
            if table in hidden or table not in lake_state.table_heads:
                raise _table_not_found(table)
        return lake_state

    def _pinned_table(self, prepared: PreparedQuery, request: QueryRequest) -> str:
        """Return the table that a snapshot in the request refers to."""
        if request.table_id is not None:
            return request.table_id.lower()
        if len(prepared.tables) != 1:
            raise BadInput("A snapshot needs a single table.", "Name it with table_id.")
        return prepared.tables[0]

    def plan_route(
        self, prepared: PreparedQuery, request: QueryRequest, lake_state: LakeState
    ) -> tuple[SnapshotRequirements, Route]:
        """Return the snapshot requirements and the route. Raises NotFound and BadInput."""
        for table in prepared.tables:
            if table not in lake_state.table_heads:  # dropped since the last poll
                raise _table_not_found(table)
        exactly: dict[str, int] = {}
        at_least: dict[str, int] = {}
        for snapshot, into in ((request.snapshot, exactly), (request.min_snapshot, at_least)):
            if snapshot is not None:
                table = self._pinned_table(prepared, request)
                if snapshot not in lake_state.table_heads[table].snapshots:
                    raise NotFound(
                        f"{table} has no snapshot {snapshot}.",
                        f"`thermo history {table}` lists them.",
                    )
                into[table] = snapshot
        requirements = SnapshotRequirements(
            exactly, at_least, self._freshness.tolerance_for(request), self._fleet.superseded_at
        )
        distrusted = self._verifier.distrusted_tables(lake_state)
        engines = self._fleet.available_engines()
        if (
            request.format == "arrow"
        ):  # Trino returns JSON, which the router does not convert to Arrow
            cold = tuple(name for name in engines.cold if name != "trino")
            engines = replace(engines, cold=cold)
        if exactly or at_least:
            return requirements, self._decide(
                prepared, lake_state, requirements, engines, distrusted
            )
        available = (
            *engines.nodes,
            engines.direct,
            engines.cold,
            requirements.tolerance,
            distrusted,
        )
        known = prepared.cached_route
        if known is not None and known.is_valid_for(lake_state, available):
            return requirements, known.route
        route = self._decide(prepared, lake_state, requirements, engines, distrusted)
        is_lasting = reads_newest(route, lake_state) and not route.is_node_catching_up
        prepared.cached_route = (
            CachedRoute.from_decision(route, prepared.tables, lake_state, available)
            if is_lasting
            else None
        )
        return requirements, route

    def _decide(
        self,
        prepared: PreparedQuery,
        lake_state: LakeState,
        requirements: SnapshotRequirements,
        engines: Engines,
        distrusted: frozenset[str],
    ) -> Route:
        # An older snapshot may have other columns: today's time range is not used.
        found = prepared.time_ranges(lake_state.table_heads)
        time_ranges = {
            t: UNBOUNDED if t in requirements.exactly else time_range
            for t, time_range in found.items()
        }
        now = datetime.now(UTC)
        route = decide_route(
            time_ranges, lake_state, requirements, engines, now=now, distrusted=distrusted
        )
        return replace(
            route,
            access_paths=order_paths(
                route.access_paths, lake_state.table_heads, self._fleet.count_running
            ),
        )


def _table_not_found(table: str) -> NotFound:
    return NotFound(
        f"There is no table {table}.",
        "`thermo tables` lists them; `thermo doctor` explains why a listed one is not served.",
    )

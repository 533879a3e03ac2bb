"""The routes of the HTTP API: queries, and the status of the server.

Starlette without a model layer: rows pass through as bytes, and `request_parser.py` checks the
requests. `openapi.py` describes all routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from thermocline.config import ServeSettings
from thermocline.errors import NotFound, ThermoclineError, Transient
from thermocline.serve.http import openapi, request_parser, responses
from thermocline.serve.http.admission import CallerLimiter, LimitedRouter, QueryRouter
from thermocline.serve.http.metrics import CONTENT_TYPE, Metrics
from thermocline.serve.http.request_guard import RequestGuard
from thermocline.serve.http.send_budget import SendBudget
from thermocline.serve.identity.authenticator import Authenticator
from thermocline.serve.values import NO_SNAPSHOT, HotCopy, LakeState, TableHead

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    Handler = Callable[[Request], Awaitable[Response]]

ProtocolRoutes = Callable[[LimitedRouter, Authenticator], Sequence[BaseRoute]]
"""Routes of another protocol on the same server, such as Trino's."""

METRICS_SECONDS = 0.5
WATCH_DELAY_SECONDS = 0.05
"""A query that takes longer than this is cancelled when its caller disconnects."""


def create_app(
    router: QueryRouter,
    authenticator: Authenticator,
    metrics: Metrics,
    settings: ServeSettings,
    protocols: Sequence[ProtocolRoutes] = (),
) -> Starlette:
    """Return the server as an ASGI application that starts and stops the router."""
    limiter = CallerLimiter(settings.concurrency, settings.rate)
    send_budget = SendBudget(settings.sending_bytes)
    limited_router = LimitedRouter(router, metrics, limiter, settings.max_seconds, send_budget)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            try:
                await router.start()
            except Exception as error:
                app.state.failed = error  # `server.serve` reports it
                raise
            updating = asyncio.create_task(_update_metrics_forever(limited_router, metrics))
            try:
                yield
            finally:
                updating.cancel()
        finally:
            await router.stop()

    pages = StatusEndpoints(limited_router, authenticator, metrics, settings)
    query = QueryEndpoint(limited_router, authenticator)
    door = Middleware(
        RequestGuard,
        hosts=settings.hosts,
        any_host=not authenticator.open,
        direct_routes={("POST", "/query"): query},
    )
    routes = [
        Route("/query", query, methods=["POST"]),
        Route("/explain", _render_errors(pages.explain), methods=["GET", "POST"]),
        Route("/tables", _render_errors(pages.tables)),
        Route("/nodes", _render_errors(pages.nodes)),
        Route("/metrics", _render_errors(pages.metrics)),
        Route("/health", _render_errors(pages.health)),
        Route("/ready", _render_errors(pages.is_ready)),
        Route("/openapi.json", _render_errors(pages.openapi)),
        *(route for more in protocols for route in more(limited_router, authenticator)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[door],
        exception_handlers={HTTPException: _render_http_exception},
    )
    app.router.redirect_slashes = False
    return app


class QueryEndpoint:
    """POST /query. Plain ASGI without Starlette's request objects: this is the hot path."""

    def __init__(self, limited_router: LimitedRouter, authenticator: Authenticator) -> None:
        self._router = limited_router
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = _DisconnectWatch(receive)
        try:
            authorization, accept = [], None
            for name, value in scope["headers"]:
                if name == b"authorization":
                    authorization.append(value.decode("latin-1"))
                elif name == b"accept":
                    accept = value.decode("latin-1")
            caller = self._authenticator.authenticate(authorization)
            query_request = request_parser.parse_body(
                await request_parser.read_body(scope, receive), accept
            )
            with watch:
                answer = await self._router.answer(query_request, caller)
            release = self._router.send_budget.reserve(caller.name, answer.rows.body)
        except asyncio.CancelledError:
            if not watch.has_disconnected:
                raise
            return  # the caller has disconnected
        except Exception as error:  # noqa: BLE001  the edge: every error gets a response
            await responses.error_response(error)(scope, receive, send)
            return
        try:
            await responses.send_answer(answer, send)
        finally:
            release()


class _DisconnectWatch:
    """Cancels the current task when the caller disconnects.

    It begins to watch after a delay: most queries finish earlier and pay only for a timer.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self.has_disconnected = False

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WATCH_DELAY_SECONDS, self._begin)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _begin(self) -> None:
        self._watcher = asyncio.create_task(self._reload_if_changed())

    async def _reload_if_changed(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_disconnected = True
        if self._task is not None:
            self._task.cancel()


class StatusEndpoints:
    """Explanations, tables, nodes, metrics and health."""

    def __init__(
        self,
        limited_router: LimitedRouter,
        authenticator: Authenticator,
        metrics: Metrics,
        settings: ServeSettings,
    ) -> None:
        self._router = limited_router
        self._authenticator = authenticator
        self._metrics = metrics
        self._openapi = openapi.document(settings, open=authenticator.open)

    async def explain(self, request: Request) -> Response:
        """Return the route of a query and the reasons for it."""
        caller = self._authenticator(request)
        if request.method == "POST":
            body = await request_parser.read_body(request.scope, request.receive)
            query_request = request_parser.parse_body(body, None)
        else:
            query_request = request_parser.parse_query_string(request.query_params.multi_items())
        return responses.json_response(await self._router.explain(query_request, caller))

    async def tables(self, request: Request) -> Response:
        """Return the current tables of the lake and their hot copies."""
        caller = self._authenticator(request)
        return await asyncio.to_thread(lambda: _tables(self._router.lake_state(caller)))

    async def nodes(self, request: Request) -> Response:
        """Return the hot nodes."""
        caller = self._authenticator(request)
        return await asyncio.to_thread(
            lambda: responses.json_response({"nodes": self._router.nodes(caller)})
        )

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        caller = self._authenticator(request)
        _update_metrics(self._router, self._metrics)

        def render() -> Response:
            known = self._router.lake_state(caller).table_heads.keys()
            return Response(self._metrics.exposition(known), media_type=CONTENT_TYPE)

        return await asyncio.to_thread(render)

    async def health(self, _: Request) -> Response:
        """Return 200: the process runs."""
        return responses.json_response({"status": "ok"})

    async def is_ready(self, _: Request) -> Response:
        """Return 200 when queries can be answered, otherwise 503."""
        if not self._router.is_ready():
            raise Transient("The server is not ready to answer yet.", "Retry in a moment.")
        return responses.json_response({"status": "ready"})

    async def openapi(self, _: Request) -> Response:
        """Return the OpenAPI document."""
        return responses.json_response(self._openapi)


def _render_errors(endpoint: Handler) -> Handler:
    """Wrap an endpoint so that its errors become responses."""

    async def run_endpoint(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001  the edge: every error gets a response
            return responses.error_response(error)

    return run_endpoint


async def _render_http_exception(request: Request, error: Exception) -> Response:
    """Return Starlette's own errors (404, 405) in the common error shape."""
    assert isinstance(error, HTTPException)
    known: ThermoclineError = NotFound("There is no such address.", "See /openapi.json.")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "").split(", ")
        known = responses.NoSuchMethod(
            f"This address does not support {request.method}.",
            f"Use {' or '.join(allowed)}.",
            allowed=allowed,
        )
    return responses.error_response(known)


async def _update_metrics_forever(limited_router: LimitedRouter, metrics: Metrics) -> None:
    """Update the metrics often enough to see how long commits take to reach a node."""
    while True:
        _update_metrics(limited_router, metrics)
        await asyncio.sleep(METRICS_SECONDS)


def _update_metrics(limited_router: LimitedRouter, metrics: Metrics) -> None:
    limited_router.report_running()
    metrics.set_node_memory(limited_router.node_memory())
    with contextlib.suppress(Transient):  # the catalog has not been polled yet
        metrics.update_state(limited_router.lake_state())


def _tables(lake_state: LakeState) -> Response:
    """Return all tables as JSON. Encode them one by one, so that other threads can run between."""
    copies_by_node = sorted(lake_state.hot_copies.items())
    tables = (
        json.dumps(_table(head, copies_by_node))
        for _, head in sorted(lake_state.table_heads.items())
    )
    polled_at = json.dumps(lake_state.polled_at.isoformat())
    return responses.raw_json_response(
        f'{{"looked_at": {polled_at}, "tables": [{", ".join(tables)}]}}'
    )


def _table(
    head: TableHead, copies_by_node: Iterable[tuple[str, Mapping[str, HotCopy]]]
) -> dict[str, Any]:
    is_whole = head.hot is not None and math.isinf(head.hot)
    copies = [
        {
            "node": node,
            "snapshot": str(copy.snapshot),
            "since": copy.since.isoformat() if copy.since else None,
            "rows": copy.rows,
            "bytes": copy.bytes,
        }
        for node, copies_of in copies_by_node
        if (copy := copies_of.get(head.table)) is not None
    ]
    return {
        "table": head.table,
        "snapshot": str(head.snapshot) if head.snapshot != NO_SNAPSHOT else None,
        "committed_at": head.committed_at.isoformat(),
        "rows": head.files.total.rows,
        "bytes": head.files.total.bytes,
        "files": head.files.total.files,
        "time_column": head.time,
        "columns": [{"name": name, "type": kind} for name, kind in head.columns.items()],
        "hot": {"wanted": "whole" if is_whole else head.hot, "copies": copies},
    }

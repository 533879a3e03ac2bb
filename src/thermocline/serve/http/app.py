"""The HTTP door: questions and answers, and what there is to know of the server, as routes.

Starlette without a model layer: rows pass through as bytes, and what a request may hold is checked
in `asking.py`. The document that describes all of it is `openapi.py`.
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
from thermocline.serve.http import asking, openapi, replies
from thermocline.serve.http.door import Door
from thermocline.serve.http.entrance import Entrance, Router, Turnstile
from thermocline.serve.http.metrics import CONTENT_TYPE, Metrics
from thermocline.serve.http.outgoing import Outgoing
from thermocline.serve.identity.identity import Identity
from thermocline.serve.values import NO_SNAPSHOT, HotCopy, LakeState, TableHead

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    Endpoint = Callable[[Request], Awaitable[Response]]

MoreRoutes = Callable[[Entrance, Identity], Sequence[BaseRoute]]
"""Another protocol at the same door, such as Trino's."""

LOOK_SECONDS = 0.5
WATCH_AFTER = 0.05
"""A query that takes longer than this is given up when its caller goes away."""


def create_app(
    router: Router,
    identity: Identity,
    metrics: Metrics,
    settings: ServeSettings,
    protocols: Sequence[MoreRoutes] = (),
) -> Starlette:
    """The server as an ASGI application, which starts and stops the router with itself."""
    turnstile = Turnstile(settings.concurrency, settings.rate)
    outgoing = Outgoing(settings.sending_bytes)
    entrance = Entrance(router, metrics, turnstile, settings.max_seconds, outgoing)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            try:
                await router.start()
            except Exception as error:
                app.state.failed = error  # who runs the server wants to know why
                raise
            looking = asyncio.create_task(_keep_looking(entrance, metrics))
            try:
                yield
            finally:
                looking.cancel()
        finally:
            await router.stop()

    pages = Pages(entrance, identity, metrics, settings)
    query = Query(entrance, identity)
    door = Middleware(
        Door,
        hosts=settings.hosts,
        any_host=not identity.open,
        straight={("POST", "/query"): query},
    )
    routes = [
        Route("/query", query, methods=["POST"]),
        Route("/explain", _told(pages.explain), methods=["GET", "POST"]),
        Route("/tables", _told(pages.tables)),
        Route("/nodes", _told(pages.nodes)),
        Route("/metrics", _told(pages.metrics)),
        Route("/health", _told(pages.health)),
        Route("/ready", _told(pages.is_ready)),
        Route("/openapi.json", _told(pages.openapi)),
        *(route for more in protocols for route in more(entrance, identity)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[door],
        exception_handlers={HTTPException: _no_route},
    )
    app.router.redirect_slashes = False
    return app


class Query:
    """POST /query, as close to the wire as Starlette lets it be: this is the path that counts."""

    def __init__(self, entrance: Entrance, identity: Identity) -> None:
        self._entrance = entrance
        self._identity = identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = _Watch(receive)
        try:
            authorization, accept = [], None
            for name, value in scope["headers"]:
                if name == b"authorization":
                    authorization.append(value.decode("latin-1"))
                elif name == b"accept":
                    accept = value.decode("latin-1")
            caller = self._identity.of(authorization)
            ask = asking.ask_of_body(await asking.read_body(scope, receive), accept)
            with watch:
                answer = await self._entrance.answer(ask, caller)
            let_go = self._entrance.outgoing.hold(caller.name, answer.rows.body)
        except asyncio.CancelledError:
            if not watch.left:
                raise
            return  # nobody is there to be answered
        except Exception as error:  # noqa: BLE001  the edge: nothing passes unexplained
            await replies.failure(error)(scope, receive, send)
            return
        try:
            await replies.send_answer(answer, send)
        finally:
            let_go()


class _Watch:
    """Cancels the task that it was entered in when the caller goes away meanwhile.

    Most answers are there before it begins to look, and pay only for a timer.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task = asyncio.current_task()
        self._looking: asyncio.Task[None] | None = None
        self.left = False

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER, self._begin)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _begin(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        if self._task is not None:
            self._task.cancel()


class Pages:
    """Everything beside the answers."""

    def __init__(
        self, entrance: Entrance, identity: Identity, metrics: Metrics, settings: ServeSettings
    ) -> None:
        self._entrance = entrance
        self._identity = identity
        self._metrics = metrics
        self._openapi = openapi.document(settings, open=identity.open)

    async def explain(self, request: Request) -> Response:
        """Where a question would go, and why."""
        caller = self._identity(request)
        if request.method == "POST":
            body = await asking.read_body(request.scope, request.receive)
            ask = asking.ask_of_body(body, None)
        else:
            ask = asking.ask_of_query(request.query_params.multi_items())
        return replies.document(await self._entrance.explain(ask, caller))

    async def tables(self, request: Request) -> Response:
        """The tables of the lake as they are now, and what is hot of them."""
        caller = self._identity(request)
        return await asyncio.to_thread(lambda: _tables(self._entrance.lake_state(caller)))

    async def nodes(self, request: Request) -> Response:
        """The hot nodes."""
        caller = self._identity(request)
        return await asyncio.to_thread(
            lambda: replies.document({"nodes": self._entrance.nodes(caller)})
        )

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        caller = self._identity(request)
        _measure(self._entrance, self._metrics)

        def written() -> Response:
            known = self._entrance.lake_state(caller).table_heads.keys()
            return Response(self._metrics.exposition(known), media_type=CONTENT_TYPE)

        return await asyncio.to_thread(written)

    async def health(self, _: Request) -> Response:
        """The process is there."""
        return replies.document({"status": "ok"})

    async def is_ready(self, _: Request) -> Response:
        """Questions can be answered."""
        if not self._entrance.is_ready():
            raise Transient("The server is not ready to answer yet.", "Ask again in a moment.")
        return replies.document({"status": "ready"})

    async def openapi(self, _: Request) -> Response:
        """The description of all this."""
        return replies.document(self._openapi)


def _told(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with what went wrong as a reply."""

    async def tell(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001  the edge: nothing passes unexplained
            return replies.failure(error)

    return tell


async def _no_route(request: Request, error: Exception) -> Response:
    """Starlette's own refusals, in our shape."""
    assert isinstance(error, HTTPException)
    known: ThermoclineError = NotFound("There is nothing at this address.", "See /openapi.json.")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "").split(", ")
        known = replies.NoSuchMethod(
            f"{request.method} is not for this address.",
            f"Use {' or '.join(allowed)}.",
            allowed=allowed,
        )
    return replies.failure(known)


async def _keep_looking(entrance: Entrance, metrics: Metrics) -> None:
    """Follow the lake closely enough to see how long commits take to arrive."""
    while True:
        _measure(entrance, metrics)
        await asyncio.sleep(LOOK_SECONDS)


def _measure(entrance: Entrance, metrics: Metrics) -> None:
    entrance.count()
    metrics.nodes(entrance.node_memory())
    with contextlib.suppress(Transient):  # nothing is known of the lake yet
        metrics.look(entrance.lake_state())


def _tables(lake_state: LakeState) -> Response:
    """All tables as JSON, one after the other, so that others get their turn between them."""
    held = sorted(lake_state.hot_copies.items())
    tables = (json.dumps(_table(head, held)) for _, head in sorted(lake_state.table_heads.items()))
    polled_at = json.dumps(lake_state.polled_at.isoformat())
    return replies.written(f'{{"looked_at": {polled_at}, "tables": [{", ".join(tables)}]}}')


def _table(head: TableHead, held: Iterable[tuple[str, Mapping[str, HotCopy]]]) -> dict[str, Any]:
    whole = head.hot is not None and math.isinf(head.hot)
    copies = [
        {
            "node": node,
            "snapshot": str(copy.snapshot),
            "since": copy.since.isoformat() if copy.since else None,
            "rows": copy.rows,
            "bytes": copy.bytes,
        }
        for node, copies_of in held
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
        "hot": {"wanted": "whole" if whole else head.hot, "copies": copies},
    }

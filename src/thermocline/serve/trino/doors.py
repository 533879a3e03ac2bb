"""The HTTP of the protocol: a statement is posted, its pages are fetched, or it is deleted."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from thermocline import telemetry
from thermocline.errors import NotFound, ThermoclineError, Transient
from thermocline.serve.failures import Busy, Forbidden, TooMuch, Unauthenticated
from thermocline.serve.trino import sessions
from thermocline.serve.trino.catalog_tables import VERSION
from thermocline.serve.trino.faults import Faulty, described
from thermocline.serve.trino.queries import Gone, Limits, Page, Queries, Query
from thermocline.serve.trino.statement import Router, run
from thermocline.serve.values import Caller

if TYPE_CHECKING:
    from starlette.requests import Request

Identity = Callable[["Request"], Caller]
__all__ = ["Doors", "Identity", "Router"]

MOST_TEXT = 1 << 20
MOST_READ = 16 << 20
"""A statement may be so long; a longer one is read to its end up to so far, to be answered."""
ANONYMOUS = Caller().name

_STATUS: tuple[tuple[type[ThermoclineError], int], ...] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (Gone, 410),
    (NotFound, 404),
    (Busy, 429),
    (TooMuch, 413),
    (Transient, 503),
)


class Doors:
    """The routes, and the queries that are under way behind them."""

    def __init__(self, router: Router, identity: Identity, limits: Limits | None = None) -> None:
        self._router = router
        self._identity = identity
        self._limits = limits or Limits()
        self.queries = Queries(self._limits)
        self._since = time.monotonic()

    def routes(self) -> list[Route]:
        """What is to be mounted."""
        page = "/v1/statement/executing/{id:str}/{slug:str}/{token:str}"
        return [
            Route("/v1/statement", self._guarded(self._post), methods=["POST"]),
            Route(page, self._guarded(self._get), methods=["GET"]),
            Route(page, self._guarded(self._delete), methods=["DELETE"]),
            Route("/v1/info", self._guarded(self._info), methods=["GET"]),
        ]

    def _guarded(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """What goes wrong before there is a query is said by HTTP alone."""

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except ThermoclineError as error:
                status = next((code for kind, code in _STATUS if isinstance(error, kind)), 400)
                headers = {"WWW-Authenticate": 'Basic realm="Trino"'} if status == 401 else {}
                if status in (429, 503):
                    headers["Retry-After"] = str(int(error.details.get("retry_after", 1)))
                return Response(f"{error.cause} {error.next_step}".strip(), status, headers)

        return guarded

    async def _post(self, request: Request) -> Response:
        caller = self._identity(request)
        user = _user(request, caller)
        text = await _text(request)
        query = self.queries.start(caller.name, user, self._work(request, text, user, caller))
        page = await query.page(0, self._limits.first)
        if not page.more:
            self.queries.forget(query)
        elif page.outcome is not None:
            self.queries.trim()
        return self._answer(request, query, page)

    async def _work(self, request: Request, text: str | None, user: str, caller: Caller) -> Any:
        session = sessions.read(request.headers, user)
        if text is None:
            raise Faulty(
                "QUERY_TEXT_TOO_LARGE",
                f"The query has more than {MOST_TEXT:,} bytes.",
                "Shorten it; long lists of values belong in a table.",
            )
        try:
            return await run(text, session, caller, self._router)
        except ThermoclineError:
            raise
        except Exception as error:
            telemetry.log(
                "serve",
                "internal error",
                level="ERROR",
                trace="".join(traceback.format_exception(error)),
            )
            raise

    async def _get(self, request: Request) -> Response:
        query = self._found(request)
        token = request.path_params["token"]
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise NotFound("There is no such page of the query.", "Follow nextUri.")
        page = await query.page(int(token), self._limits.poll)
        if page.outcome is not None:
            self.queries.trim()
        return self._answer(request, query, page)

    async def _delete(self, request: Request) -> Response:
        self._found(request).stop(Faulty("USER_CANCELED", "Query was canceled."))
        return Response(status_code=204)

    async def _info(self, request: Request) -> Response:
        self._identity(request)
        minutes = (time.monotonic() - self._since) / 60
        return JSONResponse(
            {
                "nodeVersion": {"version": VERSION},
                "environment": "thermocline",
                "coordinator": True,
                "starting": False,
                "uptime": f"{minutes:.2f}m",
            }
        )

    def _found(self, request: Request) -> Query:
        caller = self._identity(request)
        parts = request.path_params
        user = request.headers.get("x-trino-user")
        return self.queries.find(parts["id"], parts["slug"], caller.name, user)

    def _answer(self, request: Request, query: Query, page: Page) -> Response:
        base = str(request.base_url).rstrip("/")
        found: dict[str, Any] = {
            "id": query.id,
            "infoUri": f"{base}/ui/query.html?{query.id}",
            "stats": _stats(query, page),
            "warnings": [],
        }
        if page.more:
            path = f"/v1/statement/executing/{query.id}/{query.slug}/{page.token + 1}"
            found["nextUri"] = f"{base}{path}"
        if page.error is not None:
            found["error"] = described(page.error)
        headers: dict[str, str] = {}
        if page.outcome is not None:
            found["columns"] = page.outcome.described()
            headers.update(page.outcome.headers)
            if page.outcome.update is not None:
                found["updateType"] = page.outcome.update
        body = json.dumps(found).encode()
        if page.rows:
            body = b'%s,"data":[%s]}' % (body[:-1], page.rows)
        return Response(body, headers=headers, media_type="application/json")


def _user(request: Request, caller: Caller) -> str:
    """Who asks. Where callers are known, a client cannot say that it is somebody else.

    A header that no web page can send without asking first is demanded of callers who are not.
    """
    said = request.headers.get("x-trino-user")
    if caller.name != ANONYMOUS:
        if said is not None and said != caller.name:
            raise Forbidden(
                "Access Denied: the user is not the one who is authenticated.",
                "Leave the user out, or give the name of the token.",
            )
        return caller.name
    if not said or len(said) > 256 or not said.isprintable():
        raise Faulty("GENERIC_USER_ERROR", "User must be set.", "Send the header X-Trino-User.")
    return said


async def _text(request: Request) -> str | None:
    """The statement, or None if it is too long. What nobody would send is cut off."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MOST_READ:
            raise TooMuch("The statement is too long.", "Shorten it.")
        if size <= MOST_TEXT:
            pieces.append(piece)
    if size > MOST_TEXT:
        return None
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError as error:
        raise Faulty("SYNTAX_ERROR", "The statement is not UTF-8.", "Encode it so.") from error


def _stats(query: Query, page: Page) -> dict[str, Any]:
    finished = page.state in {"FINISHED", "FAILED"}
    zeros = (
        "queuedSplits runningSplits planningTimeMillis analysisTimeMillis cpuTimeMillis "
        "queuedTimeMillis finishingTimeMillis physicalInputTimeMillis processedBytes "
        "physicalInputBytes physicalWrittenBytes internalNetworkInputBytes peakMemoryBytes "
        "spilledBytes"
    )
    return {
        "state": page.state,
        "queued": page.state == "QUEUED",
        "scheduled": page.state != "QUEUED",
        "nodes": 1,
        "totalSplits": 1,
        "completedSplits": int(finished),
        **dict.fromkeys(zeros.split(), 0),
        "processedRows": page.outcome.count if page.outcome else 0,
        "wallTimeMillis": query.elapsed,
        "elapsedTimeMillis": query.elapsed,
        "progressPercentage": 100.0 if finished else 0.0,
        "runningPercentage": 0.0 if finished else 100.0,
    }

"""The HTTP endpoints of the protocol: post a statement, fetch its pages, cancel it."""

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
from thermocline.serve.trino import client_session
from thermocline.serve.trino.catalog_tables import VERSION
from thermocline.serve.trino.error_codes import TrinoError, encode_error
from thermocline.serve.trino.open_queries import (
    OpenQueries,
    OpenQuery,
    PageGone,
    PagingLimits,
    ResultPage,
)
from thermocline.serve.trino.statement import StatementRouter, execute_statement
from thermocline.serve.values import Caller

if TYPE_CHECKING:
    from starlette.requests import Request

Authenticate = Callable[["Request"], Caller]
__all__ = ["Authenticate", "StatementRouter", "TrinoEndpoints"]

MAX_STATEMENT_BYTES = 1 << 20
MAX_READ_BYTES = 16 << 20
"""The maximum of a statement. A longer one is read up to `MAX_READ_BYTES`, to return an error."""
ANONYMOUS = Caller().name

_STATUS: tuple[tuple[type[ThermoclineError], int], ...] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (PageGone, 410),
    (NotFound, 404),
    (Busy, 429),
    (TooMuch, 413),
    (Transient, 503),
)


class TrinoEndpoints:
    """The routes and the open queries."""

    def __init__(
        self,
        router: StatementRouter,
        authenticator: Authenticate,
        limits: PagingLimits | None = None,
    ) -> None:
        self._router = router
        self._authenticator = authenticator
        self._limits = limits or PagingLimits()
        self.queries = OpenQueries(self._limits)
        self._since = time.monotonic()

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        page = "/v1/statement/executing/{id:str}/{slug:str}/{token:str}"
        return [
            Route("/v1/statement", self._handle_errors(self._post), methods=["POST"]),
            Route(page, self._handle_errors(self._get), methods=["GET"]),
            Route(page, self._handle_errors(self._delete), methods=["DELETE"]),
            Route("/v1/info", self._handle_errors(self._info), methods=["GET"]),
        ]

    def _handle_errors(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap an endpoint so that errors without a query become HTTP statuses."""

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except ThermoclineError as error:
                status = next((code for kind, code in _STATUS if isinstance(error, kind)), 400)
                headers = {"WWW-Authenticate": 'Basic realm="Trino"'} if status == 401 else {}
                if status in (429, 503):
                    headers["Retry-After"] = str(int(error.details.get("retry_after", 1)))
                return Response(f"{error.cause} {error.next_step}".strip(), status, headers)

        return handle

    async def _post(self, request: Request) -> Response:
        caller = self._authenticator(request)
        user = _session_user(request, caller)
        text = await _read_statement(request)
        query = self.queries.start(caller.name, user, self._work(request, text, user, caller))
        page = await query.page(0, self._limits.first_wait_seconds)
        if not page.has_more:
            self.queries.forget(query)
        elif page.result is not None:
            self.queries.trim()
        return self._answer(request, query, page)

    async def _work(self, request: Request, text: str | None, user: str, caller: Caller) -> Any:
        session = client_session.read_session(request.headers, user)
        if text is None:
            raise TrinoError(
                "QUERY_TEXT_TOO_LARGE",
                f"The query has more than {MAX_STATEMENT_BYTES:,} bytes.",
                "Shorten it; long lists of values belong in a table.",
            )
        try:
            return await execute_statement(text, session, caller, self._router)
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
        query = self._find_query(request)
        token = request.path_params["token"]
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise NotFound("There is no such page of the query.", "Follow nextUri.")
        page = await query.page(int(token), self._limits.poll_seconds)
        if page.result is not None:
            self.queries.trim()
        return self._answer(request, query, page)

    async def _delete(self, request: Request) -> Response:
        self._find_query(request).stop(TrinoError("USER_CANCELED", "Query was canceled."))
        return Response(status_code=204)

    async def _info(self, request: Request) -> Response:
        self._authenticator(request)
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

    def _find_query(self, request: Request) -> OpenQuery:
        caller = self._authenticator(request)
        parts = request.path_params
        user = request.headers.get("x-trino-user")
        return self.queries.find(parts["id"], parts["slug"], caller.name, user)

    def _answer(self, request: Request, query: OpenQuery, page: ResultPage) -> Response:
        base = str(request.base_url).rstrip("/")
        found: dict[str, Any] = {
            "id": query.id,
            "infoUri": f"{base}/ui/query.html?{query.id}",
            "stats": _stats(query, page),
            "warnings": [],
        }
        if page.has_more:
            path = f"/v1/statement/executing/{query.id}/{query.slug}/{page.token + 1}"
            found["nextUri"] = f"{base}{path}"
        if page.error is not None:
            found["error"] = encode_error(page.error)
        headers: dict[str, str] = {}
        if page.result is not None:
            found["columns"] = page.result.describe_columns()
            headers.update(page.result.headers)
            if page.result.update is not None:
                found["updateType"] = page.result.update
        body = json.dumps(found).encode()
        if page.rows:
            body = b'%s,"data":[%s]}' % (body[:-1], page.rows)
        return Response(body, headers=headers, media_type="application/json")


def _session_user(request: Request, caller: Caller) -> str:
    """Return the session's user. An authenticated caller cannot name another user.

    An anonymous caller must send the header, which web pages cannot send without a preflight.
    """
    user = request.headers.get("x-trino-user")
    if caller.name != ANONYMOUS:
        if user is not None and user != caller.name:
            raise Forbidden(
                "Access Denied: the user is not the authenticated one.",
                "Leave the user out, or use the name of the token.",
            )
        return caller.name
    if not user or len(user) > 256 or not user.isprintable():
        raise TrinoError("GENERIC_USER_ERROR", "User must be set.", "Send the header X-Trino-User.")
    return user


async def _read_statement(request: Request) -> str | None:
    """Return the statement, or None if it is too long. Raises TooMuch far beyond that."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_READ_BYTES:
            raise TooMuch("The statement is too long.", "Shorten it.")
        if size <= MAX_STATEMENT_BYTES:
            pieces.append(piece)
    if size > MAX_STATEMENT_BYTES:
        return None
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError as error:
        raise TrinoError(
            "SYNTAX_ERROR", "The statement is not UTF-8.", "Encode it as UTF-8."
        ) from error


def _stats(query: OpenQuery, page: ResultPage) -> dict[str, Any]:
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
        "processedRows": page.result.count if page.result else 0,
        "wallTimeMillis": query.elapsed,
        "elapsedTimeMillis": query.elapsed,
        "progressPercentage": 100.0 if finished else 0.0,
        "runningPercentage": 0.0 if finished else 100.0,
    }

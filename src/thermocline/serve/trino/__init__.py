"""Trino's client protocol: Trino clients and drivers can connect to this server.

`endpoints` has the HTTP routes, `open_queries` the queries that clients still fetch pages of,
`statement` plans and executes a statement. `statement_parser` and `parameters` read its text,
`name_resolution` completes its names, `show` and `catalog_tables` answer what drivers ask about
tables, `client_session` reads the session that a client sends in headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.routing import Route

    from thermocline.serve.trino.endpoints import Authenticate, StatementRouter
    from thermocline.serve.trino.open_queries import PagingLimits


def routes(
    router: StatementRouter, authenticator: Authenticate, limits: PagingLimits | None = None
) -> list[Route]:
    """Return the routes of the protocol, all below /v1.

    `authenticator` returns the caller or raises.
    """
    from thermocline.serve.trino.endpoints import TrinoEndpoints

    return TrinoEndpoints(router, authenticator, limits).routes()

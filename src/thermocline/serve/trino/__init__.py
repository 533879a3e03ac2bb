"""Trino's client protocol, served: whoever speaks to a Trino can speak to this.

`doors` is HTTP, `queries` what is under way, `statement` what a text asks for. What a statement
is about is decided in `words` and `bind` (its text), `resolve` (its names), `show` and
`catalog_tables` (the lists that drivers ask for), `sessions` (what a client sends along).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.routing import Route

    from thermocline.serve.trino.doors import Identity, Router
    from thermocline.serve.trino.queries import Limits


def routes(router: Router, identity: Identity, limits: Limits | None = None) -> list[Route]:
    """The routes of the protocol, all below /v1. `identity` says who asks, or raises."""
    from thermocline.serve.trino.doors import Doors

    return Doors(router, identity, limits).routes()

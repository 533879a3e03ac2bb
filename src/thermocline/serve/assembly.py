"""A server put together from a project's settings: fleet, router, identity, doors."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.config import Settings
from thermocline.errors import CatalogUnavailable
from thermocline.lake.catalog import open_reader
from thermocline.serve import table_access, trino
from thermocline.serve.fleet.fleet import ExternalEngine, Fleet, FleetConfig
from thermocline.serve.http.app import create_app
from thermocline.serve.http.metrics import Metrics
from thermocline.serve.identity.identity import Identity, identity
from thermocline.serve.router import QueryLimits, Router
from thermocline.sql.guard import guard

if TYPE_CHECKING:
    from starlette.applications import Starlette


@dataclass(frozen=True)
class AssembledServer:
    """The parts of a server that somebody may want to look at."""

    app: Starlette
    router: Router
    identity: Identity


def assemble(settings: Settings) -> AssembledServer:
    """Put a server together; nothing is started. Raises ConfigError and TablesElsewhere."""
    with closing(open_reader(settings)) as catalog, suppress(CatalogUnavailable):
        catalog.require_here()  # a server waits for a catalog that is away
    serve = settings.serve
    who = identity(settings)
    config = FleetConfig(
        settings.project,
        settings.profile,
        nodes=serve.nodes,
        node_memory=serve.node_bytes,
        direct_bytes=serve.direct_bytes,
        seconds=serve.max_seconds,
        replicator=(
            "--window", str(serve.hot_seconds),
            "--budget", str(serve.node_bytes),
            "--replicas", str(serve.replicas),
        ),
    )  # fmt: skip
    limits = QueryLimits(
        rows=serve.max_rows,
        bytes=serve.result_bytes,
        seconds=serve.max_seconds,
        cache_bytes=serve.cache_bytes,
        verify_share=serve.verify_share,
    )
    guard("select 1")  # loads the parser: the first question should not wait for that
    fleet = Fleet(config, _trino(settings), settings.trino.catalog)
    router = Router(fleet, limits, table_access.load_table_access(settings.project))
    metrics = Metrics(mismatches=lambda: router.verifier.mismatches)
    app = create_app(router, who, metrics, serve, protocols=[trino.routes])
    return AssembledServer(app, router, who)


def _trino(settings: Settings) -> ExternalEngine | None:
    given = settings.trino
    if given.url is None:
        return None
    from thermocline.serve.engines.trino_client import TrinoEngine

    password = given.password.reveal() if given.password else None
    return TrinoEngine(given.url, given.user, given.catalog, password=password)

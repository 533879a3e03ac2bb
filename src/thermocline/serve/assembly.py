"""Assemble a server from a project's settings: fleet, router, authenticator, HTTP application."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.config import Settings
from thermocline.errors import CatalogUnavailable
from thermocline.lake.catalog import open_reader
from thermocline.maintain import service_status
from thermocline.serve import table_access, trino
from thermocline.serve.fleet.fleet import ExternalEngine, Fleet, FleetConfig
from thermocline.serve.http.app import create_app
from thermocline.serve.http.metrics import Metrics
from thermocline.serve.identity.authenticator import Authenticator, build_authenticator
from thermocline.serve.read_recorder import ReadRecorder
from thermocline.serve.router import QueryLimits, Router
from thermocline.sql.guard import guard

if TYPE_CHECKING:
    from starlette.applications import Starlette


@dataclass(frozen=True)
class AssembledServer:
    """An assembled server and its main parts."""

    app: Starlette
    router: Router
    authenticator: Authenticator


def assemble(settings: Settings) -> AssembledServer:
    """Assemble a server without starting it. Raises ConfigError and TablesElsewhere."""
    with closing(open_reader(settings)) as catalog, suppress(CatalogUnavailable):
        catalog.require_tables_in_warehouse()  # a server can start before its catalog
    serve = settings.serve
    authenticator = build_authenticator(settings)
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
    guard("select 1")  # loads the parser, so that the first query does not wait for it
    fleet = Fleet(config, _trino(settings), settings.trino.catalog)
    access = table_access.load_table_access(settings.project)
    router = Router(fleet, limits, access, ReadRecorder(settings.project))
    metrics = Metrics(
        mismatches=lambda: router.verifier.mismatches,
        maintenance=lambda: service_status.read_status(settings.project),
    )
    app = create_app(router, authenticator, metrics, serve, protocols=[trino.routes])
    return AssembledServer(app, router, authenticator)


def _trino(settings: Settings) -> ExternalEngine | None:
    trino = settings.trino
    if trino.url is None:
        return None
    from thermocline.serve.engines.trino_client import TrinoEngine

    password = trino.password.reveal() if trino.password else None
    return TrinoEngine(trino.url, trino.user, trino.catalog, password=password)

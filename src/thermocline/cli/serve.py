"""The `serve` command: run a query server until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.background_maintenance import maintain_in_background
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.errors import Transient

if TYPE_CHECKING:
    from thermocline.config import Settings
    from thermocline.serve.assembly import AssembledServer
    from thermocline.serve.http.server_record import ServerRecord

READY_SECONDS = 60.0


@click.command(cls=Command)
@click.option("--host", metavar="ADDRESS", help="Address to listen on; by default serve.host.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Port, 0 for any free one; by default serve.port.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1), metavar="N",
              help="Number of hot nodes; by default serve.nodes.")  # fmt: skip
@pass_invocation
def serve(invocation: Invocation, host: str | None, port: int | None, nodes: int | None) -> None:
    """Answer queries over HTTP, hot tables from memory, until Ctrl-C.

    By default local clients need no token. Remote clients need a token (thermo token) or a JWT.
    Trino clients connect to the same address.
    """
    from thermocline.lake import catalog
    from thermocline.serve.assembly import assemble
    from thermocline.serve.http import server

    settings = _override_settings(invocation.settings(), host=host, port=port, nodes=nodes)
    _start_log(invocation, settings)
    if settings.catalog.type == "sqlite":
        with suppress(Transient):  # the server waits for a catalog that is briefly unavailable
            catalog.open_reader(settings).tables()
    assembled = assemble(settings)

    async def report_start(server_record: ServerRecord) -> None:
        if not invocation.json:
            output.print_text(output.line(*_describe_endpoint(server_record, settings, assembled)))
        await _wait_until_ready(assembled)
        invocation.show(_describe_server(server_record, settings, assembled), _render_server)

    with maintain_in_background(settings):
        server.serve(assembled.app, settings, report_start)


def _override_settings(settings: Settings, **options: Any) -> Settings:
    """Return the settings with the options of the command line applied."""
    changed = {name: value for name, value in options.items() if value is not None}
    return replace(settings, serve=replace(settings.serve, **changed))


def _start_log(invocation: Invocation, settings: Settings) -> None:
    """Log to the target that THERMOCLINE_LOG names, or else to a file of the project."""
    from thermocline.config import private_files
    from thermocline.telemetry import configure_log

    if os.environ.get("THERMOCLINE_LOG"):
        invocation.start_log()
    else:
        configure_log(
            private_files.ensure_log(settings.project, "serve.log"),
            largest=private_files.MAX_LOG_BYTES,
        )


async def _wait_until_ready(assembled: AssembledServer) -> None:
    until = asyncio.get_running_loop().time() + READY_SECONDS
    while not assembled.router.is_ready() and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.05)


def _describe_endpoint(
    server_record: ServerRecord, settings: Settings, assembled: AssembledServer
) -> list[str]:
    access = "open to local clients" if assembled.authenticator.open else "tokens required"
    return [f"listening on {server_record.url}", access, "stop with Ctrl-C"]


def _describe_server(
    server_record: ServerRecord, settings: Settings, assembled: AssembledServer
) -> dict[str, Any]:
    lake_state = assembled.router.lake_state()
    return {
        "url": server_record.url,
        "pid": server_record.pid,
        "open": assembled.authenticator.open,
        "ready": assembled.router.is_ready(),
        "nodes": settings.serve.nodes,
        "hot_window": settings.serve.hot_window,
        "tables": sorted(lake_state.table_heads),
        "hot": sorted(
            table for table, head in lake_state.table_heads.items() if head.hot is not None
        ),
    }


def _render_server(server: dict[str, Any]) -> Any:
    if not server["ready"]:
        return output.line("not ready yet", "see .thermocline/serve.log")
    hot, tables = server["hot"], server["tables"]
    return output.line(
        f"{len(hot)} of {output.plural(len(tables), 'table')} hot",
        f"time-ordered tables: the last {server['hot_window']}",
        f"on {output.plural(server['nodes'], 'node')}",
    )

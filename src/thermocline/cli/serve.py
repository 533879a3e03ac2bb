"""A server over the project's lake: started here, and ended by Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.errors import Transient

if TYPE_CHECKING:
    from thermocline.config import Settings
    from thermocline.serve.assembly import AssembledServer
    from thermocline.serve.http.standing import Standing

READY_SECONDS = 60.0


@click.command(cls=Command)
@click.option("--host", metavar="ADDRESS", help="Where to listen; else serve.host.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT",
              help="On which port, 0 for any free one; else serve.port.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1), metavar="N",
              help="How many hot nodes; else serve.nodes.")  # fmt: skip
@pass_invocation
def serve(invocation: Invocation, host: str | None, port: int | None, nodes: int | None) -> None:
    """Answer queries over HTTP, hot ones from memory, until Ctrl-C.

    On this machine anybody may ask; to be reached from others it needs tokens (thermo token) or
    JWTs. Trino's clients are served at the same address.
    """
    from thermocline.lake import catalog
    from thermocline.serve.assembly import assemble
    from thermocline.serve.http import server

    settings = _override_settings(invocation.settings(), host=host, port=port, nodes=nodes)
    _start_log(invocation, settings)
    if settings.catalog.type == "sqlite":
        with suppress(Transient):  # one that is away for a moment is waited for
            catalog.open_reader(settings).tables()
    assembled = assemble(settings)

    async def began(standing: Standing) -> None:
        if not invocation.json:
            output.print_text(output.line(*_describe_endpoint(standing, settings, assembled)))
        await _wait_until_ready(assembled)
        invocation.show(_describe_server(standing, settings, assembled), _render_server)

    server.serve(assembled.app, settings, began)


def _override_settings(settings: Settings, **given: Any) -> Settings:
    """The settings with what the command line says instead."""
    said = {name: value for name, value in given.items() if value is not None}
    return replace(settings, serve=replace(settings.serve, **said))


def _start_log(invocation: Invocation, settings: Settings) -> None:
    """To where THERMOCLINE_LOG says, else to a file of the project."""
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
    standing: Standing, settings: Settings, assembled: AssembledServer
) -> list[str]:
    anybody = "anybody on this machine may read" if assembled.identity.open else "tokens needed"
    return [f"listens on {standing.url}", anybody, "stop with Ctrl-C"]


def _describe_server(
    standing: Standing, settings: Settings, assembled: AssembledServer
) -> dict[str, Any]:
    lake_state = assembled.router.lake_state()
    return {
        "url": standing.url,
        "pid": standing.pid,
        "open": assembled.identity.open,
        "ready": assembled.router.is_ready(),
        "nodes": settings.serve.nodes,
        "hot_window": settings.serve.hot_window,
        "tables": sorted(lake_state.table_heads),
        "hot": sorted(
            table for table, head in lake_state.table_heads.items() if head.hot is not None
        ),
    }


def _render_server(told: dict[str, Any]) -> Any:
    if not told["ready"]:
        return output.line("not ready yet", "the log in .thermocline/serve.log says more")
    hot, tables = told["hot"], told["tables"]
    return output.line(
        f"{len(hot)} of {output.plural(len(tables), 'table')} hot",
        f"the last {told['hot_window']} of those with a time",
        f"on {output.plural(told['nodes'], 'node')}",
    )

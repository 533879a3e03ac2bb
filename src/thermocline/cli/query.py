"""The `query` command: run one SELECT and show its provenance."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.errors import ThermoclineError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api import Result


@click.command(cls=Command)
@click.argument("sql")
@click.option("--at", metavar="WHEN", help="Time, snapshot, tag or branch to read.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "duckdb", "spark"]),
    default="auto",
    show_default=True,
    help="Engine that runs the query.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="How many rows to print; JSON has all of them.",
)
@click.option(
    "--no-server",
    is_flag=True,
    help="Run the query in this process even if `thermo serve` is running.",
)
@pass_invocation
def query(
    invocation: Invocation, sql: str, at: str | None, engine: str, limit: int, no_server: bool
) -> None:
    """Run the query SQL, or the query on standard input if SQL is "-".

    If `thermo serve` runs in the project, it receives the query, with the token of
    THERMOCLINE_TOKEN. If it cannot answer, the query runs in this process.
    """
    text = sys.stdin.read() if sql == "-" else sql
    result = None
    if at is None and engine == "auto" and not no_server:
        result = _query_server(invocation, text)
    if result is None:
        result = invocation.lakehouse().query(text, at=at, engine=engine)
    invocation.show(result, lambda answer: _render_result(answer, limit))


def _query_server(invocation: Invocation, sql: str) -> Result | None:
    """Query the project's server; return None where the query must run in this process."""
    from thermocline import config
    from thermocline.serve.http import server_record

    project = config.find_project(invocation.project or Path.cwd())
    found = server_record.find_record(project)
    if found is None or found.lake != server_record.lake_identity(
        config.load_settings(project, invocation.profile)
    ):
        return None
    from thermocline.client import connect
    from thermocline.telemetry import hide

    token = os.environ.get("THERMOCLINE_TOKEN")
    hide([token or ""])
    try:
        with connect(found.url, token) as server:
            return server.query(sql) if server.healthy() else None
    except ThermoclineError:
        return None


def _render_result(result: Result, limit: int) -> RenderableType:
    rows = result.rows
    cut = f", the first {output.number(limit)} shown" if len(rows) > limit else ""
    footer = f"{output.plural(len(rows), 'row')}{cut}   {_format_provenance(result.provenance)}"
    return output.stack(
        output.grid(result.columns, rows[:limit]), output.styled_text(footer.rstrip(), "dim")
    )


def _format_provenance(provenance: Mapping[str, Any]) -> str:
    """Format the engine and the snapshot of each table."""
    tables: Mapping[str, Any] = provenance.get("tables", {})
    read = [f"{name}@{output.short_id(entry['snapshot'])}" for name, entry in tables.items()]
    return "   ".join([str(provenance.get("engine", "")), *read])

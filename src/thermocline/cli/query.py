"""Questions in SQL, and the answer with where it came from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api import Result


@click.command(cls=Command)
@click.argument("sql")
@click.option("--at", metavar="WHEN", help="A time, snapshot, tag or branch to answer from.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "duckdb", "spark"]),
    default="auto",
    show_default=True,
    help="Which engine answers.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="How many rows to print for a person; JSON holds all.",
)
@pass_invocation
def query(invocation: Invocation, sql: str, at: str | None, engine: str, limit: int) -> None:
    """Answer the question SQL, or the one on standard input when SQL is "-"."""
    text = sys.stdin.read() if sql == "-" else sql
    result = invocation.lakehouse().query(text, at=at, engine=engine)
    invocation.show(result, lambda answer: _answer(answer, limit))


def _answer(result: Result, limit: int) -> RenderableType:
    rows = result.rows
    cut = f", the first {output.number(limit)} shown" if len(rows) > limit else ""
    footer = f"{output.plural(len(rows), 'row')}{cut}   {_provenance(result.provenance)}"
    return output.stack(
        output.grid(result.columns, rows[:limit]), output.styled(footer.rstrip(), "dim")
    )


def _provenance(provenance: Mapping[str, Any]) -> str:
    """Which engine answered, from which snapshot of which table."""
    tables: Mapping[str, Any] = provenance.get("tables", {})
    read = [f"{name}@{output.short(entry['snapshot'])}" for name, entry in tables.items()]
    return "   ".join([str(provenance.get("engine", "")), *read])

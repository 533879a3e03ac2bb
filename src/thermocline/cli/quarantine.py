"""Rows that broke a rule on their way in: look at them, and put mended ones through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Group, Invocation, pass_invocation

if TYPE_CHECKING:
    from rich.console import RenderableType

LIST_LIMIT = 50


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def quarantine(ctx: click.Context) -> None:
    """Rows that were set aside at ingestion. Lists all of them when no subcommand is named."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_rows, table=None, limit=LIST_LIMIT)


@quarantine.command("list", cls=Command)
@click.argument("table", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=LIST_LIMIT,
    show_default=True,
    help="How many rows to print for a person; JSON holds all.",
)
@pass_invocation
def list_rows(invocation: Invocation, table: str | None, limit: int) -> None:
    """List the rows kept out of TABLE, or of every table."""
    rows = invocation.lakehouse().quarantine(table)
    invocation.show(rows, lambda found: _kept_out(found, limit))


def _kept_out(rows: Sequence[Any], limit: int) -> RenderableType:
    if not rows:
        return output.line("Nothing is in quarantine.")
    shown = output.table(
        ["id", "source", "file", "position", "reason", "row"],
        [
            [
                str(row.id),
                row.source,
                row.file,
                str(row.position),
                row.reason,
                row.raw,
            ]
            for row in rows[:limit]
        ],
        right=("position",),
    )
    cut = f", the first {output.number(limit)} shown" if len(rows) > limit else ""
    count = output.line(f"{output.plural(len(rows), 'row')} in quarantine{cut}", style="dim")
    return output.stack(shown, count)


@quarantine.command("replay", cls=Command)
@click.argument("source")
@click.option(
    "--file",
    "mended",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file of mended rows; else the kept rows are tried again as they are.",
)
@click.option("--id", "ids", multiple=True, help="Only this quarantined row (repeatable).")
@pass_invocation
def replay(invocation: Invocation, source: str, mended: Path | None, ids: tuple[str, ...]) -> None:
    """Put quarantined rows of SOURCE through once more, each at most once."""
    report = invocation.lakehouse().replay(source, file=mended, ids=ids or None)
    invocation.show(report, lambda done: _replayed(done.as_dict()))


def _replayed(report: dict[str, Any]) -> RenderableType:
    return output.line(*(f"{name.replace('_', ' ')} {value}" for name, value in report.items()))

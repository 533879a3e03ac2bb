"""Rows that broke a rule on their way in: look at them, and put mended ones through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Group, Invocation, pass_invocation
from thermocline.errors import BadInput, NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.ingest.quarantine import QuarantinedRow, ReplayReport

LIST_LIMIT = 50
SHORT_ID = 12
SHOWN_RAW = 100


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


def _kept_out(rows: Sequence[QuarantinedRow], limit: int) -> RenderableType:
    if not rows:
        return output.line("Nothing is in quarantine.")
    shown = output.table(
        ["id", "table", "file", "position", "why", "row"],
        [
            [
                row.id[:SHORT_ID],
                row.target,
                row.file,
                str(row.position),
                "; ".join(row.reasons),
                output.styled(_beginning(row.raw or ""), "dim"),
            ]
            for row in rows[:limit]
        ],
        right=("position",),
    )
    cut = f", the first {output.number(limit)} shown" if len(rows) > limit else ""
    count = f"{output.plural(len(rows), 'row')} in quarantine{cut}"
    return output.stack(shown, output.line(count, style="dim"))


def _beginning(raw: str) -> str:
    return raw if len(raw) <= SHOWN_RAW else f"{raw[:SHOWN_RAW]}…"


@quarantine.command("replay", cls=Command)
@click.argument("source")
@click.option(
    "--file",
    "mended",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file of mended rows; else the kept rows are tried again as they are.",
)
@click.option(
    "--id",
    "ids",
    multiple=True,
    metavar="ID",
    help="Only the quarantined row whose id begins so (repeatable).",
)
@pass_invocation
def replay(invocation: Invocation, source: str, mended: Path | None, ids: tuple[str, ...]) -> None:
    """Put quarantined rows of SOURCE through once more, each at most once."""
    lakehouse = invocation.lakehouse()
    whole = [_whole(each, lakehouse.quarantine()) for each in ids] if ids else None
    report = lakehouse.replay(source, file=mended, ids=whole)
    invocation.show(report, _replayed)


def _whole(beginning: str, rows: Iterable[QuarantinedRow]) -> str:
    """The one id that begins so: people copy the short ones that `quarantine` prints."""
    found = [row.id for row in rows if beginning and row.id.startswith(beginning)]
    if not found:
        raise NotFound(
            f"No row in quarantine has an id that begins with {beginning!r}.",
            "`thermo quarantine` lists them.",
        )
    if len(found) > 1:
        raise BadInput(
            f"{len(found)} rows in quarantine have an id that begins with {beginning!r}.",
            "Give more of the id.",
        )
    return found[0]


def _replayed(report: ReplayReport) -> RenderableType:
    return output.line(
        f"{output.plural(report.replayed, 'row')} landed in {report.target}",
        f"{report.still_bad:,} still bad" if report.still_bad else "",
        f"{report.already:,} had landed before" if report.already else "",
    )

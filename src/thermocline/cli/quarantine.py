"""The `quarantine` commands: list, export and replay rows that ingestion refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Group, Invocation, pass_invocation
from thermocline.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.ingest.quarantine import QuarantinedRow, ReplayReport

LIST_LIMIT = 50
SHORT_ID = 12
SHOWN_RAW = 100


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def quarantine(ctx: click.Context) -> None:
    """List, export and replay rows that ingestion refused. Without a subcommand: list all."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_rows, table=None, limit=LIST_LIMIT)


@quarantine.command("list", cls=Command)
@click.argument("table", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=LIST_LIMIT,
    show_default=True,
    help="How many rows to print; JSON has all of them.",
)
@pass_invocation
def list_rows(invocation: Invocation, table: str | None, limit: int) -> None:
    """List the quarantined rows of TABLE, or of every table."""
    rows = invocation.lakehouse().quarantine(table)
    invocation.show(rows, lambda found: _render_rows(found, limit))


def _render_rows(rows: Sequence[QuarantinedRow], limit: int) -> RenderableType:
    if not rows:
        return output.line("No rows are in quarantine.")
    shown = output.table(
        ["id", "table", "file", "position", "why", "row"],
        [
            [
                row.id[:SHORT_ID],
                row.target,
                row.file,
                str(row.position),
                "; ".join(row.reasons),
                output.styled_text(_truncate(row.raw or ""), "dim"),
            ]
            for row in rows[:limit]
        ],
        right=("position",),
    )
    cut = f", the first {output.number(limit)} shown" if len(rows) > limit else ""
    count = f"{output.plural(len(rows), 'row')} in quarantine{cut}"
    return output.stack(shown, output.line(count, style="dim"))


def _truncate(raw: str) -> str:
    return raw if len(raw) <= SHOWN_RAW else f"{raw[:SHOWN_RAW]}…"


_id_option = click.option(
    "--id",
    "ids",
    multiple=True,
    metavar="ID",
    help="Only the row whose id starts with ID (repeatable).",
)


@quarantine.command("export", cls=Command)
@click.argument("source")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv"]),
    help="Format of the rows; by default the extension of FILE, or jsonl.",
)
@_id_option
@pass_invocation
def export(
    invocation: Invocation, source: str, file: Path | None, form: str | None, ids: tuple[str, ...]
) -> None:
    """Write the quarantined rows of SOURCE, or of a table, to FILE or to standard output.

    Correct the rows, then ingest them with `thermo quarantine replay SOURCE FILE`.
    """
    if file is not None and file.exists():
        raise BadInput(f"{file} already exists.", "Choose another name, or remove the file first.")
    rows, left = invocation.lakehouse().export_quarantine(source, ids or None)
    from thermocline.ingest.arrow.local_validation import to_json
    from thermocline.ingest.corrections import write

    if file is None and invocation.json:
        click.echo(f"[{', '.join(map(to_json, rows))}]")
        return
    end = file.suffix.lower().removeprefix(".") if file is not None else ""
    as_csv = (form or end) == "csv"
    if file is None:
        write(rows, sys.stdout, as_csv=as_csv)
        return
    with file.open("x", encoding="utf-8", newline="") as out:
        write(rows, out, as_csv=as_csv)
    done = {"source": source, "file": str(file), "rows": len(rows), "left_out": left}
    invocation.show(done, lambda _: _render_export(source, file, len(rows), left))


def _render_export(source: str, file: Path, rows: int, left: int) -> RenderableType:
    files = f"{output.plural(left, 'whole file')} left out: deliver them again, corrected"
    return output.stack(
        output.line(f"{output.plural(rows, 'row')} written to {file}", files if left else ""),
        output.line(f"Correct the fields, then:  thermo quarantine replay {source} {file}"),
    )


@quarantine.command("replay", cls=Command)
@click.argument("source")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--file",
    "named",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The same as FILE.",
)
@_id_option
@pass_invocation
def replay(
    invocation: Invocation,
    source: str,
    file: Path | None,
    named: Path | None,
    ids: tuple[str, ...],
) -> None:
    """Ingest quarantined rows of SOURCE, or of a table, again. Each row lands at most once.

    With FILE, ingest corrected rows in the format of `thermo quarantine export`. Without it,
    retry the quarantined rows unchanged.
    """
    report = invocation.lakehouse().replay(source, file=file or named, ids=ids or None)
    invocation.show(report, _render_replay)


def _render_replay(report: ReplayReport) -> RenderableType:
    return output.line(
        f"{output.plural(report.replayed, 'row')} landed in {report.target}",
        f"{report.still_bad:,} still refused" if report.still_bad else "",
        f"{report.already:,} already landed" if report.already else "",
    )

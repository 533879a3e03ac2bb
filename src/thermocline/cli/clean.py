"""Leftovers of runs that failed or died."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api.leftovers import CleanReport, Leftover

_WHY = {
    "dead": "it failed or was killed",
    "working": "it is at work",
    "resumable": "a backfill that can go on; name it to drop it",
    "unknown": "it began elsewhere and may be at work; --force drops it",
}


@click.command(cls=Command)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--plan", "only_plan", is_flag=True, help="Say what would be dropped; drop nothing.")
@click.option("--force", is_flag=True, help="Drop also runs that began on another machine.")
@pass_invocation
def clean(invocation: Invocation, runs: tuple[str, ...], only_plan: bool, force: bool) -> None:
    """Drop the branches that failed or killed runs left in the tables, or only those of RUN.

    Runs at work are kept, and so are backfills that can go on, unless they are named. Main and
    environments stay as they are. Starts no engine.
    """
    report = invocation.lakehouse().clean(runs, plan=only_plan, force=force)
    invocation.show(report, _render_report)


def _render_report(report: CleanReport) -> RenderableType:
    if not report.runs:
        return output.line("No run left a branch behind.")
    done = "would be dropped" if report.plan else "dropped"
    rows = [
        [
            each.run,
            output.ago(each.began),
            _list_tables(each),
            done if each.dropped else "kept",
            _WHY[each.status],
        ]
        for each in report.runs
    ]
    return output.table(["run", "began", "tables", "", "why"], rows)


def _list_tables(each: Leftover) -> str:
    shown = ", ".join(each.tables[:3])
    more = len(each.tables) - 3
    return f"{shown} and {more:,} more" if more > 0 else shown

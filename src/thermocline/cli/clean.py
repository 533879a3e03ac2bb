"""The `clean` command: drop the leftovers of failed and killed runs."""

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
    "working": "it is running",
    "resumable": "a backfill that can resume; name it to drop it",
    "unknown": "it started on another machine and may be running; --force drops it",
}


@click.command(cls=Command)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be dropped; drop nothing.")
@click.option("--force", is_flag=True, help="Also drop runs that started on another machine.")
@pass_invocation
def clean(invocation: Invocation, runs: tuple[str, ...], only_plan: bool, force: bool) -> None:
    """Drop the branches that failed or killed runs left in the tables, or only those of RUN.

    Active runs are kept. So are backfills that can resume, unless they are named. Main and
    environments are not changed. Starts no engine.
    """
    report = invocation.lakehouse().clean(runs, plan=only_plan, force=force)
    invocation.show(report, _render_report)


def _render_report(report: CleanReport) -> RenderableType:
    if not report.runs:
        return output.line("No run left a branch.")
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
    return output.table(["run", "started", "tables", "", "why"], rows)


def _list_tables(each: Leftover) -> str:
    shown = ", ".join(each.tables[:3])
    more = len(each.tables) - 3
    return f"{shown} and {more:,} more" if more > 0 else shown

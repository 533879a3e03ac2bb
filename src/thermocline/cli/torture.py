"""The `torture` command: verify delivery while processes are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.interrupt import raise_on_signal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.torture import Verdict

TIDY_SECONDS = 60.0
"""Seconds that cleanup of the trial's tables, topics and slots may take after an interrupt."""


@click.command(cls=Command)
@click.option("--minutes", type=click.FloatRange(0.1), default=5.0, show_default=True,
              help="Maximum time until the last events are sent.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Seed of the events and of the failures.")  # fmt: skip
@click.option("--kills", type=click.IntRange(1), metavar="N",
              help="Number of kills; by default as many as the time allows.")  # fmt: skip
@click.option("--events", type=click.IntRange(1), default=100_000, show_default=True,
              help="Number of events sent through each lane.")  # fmt: skip
@click.option("--lane", "lanes", multiple=True, metavar="KIND",
              help="Only this kind of source: files, kafka or postgres (repeatable).")  # fmt: skip
@click.option("--restart", "restarts", multiple=True, metavar="COMMAND",
              help="Command that restarts a server, run at random times (repeatable).")  # fmt: skip
@click.option(
    "--keep", is_flag=True, help="Keep everything that the trial created, except replication slots."
)
@pass_invocation
def torture(
    invocation: Invocation,
    minutes: float,
    seed: int,
    kills: int | None,
    events: int,
    lanes: tuple[str, ...],
    restarts: tuple[str, ...],
    keep: bool,
) -> int:
    """Kill the pipeline repeatedly and verify that every event landed exactly once.

    The trial uses the project's settings, brokers and databases, with its own tables and topics.
    The exit code is 1 if an event was lost, duplicated or altered.
    """
    from thermocline.torture import TrialOptions
    from thermocline.torture import torture as begin

    options = TrialOptions(minutes, seed, kills, events, lanes, restarts, keep, invocation.profile)
    with raise_on_signal(TIDY_SECONDS), invocation.progress() as progress:
        verdict = begin(invocation.lakehouse(), options, progress=progress)
    invocation.show(verdict, render_verdict)
    return 0 if verdict.passed else 1


def render_verdict(verdict: Verdict) -> RenderableType:
    """Render the report of a trial."""
    columns = [
        "lane", "sent", "landed", "meanwhile", "quarantined", "lost", "duplicated", "altered",
        "reordered", "silver differs", "commits",
    ]  # fmt: skip
    rows: list[output.Row] = [
        [lane.lane, *map(output.number, (
            lane.sent, lane.landed, lane.landed_during_chaos, lane.quarantined, lane.lost,
            lane.duplicated, lane.altered, lane.reordered, lane.state_differs, lane.commits,
        ))]
        for lane in verdict.lanes
    ]  # fmt: skip
    actions = sorted(verdict.actions.items(), key=lambda action: -action[1])
    done: list[output.Row] = [[action, output.number(count)] for action, count in actions]
    if verdict.without_effect:
        done.append(
            [output.styled_text("without effect", "dim"), output.number(verdict.without_effect)]
        )
    mark = output.styled_text("✓", "green") if verdict.passed else output.styled_text("✗", "red")
    cut = f" of {verdict.planned} planned" if verdict.kills < verdict.planned else ""
    times = f"{verdict.kills}{cut} times, {output.duration(verdict.seconds)}, seed {verdict.seed}"
    return output.stack(
        output.table(columns, rows, right=columns[1:]),
        "",
        output.table(["failure", "times"], done, right=("times",)) if done else None,
        *(output.line(f"! {warning}", style="yellow") for warning in verdict.warnings),
        "",
        output.table(["", ""], [[mark, f"{_summarize(verdict)}   {times}"]]),
    )


def _summarize(verdict: Verdict) -> str:
    if verdict.passed:
        return "every event landed once, in order"
    if all(lane.passed for lane in verdict.lanes):
        return "every event landed, but too few failures occurred to prove anything"
    return "events were lost, duplicated or altered"

"""Does it keep its promise on this machine, with this configuration?"""

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
"""How long it may take, once interrupted, to drop the tables, topics and slots of the trial."""


@click.command(cls=Command)
@click.option("--minutes", type=click.FloatRange(0.1), default=5.0, show_default=True,
              help="How long, at most, until the last events are sent.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Decides the events, and what is done when.")  # fmt: skip
@click.option("--kills", type=click.IntRange(1), metavar="N",
              help="How many times; else as many as the minutes allow.")  # fmt: skip
@click.option("--events", type=click.IntRange(1), default=100_000, show_default=True,
              help="How many events are sent down each lane.")  # fmt: skip
@click.option("--lane", "lanes", multiple=True, metavar="KIND",
              help="Only this kind of source: files, kafka or postgres; repeatable.")  # fmt: skip
@click.option("--restart", "restarts", multiple=True, metavar="COMMAND",
              help="Restarts a server, at random moments. May be repeated.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep what the trial made, but for replication slots.")
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
    """Kill the pipeline again and again, and count what became of known events.

    The project's settings, brokers and databases are used, with tables and topics of the trial's
    own. Ends with 1 when an event was lost, landed twice, or is not what was sent.
    """
    from thermocline.torture import Order
    from thermocline.torture import torture as begin

    order = Order(minutes, seed, kills, events, lanes, restarts, keep, invocation.profile)
    with raise_on_signal(TIDY_SECONDS), invocation.progress() as progress:
        verdict = begin(invocation.lakehouse(), order, progress=progress)
    invocation.show(verdict, render_verdict)
    return 0 if verdict.passed else 1


def render_verdict(verdict: Verdict) -> RenderableType:
    """The report of a trial, for a person."""
    columns = [
        "lane", "sent", "landed", "meanwhile", "quarantined", "lost", "duplicated", "altered",
        "reordered", "silver differs", "commits",
    ]  # fmt: skip
    rows: list[output.Row] = [
        [lane.lane, *map(output.number, (
            lane.sent, lane.landed, lane.disturbed, lane.quarantined, lane.lost, lane.duplicated,
            lane.altered, lane.reordered, lane.state_differs, lane.commits,
        ))]
        for lane in verdict.lanes
    ]  # fmt: skip
    deeds = sorted(verdict.deeds.items(), key=lambda deed: -deed[1])
    done: list[output.Row] = [[deed, output.number(count)] for deed, count in deeds]
    if verdict.in_vain:
        done.append([output.styled_text("in vain", "dim"), output.number(verdict.in_vain)])
    mark = output.styled_text("✓", "green") if verdict.passed else output.styled_text("✗", "red")
    cut = f" of {verdict.planned} planned" if verdict.kills < verdict.planned else ""
    times = f"{verdict.kills}{cut} times, {output.duration(verdict.seconds)}, seed {verdict.seed}"
    return output.stack(
        output.table(columns, rows, right=columns[1:]),
        "",
        output.table(["done to it", "times"], done, right=("times",)) if done else None,
        *(output.line(f"! {surprise}", style="yellow") for surprise in verdict.surprises),
        "",
        output.table(["", ""], [[mark, f"{_summarize(verdict)}   {times}"]]),
    )


def _summarize(verdict: Verdict) -> str:
    if verdict.passed:
        return "every event landed once, in order"
    if all(lane.passed for lane in verdict.lanes):
        return "every event is there, but that proves nothing: too little was disturbed"
    return "events went astray"

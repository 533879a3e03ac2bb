"""The commands for partitions: backfill, work, partitions."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.transform.workers.backfill import BackfillReport
    from thermocline.transform.workers.partition_map import PartitionMap
    from thermocline.transform.workers.work_unit import WorkUnit

MARKS = {"fresh": "■", "stale": "□", "missing": "·", "done": "▣", "failed": "✗"}
WIDE = 60


@click.command(cls=Command)
@click.argument("model")
@click.option("--from", "first", metavar="P", help="First partition, such as 2026-11-01.")
@click.option("--to", "last", metavar="P", help="Last partition, inclusive.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of worker processes.")
@click.option("--batch", type=click.IntRange(1), metavar="K", help="Partitions per work unit.")
@click.option("--env", metavar="NAME", help="Work on this environment, not on main.")
@click.option(
    "--hand-out",
    is_flag=True,
    help="Start the backfill and print its work units, for workers on other machines.",
)
@pass_invocation
def backfill(
    invocation: Invocation,
    model: str,
    first: str | None,
    last: str | None,
    workers: int | None,
    batch: int | None,
    env: str | None,
    hand_out: bool,
) -> None:
    """Recompute partitions of MODEL in parallel, and publish them in one commit.

    If it is killed at any time, the same command resumes it.
    """
    lakehouse = invocation.lakehouse()
    if hand_out:
        pieces = lakehouse.hand_out(model, first, last, batch=batch, env=env)
        invocation.show(pieces, _render_pieces)
        return
    with invocation.progress() as progress:
        report = lakehouse.backfill(
            model, first, last, workers=workers, batch=batch, env=env, progress=progress
        )
    invocation.show(report, _render_backfill)


def _render_pieces(pieces: list[WorkUnit]) -> RenderableType:
    lines = [json.dumps(piece.as_dict(), separators=(",", ":")) for piece in pieces]
    return output.stack(*(output.line(line) for line in lines))


def _render_backfill(report: BackfillReport) -> RenderableType:
    spark = f", {report.on_spark:,} of them on Spark" if report.on_spark else ""
    again = " (resumed an earlier backfill)" if report.resumed else ""
    rows = [
        ["partitions", f"{report.computed:,} of {report.partitions:,} computed{spark}{again}"],
        ["rows", f"{report.rows:,} in {output.plural(report.snapshots, 'commit')}"],
        ["took", f"{output.duration(report.seconds)}, {report.cpu_seconds:,.1f} CPU s in workers"],
        ["largest worker", f"{report.peak_bytes / 2**20:,.0f} MB"],
    ]
    undo = f"(undo: thermo rollback --run {report.run})"
    return output.stack(
        output.table([report.table, ""], rows), output.line("published in one commit", undo)
    )


@click.command(cls=Command)
@click.argument("model", required=False)
@click.option("--partition", metavar="P", help="Compute and publish this partition of MODEL.")
@click.option(
    "--piece",
    metavar="JSON",
    help="Compute this work unit; by default they are read from standard input.",
)
@pass_invocation
def work(
    invocation: Invocation, model: str | None, partition: str | None, piece: str | None
) -> None:
    """Compute the work units of `thermo backfill --hand-out`, one per line of standard input.

    With MODEL and --partition, compute and publish that partition.
    """
    from thermocline.transform.workers.work_unit import WorkUnit

    lakehouse = invocation.lakehouse()
    if (model is None) != (partition is None):
        raise BadInput(
            "MODEL and --partition must be used together.",
            "Run `thermo work MODEL --partition P`, or pass work units on standard input.",
        )
    if model is not None:
        with invocation.progress() as progress:
            report = lakehouse.backfill(model, partition, partition, workers=1, progress=progress)
        invocation.show(report, _render_backfill)
        return
    for line in [piece] if piece is not None else sys.stdin:
        if line.strip():
            done = lakehouse.work(WorkUnit.from_dict(_parse_json(line)))
            click.echo(json.dumps(done.as_dict()))


def _parse_json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise BadInput(
            "A work unit must be one line of JSON.",
            "Pass a line that `thermo backfill --hand-out` printed, unchanged.",
        ) from error


@click.command(cls=Command)
@click.argument("model")
@pass_invocation
def partitions(invocation: Invocation, model: str) -> None:
    """Show which partitions of MODEL are fresh, stale or failed, and the progress of a backfill."""
    invocation.show(invocation.lakehouse().partitions(model), _render_partitions)


def _render_partitions(found: PartitionMap) -> RenderableType:
    if not found.partitions:
        return output.line(f"{found.table} has no partitions yet.")
    counts = " · ".join(f"{count:,} {how}" for how, count in sorted(found.counts.items()))
    lines = [
        output.line(f"{title:<12}", "".join(MARKS[str(each.status)] for each in some))
        for title, some in _group_partitions(found)
    ]
    key = "   ".join(f"{mark} {how}" for how, mark in MARKS.items() if how in found.counts)
    failures = [each for each in found.partitions if each.why and each.status == "failed"]
    return output.stack(
        output.line(f"{found.table}   {output.plural(len(found.partitions), 'partition')}", counts),
        *lines,
        output.line(key, style="dim"),
        output.line(found.note, style="yellow") if found.note else None,
        *(output.line(f"✗ {each.name}  {each.why}", style="red") for each in failures[:5]),
    )


def _group_partitions(found: PartitionMap) -> list[tuple[str, list[Any]]]:
    """Group daily partitions by month, and others into lines of equal length."""
    names = [each.name for each in found.partitions]
    if all(len(name) == 10 and name[4] == name[7] == "-" for name in names):
        months = groupby(found.partitions, key=lambda each: each.name[:7])
        return [(month, list(some)) for month, some in months]
    every = list(found.partitions)
    return [(every[i].name[:12], every[i : i + WIDE]) for i in range(0, len(every), WIDE)]

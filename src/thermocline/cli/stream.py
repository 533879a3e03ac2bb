"""The `stream` command: ingest continuously and show the lag of each source."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.background_maintenance import maintain_in_background
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.cli.pipeline import accept_loss_option
from thermocline.interrupt import stop_on_signal
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.ingest.stream import PollResult

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _parse_seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?)(ms|s|m|h|)", text)
    if not found:
        raise click.BadParameter(f"{text!r} is not a duration such as 500ms, 2s or 1m")
    return float(found[1]) * _UNITS[found[2]]


def _parse_bytes(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+)\s*([kmg]?)(?:i?b)?", text.lower())
    if not found or not int(found[1]):
        raise click.BadParameter(f"{text!r} is not a size such as 64MB")
    return int(found[1]) * _SIZES[found[2]]


@click.command(cls=Command)
@click.argument("sources", nargs=-1)
@click.option(
    "--then",
    multiple=True,
    metavar="WHICH",
    help="Update these models after each batch: name, name+ (repeatable).",
)
@click.option(
    "--every",
    default="2s",
    callback=_parse_seconds,
    metavar="TIME",
    show_default=True,
    help="How often to poll, and thus to commit.",
)
@click.option("--max-rows", type=click.IntRange(1), help="Maximum number of records in a batch.")
@click.option("--max-bytes", callback=_parse_bytes, metavar="SIZE", help="Maximum size of a batch.")
@accept_loss_option
@pass_invocation
def stream(
    invocation: Invocation,
    sources: tuple[str, ...],
    then: tuple[str, ...],
    every: float,
    max_rows: int | None,
    max_bytes: int | None,
    accept_loss: bool,
) -> None:
    """Ingest continuously from SOURCES, or from every source, until interrupted.

    Each record lands exactly once, even if any process is killed: the commits of a table record
    how far its source was read. With --json, each batch is one line.

    Ctrl-C stops it after the current batch, with exit code 0. A batch that takes longer than a
    second is aborted; the next call ingests it again.
    """
    lakehouse = invocation.lakehouse()
    with (
        stop_on_signal(code=0) as stop,
        maintain_in_background(lakehouse.settings),
        _open_display(invocation) as show,
    ):
        for poll in lakehouse.stream(
            sources,
            then=then,
            every=every,
            limits=_build_limits(max_rows, max_bytes),
            accept_loss=accept_loss,
            stop=stop,
        ):
            show(poll)


def _build_limits(rows: int | None, size: int | None) -> Any:
    from thermocline.ingest.source import BatchLimits

    if rows is None and size is None:
        return None
    limits = BatchLimits()
    return BatchLimits(
        limits.rows if rows is None else rows, limits.bytes if size is None else size
    )


@contextmanager
def _open_display(invocation: Invocation) -> Iterator[Callable[[PollResult], None]]:
    """Return how to show a poll: a line of JSON, a line of text, or a live table."""
    if invocation.json:
        yield _print_json
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        view = StreamView()
        console = Console(highlight=False, markup=False, emoji=False)
        with Live(console=console, refresh_per_second=4) as live:

            def update(poll: PollResult) -> None:
                view.update(poll)
                live.update(view.table())

            yield update
    else:
        yield _print_line


def _print_json(poll: PollResult) -> None:
    if poll.batch is not None or poll.failure is not None:
        text = json.dumps(output.to_json_value(poll), ensure_ascii=False, allow_nan=False)
        print(redact(text), flush=True)


def _print_line(poll: PollResult) -> None:
    if poll.failure is not None:
        text = f"! {poll.source}: {poll.failure.cause} Retrying in {poll.pause:.0f} s."
        print(one_line(redact(text)), file=sys.stderr, flush=True)
    elif poll.batch is not None:
        cells = "   ".join(f"{name} {text}" for name, text in _format_batch(poll).items() if text)
        print(one_line(redact(f"{poll.source} → {poll.target}   {cells}")), flush=True)


def _format_batch(poll: PollResult) -> dict[str, str]:
    """Format the figures of a batch."""
    batch = poll.batch
    assert batch is not None
    mean = poll.file_bytes // poll.files if poll.files else 0
    return {
        "batch": f"{batch.sequence:,}",
        "rows": f"{batch.rows:,}",
        "quarantined": f"{batch.quarantined:,}" if batch.quarantined else "",
        "gaps": f"{batch.landed.gaps:,}" if batch.landed.gaps > 0 else "",
        "rows/s": f"{(batch.rows + batch.quarantined) / max(poll.seconds, 0.001):,.0f}",
        "lag": "" if batch.behind is None else f"{batch.behind:,}",
        "fresh": "" if poll.freshness is None else output.duration(poll.freshness),
        "took": output.duration(poll.seconds),
        "files": f"{poll.files:,} × {output.size(mean)}" if poll.files else "",
        "ran": ", ".join(poll.ran),
    }


class StreamView:
    """The live table: one line per source, with its last batch and its totals."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._lines: dict[str, list[str]] = {}

    def update(self, poll: PollResult) -> None:
        """Update the line of a source with the result of a poll."""
        line = self._lines.setdefault(poll.source, [poll.source, poll.target, *[""] * 8])
        if poll.failure is not None:
            line[-1] = f"{poll.failure.cause} Retrying in {poll.pause:.0f} s."
            return
        line[-1] = ""
        if poll.batch is None:
            line[4] = "0"  # nothing is pending
            return
        cells = _format_batch(poll)
        total = self._rows.get(poll.source, 0) + poll.batch.rows
        self._rows[poll.source] = total
        at = poll.at.strftime("%H:%M:%S")
        line[2:-1] = [
            f"{total:,}", cells["rows/s"], cells["lag"], cells["fresh"], f"{at} #{cells['batch']}",
            cells["files"], cells["quarantined"],
        ]  # fmt: skip

    def table(self) -> RenderableType:
        """Return the current table."""
        names = [
            "source", "table", "rows", "rows/s", "lag", "fresh", "last commit", "files",
            "quarantined", "",
        ]  # fmt: skip
        return output.table(
            names,
            [[redact(cell) for cell in line] for line in self._lines.values()],
            right=("rows", "rows/s", "lag", "fresh"),
        )

"""Sources read on and on, with a view of how far behind they are."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.cli.pipeline import accepts_loss
from thermocline.interrupt import until_interrupted
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.ingest.stream import Beat

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?)(ms|s|m|h|)", text)
    if not found:
        raise click.BadParameter(f"{text!r} is no duration such as 500ms, 2s or 1m")
    return float(found[1]) * _UNITS[found[2]]


def _bytes(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+)\s*([kmg]?)(?:i?b)?", text.lower())
    if not found or not int(found[1]):
        raise click.BadParameter(f"{text!r} is no size such as 64MB")
    return int(found[1]) * _SIZES[found[2]]


@click.command(cls=Command)
@click.argument("sources", nargs=-1)
@click.option(
    "--then",
    multiple=True,
    metavar="WHICH",
    help="Bring these models up to date after each batch: name, name+ (repeatable).",
)
@click.option(
    "--every",
    default="2s",
    callback=_seconds,
    metavar="TIME",
    show_default=True,
    help="How often to look, and so to commit.",
)
@click.option("--max-rows", type=click.IntRange(1), help="The most records of one batch.")
@click.option("--max-bytes", callback=_bytes, metavar="SIZE", help="The most bytes of one batch.")
@accepts_loss
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
    """Take in what comes at SOURCES, or at every source, until interrupted.

    Each record lands exactly once, whatever is killed and whenever: a table's own commits say how
    far its source was read. With --json, each batch is a line.

    Ctrl-C ends it after the batch in hand, with exit code 0. A batch that takes more than a second
    is cut off, and taken again by the next call.
    """
    lakehouse = invocation.lakehouse()
    with until_interrupted(code=0) as stop, _shown(invocation) as show:
        for beat in lakehouse.stream(
            sources,
            then=then,
            every=every,
            limits=_limits(max_rows, max_bytes),
            accept_loss=accept_loss,
            stop=stop,
        ):
            show(beat)


def _limits(rows: int | None, size: int | None) -> Any:
    from thermocline.ingest.source import Limits

    if rows is None and size is None:
        return None
    return Limits(Limits.rows if rows is None else rows, Limits.bytes if size is None else size)


@contextmanager
def _shown(invocation: Invocation) -> Iterator[Callable[[Beat], None]]:
    """What is done with a beat: a line of JSON, a line of text, or a live table."""
    if invocation.json:
        yield _as_json
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        view = View()
        console = Console(highlight=False, markup=False, emoji=False)
        with Live(console=console, refresh_per_second=4) as live:

            def update(beat: Beat) -> None:
                view.note(beat)
                live.update(view.table())

            yield update
    else:
        yield _as_text


def _as_json(beat: Beat) -> None:
    if beat.taken is not None or beat.trouble is not None:
        said = json.dumps(output.plain(beat), ensure_ascii=False, allow_nan=False)
        print(redact(said), flush=True)


def _as_text(beat: Beat) -> None:
    if beat.trouble is not None:
        said = f"! {beat.source}: {beat.trouble.cause} Trying again in {beat.pause:.0f} s."
        print(one_line(redact(said)), file=sys.stderr, flush=True)
    elif beat.taken is not None:
        cells = "   ".join(f"{name} {text}" for name, text in _cells(beat).items() if text)
        print(one_line(redact(f"{beat.source} → {beat.target}   {cells}")), flush=True)


def _cells(beat: Beat) -> dict[str, str]:
    """What is told of a batch."""
    taken = beat.taken
    assert taken is not None
    mean = beat.file_bytes // beat.files if beat.files else 0
    return {
        "batch": f"{taken.sequence:,}",
        "rows": f"{taken.rows:,}",
        "quarantined": f"{taken.quarantined:,}" if taken.quarantined else "",
        "gaps": f"{taken.landed.gaps:,}" if taken.landed.gaps > 0 else "",
        "rows/s": f"{(taken.rows + taken.quarantined) / max(beat.seconds, 0.001):,.0f}",
        "lag": "" if taken.behind is None else f"{taken.behind:,}",
        "fresh": "" if beat.freshness is None else output.duration(beat.freshness),
        "took": output.duration(beat.seconds),
        "files": f"{beat.files:,} × {output.size(mean)}" if beat.files else "",
        "ran": ", ".join(beat.ran),
    }


class View:
    """The live table: a line a source, with its last batch and its totals."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._lines: dict[str, list[str]] = {}

    def note(self, beat: Beat) -> None:
        """Take in a beat."""
        line = self._lines.setdefault(beat.source, [beat.source, beat.target, *[""] * 8])
        if beat.trouble is not None:
            line[-1] = f"{beat.trouble.cause} Trying again in {beat.pause:.0f} s."
            return
        line[-1] = ""
        if beat.taken is None:
            line[4] = "0"  # nothing waits
            return
        cells = _cells(beat)
        total = self._rows.get(beat.source, 0) + beat.taken.rows
        self._rows[beat.source] = total
        at = beat.at.strftime("%H:%M:%S")
        line[2:-1] = [
            f"{total:,}", cells["rows/s"], cells["lag"], cells["fresh"], f"{at} #{cells['batch']}",
            cells["files"], cells["quarantined"],
        ]  # fmt: skip

    def table(self) -> RenderableType:
        """The table as it stands."""
        names = [
            "source", "table", "rows", "rows/s", "lag", "fresh", "last commit", "files",
            "quarantined", "",
        ]  # fmt: skip
        return output.table(
            names,
            [[redact(cell) for cell in line] for line in self._lines.values()],
            right=("rows", "rows/s", "lag", "fresh"),
        )

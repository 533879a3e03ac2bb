"""Show progress: a live line on a terminal, and one line per finished step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from thermocline.cli.output import duration
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ConsoleProgress:
    """Shows the open step, and prints a line for each finished one."""

    def __init__(self, console: Console, live: Progress | None) -> None:
        self._console = console
        self._live = live
        self._task: TaskID | None = None
        self._name: str | None = None
        self._began = 0.0

    def step(self, name: str, total: int | None = None) -> None:
        if self._name is not None:
            self.done()
        self._name, self._began = one_line(redact(name)), time.monotonic()
        if self._live is not None:
            self._task = self._live.add_task(self._name, total=total, detail="")

    def advance(self, by: int = 1, detail: str = "") -> None:
        if self._live is not None and self._task is not None:
            self._live.update(self._task, advance=by, detail=one_line(redact(detail)))

    def done(self, detail: str = "") -> None:
        self._close("✓", "green", detail)

    def fail(self) -> None:
        """Mark the open step, if any, as failed."""
        self._close("✗", "red", "")

    def _close(self, mark: str, style: str, detail: str) -> None:
        if self._name is None:
            return
        took = duration(time.monotonic() - self._began)
        text = f"{self._name:<28} {one_line(redact(detail)):<40} {took:>9}"
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)
            self._live.refresh()
        self._console.print(Text.assemble((mark, style), " ", text), soft_wrap=True)
        self._task = self._name = None


@contextmanager
def show_progress() -> Iterator[ConsoleProgress]:
    """Show progress on stderr, so that stdout has only the result."""
    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    live: Progress | None = None
    if console.is_terminal:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        live.start()
    progress = ConsoleProgress(console, live)
    try:
        yield progress
    except BaseException:
        progress.fail()
        raise
    else:
        progress.done()
    finally:
        if live is not None:
            live.stop()

"""The `demo` command: build the example lakehouse and show it."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.config import PROJECT_FILE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api import DemoReport

REVENUE_DAYS = 7


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), default=Path("demo"))
@pass_invocation
def demo(invocation: Invocation, folder: Path) -> None:
    """Build the example shop in FOLDER (default: demo/), from raw files to published gold.

    A second run processes only what changed.
    """
    import thermocline

    if (folder / PROJECT_FILE).is_file():
        replace(invocation, project=folder).settings()  # so that its secrets are hidden
    with invocation.progress() as progress:
        report = thermocline.demo(folder, progress=progress)
    invocation.show(report, lambda done: _render_report(done, folder))


def _render_report(report: DemoReport, folder: Path) -> RenderableType:
    tables = output.table(
        ["table", "rows", "snapshots"],
        [
            [info.name, output.number(info.rows), output.number(info.snapshots)]
            for info in report.tables
        ],
        right=("rows", "snapshots"),
    )
    days = report.revenue[-REVENUE_DAYS:]
    revenue = output.table(
        ["day", "orders", "revenue"],
        [[str(day), output.number(orders), f"{amount:,.2f}"] for day, orders, amount in days],
        right=("orders", "revenue"),
        boxed=True,
    )
    trend = output.sparkline([amount for _, _, amount in days])
    newest = "select * from gold.daily_revenue order by day desc limit 7"
    return output.stack(
        tables,
        output.line(f"{output.plural(report.quarantined, 'row')} in quarantine"),
        "",
        output.side_by_side(revenue, trend),
        "",
        *(output.line(f"{word}  {command}") for word, command in _first_commands(folder)),
        f'       thermo query "{newest}"',
        "       thermo history silver.orders",
        "       thermo quarantine",
        "       thermo serve",
    )


def _first_commands(folder: Path) -> list[tuple[str, str]]:
    """Return the first commands to type; activate the virtual environment if needed."""
    commands = [f"cd {shlex.quote(str(folder))}"]
    activate = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("thermo") is None and activate.is_file():
        with contextlib.suppress(ValueError):
            activate = activate.relative_to(Path.cwd())
        commands.insert(0, f". {shlex.quote(str(activate))}")
    return [("Next:" if place == 0 else "     ", each) for place, each in enumerate(commands)]

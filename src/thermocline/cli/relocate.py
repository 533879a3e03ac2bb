"""The `relocate` command: repair a project that was copied or moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.recover import Relocation


@click.command(cls=Command)
@click.option("--plan", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--from", "old", metavar="FOLDER",
              help="Former warehouse of the tables, if it cannot be found.")  # fmt: skip
@click.option("--shared", is_flag=True,
              help="Allow changing a catalog that other projects may use.")  # fmt: skip
@pass_invocation
def relocate(invocation: Invocation, plan: bool, old: str | None, shared: bool) -> None:
    """Move all tables to the project's warehouse after the project was copied or moved.

    The original files are read and never changed. Missing files are copied, every snapshot is
    compared with the original, and all tables are switched in one commit.
    """
    lakehouse = invocation.lakehouse()
    with invocation.progress() as progress:
        done = lakehouse.relocate(old=old, shared=shared, plan=plan, progress=progress)
    invocation.show(done, _render_relocation)


def _render_relocation(done: Relocation) -> RenderableType:
    if not done.tables:
        return output.line(f"All tables are in {done.warehouse}; there is nothing to relocate.")
    number = output.number
    rows = [
        [
            each.table,
            number(each.snapshots),
            number(each.files),
            f"{number(each.copied)} ({output.size(each.copied_bytes)})" if each.copied else "0",
            number(each.written),
            number(each.rows),
        ]
        for each in done.tables
    ]
    names = ["table", "snapshots", "files", "copied", "rewritten", "rows"]
    verb = "are in" if done.done else "would be moved to"
    return output.stack(
        output.table(names, rows, right=names[1:]),
        output.line(f"{output.plural(len(done.tables), 'table')} {verb} {done.warehouse}."),
        output.line("The original files were not changed." if done.done else "", style="dim"),
    )

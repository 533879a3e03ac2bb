"""The `diff` command: compare two versions of a table, or an environment with main."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.errors import BadInput

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import RenderableType
    from rich.text import Text

    from thermocline.lake.changeset import ChangeSet


@click.command(cls=Command)
@click.argument("table", required=False)
@click.argument("before", metavar="[BEFORE]", required=False)
@click.argument("after", metavar="[AFTER]", required=False)
@click.option("--env", metavar="NAME", help="Compare this environment with main.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many rows of each kind to print; JSON has all of them.",
)
@pass_invocation
def diff(
    invocation: Invocation,
    table: str | None,
    before: str | None,
    after: str | None,
    env: str | None,
    limit: int,
) -> None:
    """Compare two versions of TABLE row by row, or an environment with main.

    BEFORE and AFTER are times, snapshots, tags or branches; AFTER defaults to now.
    """
    lakehouse = invocation.lakehouse()
    if env is not None and table is None:
        found = lakehouse.diff(env=env)
    elif env is None and table is not None and before is not None:
        found = [lakehouse.table(table).diff(before, after)]
    else:
        raise BadInput(
            "A comparison needs a table and a version, or an environment.",
            "Run `thermo diff TABLE BEFORE [AFTER]` or `thermo diff --env NAME`.",
        )
    invocation.show(found, lambda changes: _render_changes(changes, limit))


def _render_changes(found: Sequence[ChangeSet], limit: int) -> RenderableType:
    changed = [changes for changes in found if not changes.is_empty]
    if not changed:
        return output.line("No differences.")
    return output.stack(
        *(part for changes in changed for part in _render_table_changes(changes, limit))
    )


def _render_table_changes(changes: ChangeSet, limit: int) -> Iterator[Text]:
    counts = changes.counts
    inserts, updates, deletes = counts["inserts"], counts["updates"], counts["deletes"]
    yield output.line(changes.table, f"+{inserts:,}  −{deletes:,}  ~{updates:,} rows", style="bold")
    by_row = groupby(changes.changed_cells(), key=lambda cell: cell.key)
    for key, cells in islice(by_row, limit):
        parts = [
            f"{cell.column} {_format_value(cell.old)} → {_format_value(cell.new)}" for cell in cells
        ]
        named = zip(changes.key, key, strict=True)
        yield output.line(
            "  ~", " ".join(f"{name} {_format_value(value)}" for name, value in named), *parts
        )
    for sign, rows in (("  +", changes.inserts), ("  −", changes.deletes)):
        for row in _format_rows(rows, limit):
            yield output.line(sign, row)
    left = sum(max(0, count - limit) for count in (inserts, updates, deletes))
    if left:
        yield output.line(f"  … and {output.number(left)} more (--limit)", style="dim")


def _format_rows(rows: pa.Table, limit: int) -> Iterator[str]:
    for row in rows.slice(0, limit).to_pylist():
        yield "   ".join(f"{name} {_format_value(value)}" for name, value in row.items())


def _format_value(value: object) -> str:
    return output.cell(value).plain

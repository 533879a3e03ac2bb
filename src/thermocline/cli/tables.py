"""The commands `tables` and `show`: list tables, and describe one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api import TableInfo


@click.command(cls=Command)
@pass_invocation
def tables(invocation: Invocation) -> None:
    """List the tables of the lake. Starts no engine."""
    invocation.show(invocation.lakehouse().tables(), _render_tables)


def _render_tables(found: Sequence[TableInfo]) -> RenderableType:
    if not found:
        return output.line("The lake has no tables yet.", "Next:  thermo ingest, then thermo run")
    return output.table(
        ["table", "rows", "files", "size", "snapshot", "committed", "branches and tags"],
        [
            [
                info.name,
                output.number(info.rows),
                output.number(info.files),
                output.size(info.bytes),
                "" if info.snapshot is None else str(info.snapshot),
                output.ago(info.committed_at),
                " ".join(_ref_names(info)),
            ]
            for info in found
        ],
        right=("rows", "files", "size"),
    )


@click.command(cls=Command)
@click.argument("table")
@pass_invocation
def show(invocation: Invocation, table: str) -> None:
    """Describe TABLE: columns, size and newest snapshot. Starts no engine."""
    found = invocation.lakehouse().table(table)
    columns = ("name", "type", "required", "doc", "classification")
    document = {
        "info": found.info(),
        "columns": [dict(zip(columns, column, strict=True)) for column in found.schema()],
    }
    invocation.show(document, _render_table)


def _render_table(document: dict[str, Any]) -> RenderableType:
    info: TableInfo = document["info"]
    facts = output.line(
        info.name,
        output.plural(info.rows, "row"),
        output.plural(info.files, "file"),
        output.size(info.bytes),
        f"snapshot {info.snapshot}" if info.snapshot is not None else "no snapshot yet",
        output.ago(info.committed_at),
    )
    names = _ref_names(info)
    columns = output.table(
        ["column", "type", "", "class", "meaning"],
        [
            [
                column["name"],
                str(column["type"]),
                "required" if column["required"] else "",
                column["classification"],
                column["doc"],
            ]
            for column in document["columns"]
        ],
    )
    return output.stack(facts, output.line(*names) if names else None, "", columns)


def _ref_names(info: TableInfo) -> list[str]:
    """Return the branches and tags, without main."""
    return [name for name in (*info.branches, *info.tags) if name != "main"]

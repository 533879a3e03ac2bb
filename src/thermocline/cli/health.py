"""The command `health`: how well tables can be read, and what to change."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from thermocline.maintain.sort_quality import SortQuality
    from thermocline.maintain.table_details import PartitionHealth, TableDetails
    from thermocline.maintain.table_health import TableHealth

MARKS = {"good": "■", "fair": "▣", "bad": "□"}
FAIR, BAD = 1.5, 3.0
"""The cost of reading a partition, over the least possible, from which on it is fair or bad."""
WIDE = 60
WORST = 5


@click.command(cls=Command)
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@pass_invocation
def health(invocation: Invocation, tables: tuple[str, ...]) -> None:
    """Show how well all tables can be read, the worst first, or TABLE in detail.

    Reading costs the amplification times what it would cost with files of the target size. The
    score is 100 divided by it. A lookup by the table's order opens the given number of files of a
    partition. One TABLE is shown with its partitions, its reads and updates, and advice for its
    contract. Reads metadata only.
    """
    maintenance = invocation.lakehouse().maintain
    if len(tables) == 1:
        details = maintenance.describe(tables[0])
        invocation.show([details.as_dict()], lambda _: _render_details(details))
        return
    found = maintenance.health(tables)
    invocation.show([each.as_dict() for each in found], lambda _: _render_health(found))


def _render_health(found: Sequence[TableHealth]) -> RenderableType:
    if not found:
        return output.line("The lake has no tables.")
    rows = [
        [
            each.table, output.number(each.score), f"{each.read_amplification:.1f}×",
            output.number(each.files.files), output.number(each.files.small_files),
            output.size(each.files.bytes), output.number(each.files.delete_files),
            _describe_sort(each.sort), output.number(each.snapshots), output.number(each.manifests),
            ", ".join(f"{pin.ref} ({output.size(pin.added_bytes)})" for pin in each.pins[:3]),
        ]
        for each in found
    ]  # fmt: skip
    columns = [
        "table", "score", "amplification", "files", "small", "size", "delete files",
        "lookup opens", "snapshots", "manifests", "pinned by",
    ]  # fmt: skip
    return output.table(columns, rows)


def _describe_sort(sort: SortQuality | None) -> str:
    return f"{sort.opened:,.1f} files by {', '.join(sort.columns)}" if sort else ""


def _render_details(details: TableDetails) -> RenderableType:
    return output.stack(
        _render_health([details.health]),
        *(output.line(f"! {alert}", style="red") for alert in details.alerts),
        *(output.line(fact) for fact in _list_facts(details)),
        *_render_partitions(details.partitions),
        *(output.line(f"→ {advice}", style="yellow") for advice in details.advice),
    )


def _list_facts(details: TableDetails) -> Iterator[str]:
    if details.commit_age is not None:
        consumed = details.bookmark_age
        since = f", from a source {output.duration(consumed)} ago" if consumed is not None else ""
        yield f"last commit {output.duration(details.commit_age)} ago{since}"
    reads = details.reads
    if reads is not None:
        filtered = sorted(reads.columns.items(), key=lambda item: (-item[1], item[0]))[:WORST]
        by = ", ".join(f"{name} {count:,.1f}" for name, count in filtered)
        filters = f", filtered by {by}" if by else ""
        yield (
            f"read {reads.scans:,.1f} times a day: {reads.files:,.0f} files,"
            f" {output.size(round(reads.bytes))}{filters}"
        )
    updates, costs = details.updates, details.update_costs
    if updates.observed:
        yield (
            f"updated {updates.commits:,.1f} times a day: {updates.rows:,.0f} rows,"
            f" {output.size(round(updates.rewritten_bytes))} replaced,"
            f" {updates.delete_files:,.1f} delete files"
        )
    if updates.observed and costs is not None:
        yield (
            f"updates are {costs.mode}: a day costs {output.size(round(costs.copy_on_write))} with"
            f" copy-on-write, {output.size(round(costs.merge_on_read))} with merge-on-read"
        )
    if details.unreferenced is not None:
        files, size = details.unreferenced
        yield f"{output.plural(files, 'unreferenced file')}, {output.size(size)}"


def _render_partitions(partitions: Sequence[PartitionHealth]) -> Iterator[RenderableType]:
    """Draw a mark for each partition, and list the worst ones."""
    if len(partitions) < 2:
        return
    for title, some in _group_partitions(partitions):
        yield output.line(f"{title:<12}", "".join(MARKS[_grade(each)] for each in some))
    grades = {_grade(each) for each in partitions}
    yield output.line("   ".join(f"{m} {how}" for how, m in MARKS.items() if how in grades),
                      style="dim")  # fmt: skip
    worst = sorted(partitions, key=lambda each: -_cost(each))
    bad = [each for each in worst if _grade(each) != "good"][:WORST]
    rows = [
        [
            each.name, f"{each.read_amplification:.1f}×", output.number(each.files.files),
            output.number(each.files.small_files), output.size(each.files.bytes),
            output.number(each.files.delete_files), _describe_sort(each.sort),
        ]
        for each in bad
    ]  # fmt: skip
    if rows:
        columns = [
            "partition", "amplification", "files", "small", "size", "delete files", "lookup opens",
        ]  # fmt: skip
        yield output.table(columns, rows)


def _cost(partition: PartitionHealth) -> float:
    overlap = partition.sort.overlap if partition.sort else 1.0
    return max(partition.read_amplification, overlap)


def _grade(partition: PartitionHealth) -> str:
    cost = _cost(partition)
    return "bad" if cost >= BAD else "fair" if cost >= FAIR else "good"


def _group_partitions(
    partitions: Sequence[PartitionHealth],
) -> Iterator[tuple[str, Sequence[PartitionHealth]]]:
    """Group daily partitions by month, and others into lines of equal length."""
    days = [each.name.rpartition("=")[2] for each in partitions]
    if all(len(day) == 10 and day[4] == day[7] == "-" for day in days):
        named = zip(days, partitions, strict=True)
        for month, some in groupby(named, key=lambda item: item[0][:7]):
            yield month, [each for _, each in some]
        return
    for first in range(0, len(partitions), WIDE):
        yield partitions[first].name[:12], partitions[first : first + WIDE]

"""The command `maintain`: work on tables."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.config import quantities
from thermocline.errors import BadInput
from thermocline.interrupt import signal_exit_code, stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from thermocline.api.maintenance import Maintenance
    from thermocline.maintain.column_statistics import ColumnStatistics
    from thermocline.maintain.maintenance_plan import MaintenancePlan
    from thermocline.maintain.service import MaintenanceReport
    from thermocline.maintain.service_status import ServiceStatus
    from thermocline.maintain.task import MaintenanceTask

_COUNTED = {
    "delete_files_removed": "delete files applied",
    "snapshots_expired": "snapshots expired",
    "refs_dropped": "refs dropped",
    "files_found": "unreferenced files found",
    "files_removed": "files removed",
}
"""The counts that are shown when they are not 0, and what they are called."""


@click.command(cls=Command)
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--plan", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--watch", is_flag=True, help="Maintain the lake until interrupted.")
@click.option("--history", is_flag=True, help="Show what earlier passes did.")
@click.option("--status", is_flag=True, help="Show what the service is doing.")
@click.option("--pause", is_flag=True, help="Let the service rest.")
@click.option("--resume", is_flag=True, help="Let the service work again.")
@click.option(
    "--statistics",
    is_flag=True,
    help="Count distinct values of the columns of TABLE with Spark, for query planners.",
)
@click.option(
    "--remove-unreferenced",
    is_flag=True,
    help="Show the files of TABLE that nothing references; delete them if confirmed.",
)
@click.option("--older-than", metavar="AGE", help="The least age of files to delete, such as 24h.")
@click.option("--confirm", metavar="TABLE", help="Delete the files: the table's name, once more.")
@pass_invocation
def maintain(
    invocation: Invocation,
    /,
    tables: tuple[str, ...],
    older_than: str | None,
    confirm: str | None,
    **modes: bool,
) -> int:
    """Compact, expire and remove in all tables, or only in TABLE, beside writers and readers.

    Joins small data files and applies deletes: each rewrite is read back and published only if it
    holds the same rows. Joins small manifests, expires snapshots of tables without commits, and
    removes files that were unreferenced for `maintain.remove_after`. Starts no engine.

    `thermo serve` and `thermo stream` do the same in a process beside them, the maintenance
    service (setting maintain.service). --pause lets it rest; a call without options still works.
    """
    mode = _choose_mode(modes, tables)
    maintenance = invocation.lakehouse().maintain
    if older_than is not None or confirm is not None or mode == "remove_unreferenced":
        return _remove_unreferenced(invocation, tables, mode is not None, older_than, confirm)
    match mode:
        case "statistics":
            return _compute_statistics(invocation, tables)
        case "plan":
            invocation.show(maintenance.plan(tables), _render_plan)
        case "history":
            invocation.show(maintenance.history(), _render_history)
        case "pause" | "resume" | "status":
            if mode != "status":
                (maintenance.pause if mode == "pause" else maintenance.resume)()
            shown = {"paused": maintenance.is_paused(), "service": maintenance.status()}
            invocation.show(shown, _render_status)
        case _:
            return _apply(invocation, maintenance, tables, watch=mode == "watch")
    return 0


def _choose_mode(modes: Mapping[str, bool], tables: tuple[str, ...]) -> str | None:
    """Return the mode that was given, if any; refuse two of them, and tables where none go."""
    given = [name for name, is_given in modes.items() if is_given]
    options = [f"--{name.replace('_', '-')}" for name in given]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(options)} cannot be combined.", "Give one of them.")
    if tables and given and given[0] not in ("plan", "statistics", "remove_unreferenced"):
        raise BadInput(f"{options[0]} is for the whole lake.", "Leave out TABLE.")
    return given[0] if given else None


def _apply(
    invocation: Invocation, maintenance: Maintenance, tables: tuple[str, ...], *, watch: bool
) -> int:
    with stop_on_signal() as stop, invocation.progress() as progress:
        if watch:
            for report in maintenance.watch(stop, progress):
                invocation.show(report, _render_report)
            return 0
        report = maintenance.apply(maintenance.plan(tables), progress=progress, stop=stop)
        invocation.show(report, _render_report)
    return signal_exit_code()


def _compute_statistics(invocation: Invocation, tables: tuple[str, ...]) -> int:
    if len(tables) != 1:
        raise BadInput(
            "Statistics are computed for one table.", "Give it: thermo maintain TABLE --statistics"
        )
    found = invocation.lakehouse().maintain.compute_statistics(tables[0])
    invocation.show(found, _render_statistics)
    return 0


def _render_statistics(found: ColumnStatistics) -> RenderableType:
    age = "computed now" if found.is_new else "kept: the table has hardly changed since"
    rows = [[name, output.number(count)] for name, count in sorted(found.distinct.items())]
    return output.stack(
        output.line(f"{found.table}@{output.short_id(found.snapshot)}   {age}"),
        output.table(["column", "distinct values"], rows),
    )


def _remove_unreferenced(
    invocation: Invocation,
    tables: tuple[str, ...],
    remove: bool,
    older_than: str | None,
    confirm: str | None,
) -> int:
    """Show what would be deleted, or delete it if the table's name confirms it."""
    if not remove or len(tables) != 1 or older_than is None:
        raise BadInput(
            "Unreferenced files are removed from one table, by their age.",
            "For instance: thermo maintain TABLE --remove-unreferenced --older-than 24h",
        )
    maintenance, age = invocation.lakehouse().maintain, _parse_age(older_than)
    with invocation.progress() as progress:
        report = maintenance.remove_unreferenced(tables[0], age, confirm=confirm, progress=progress)
    if confirm is not None:
        invocation.show(report, _render_report)
        return 0
    invocation.show(report.plan, _render_plan)
    if report.plan.tasks and invocation.is_interactive():
        typed = click.prompt("Type the table's name to delete these files", default="")
        if typed == tables[0]:
            invocation.show(maintenance.apply(report.plan), _render_report)
    return 0


def _parse_age(text: str) -> timedelta:
    try:
        return timedelta(seconds=quantities.parse_duration(text))
    except (ValueError, OverflowError):
        raise BadInput(
            f"--older-than {text} is not an age.", "Give one such as 24h, 7d or 30m."
        ) from None


def _render_status(shown: dict[str, Any]) -> RenderableType:
    status: ServiceStatus | None = shown["service"]
    paused = "paused" if shown["paused"] else ""
    if status is None:
        return output.line("The maintenance service of this project has not run yet.", paused)
    last = "never" if status.last_success is None else output.ago(status.last_success)
    return output.line(
        f"{status.state}, {output.ago(status.at)}",
        f"last complete pass: {last}",
        f"{output.plural(status.queued_tasks, 'task')} left,"
        f" {output.duration(status.queued_cpu_seconds)} of CPU time",
        paused,
    )


def _render_plan(plan: MaintenancePlan) -> RenderableType:
    if not plan.tasks:
        return output.stack(output.line("Nothing to do."), _render_skipped(plan))
    return output.stack(_render_tasks(plan.tasks), _render_skipped(plan))


def _render_tasks(tasks: Sequence[MaintenanceTask]) -> RenderableType:
    rows = [
        [
            str(task.kind),
            task.table,
            task.partition,
            task.why,
            output.size(task.saved_bytes),
            output.duration(task.cpu_seconds),
        ]
        for task in tasks
    ]
    return output.table(["kind", "table", "partition", "why", "saves", "CPU time"], rows)


def _render_skipped(plan: MaintenancePlan) -> RenderableType | None:
    lines = [output.line(f"{table} is skipped: {why}.") for table, why in plan.skipped.items()]
    if plan.postponed:
        lines.append(output.line(f"{len(plan.postponed):,} more beyond the budget of a pass."))
    return output.stack(*lines) if lines else None


def _render_report(report: MaintenanceReport) -> RenderableType:
    if not report.results:
        return output.stack(output.line("Nothing to do."), _render_skipped(report.plan))
    rows = [
        [
            str(result.task.kind),
            result.task.table,
            result.task.partition,
            result.outcome,
            result.reason or _describe_change(result.as_dict()),
            output.duration(result.seconds),
        ]
        for result in report.results
    ]
    shown = output.table(["kind", "table", "partition", "outcome", "", "took"], rows)
    return output.stack(shown, _render_skipped(report.plan))


def _describe_change(result: dict[str, Any]) -> str:
    """Describe what a task counted. A row of the journal may be older than some of the counts."""
    parts = []
    if result.get("files_after") is not None:
        parts.append(f"{result['files_before']:,} → {result['files_after']:,} files")
        before, after = result["bytes_before"], result["bytes_after"]
        parts.append(f"{output.size(before)} → {output.size(after)}")
    if result.get("manifests_after") is not None:
        before, after = result["manifests_before"], result["manifests_after"]
        parts.append(f"{before:,} → {after:,} manifests")
    for name, text in _COUNTED.items():
        if result.get(name):
            parts.append(f"{result[name]:,} {text}")
    if result.get("bytes_removed"):
        parts.append(output.size(result["bytes_removed"]))
    return ", ".join(parts)


def _render_history(rows: list[dict[str, Any]]) -> RenderableType:
    if not rows:
        return output.line("Maintenance has not run yet.")
    shown = [
        [
            output.ago(row["started_at"]), row["kind"] or "compact", row["table_name"],
            row["partition"], row["outcome"], row["reason"] or _describe_change(row),
        ]
        for row in rows
    ]  # fmt: skip
    return output.table(["when", "kind", "table", "partition", "outcome", ""], shown)

"""Data on its way: take in, plan, run, check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.errors import CheckFailed
from thermocline.interrupt import signal_exit_code, stop_on_signal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api import CheckReport, IngestReport, Plan, RunReport


def _select_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "-s",
        "--select",
        multiple=True,
        metavar="WHICH",
        help="Only these models: name, +name+, tag:x, layer:x (repeatable).",
    )(command)


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--env", metavar="NAME", help="Work on this long-lived branch, not on main."),
        click.option(
            "--workers",
            type=click.Choice(["dag", "model", "partition"]),
            help="Compute on DuckDB: all in one process, a process a model, or many by partition.",
        ),
        click.option("--full-refresh", is_flag=True, help="Compute everything again from nothing."),
        _select_option,
    ):
        command = option(command)
    return command


def accept_loss_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option of the commands that read from sources."""
    return click.option(
        "--accept-loss",
        is_flag=True,
        help="Go on where a source says that data may be missing.",
    )(command)


@click.command(cls=Command)
@click.argument("sources", nargs=-1)
@accept_loss_option
@pass_invocation
def ingest(invocation: Invocation, sources: tuple[str, ...], accept_loss: bool) -> int:
    """Take in what is new at SOURCES, or at every source, and stop. Each record lands once.

    Ctrl-C ends it after the batch in hand, with exit code 130. A batch that takes more than a
    second is cut off, and taken again by the next call.
    """
    lakehouse = invocation.lakehouse()
    with stop_on_signal() as stop, invocation.progress() as progress:
        report = lakehouse.ingest(sources, accept_loss=accept_loss, progress=progress, stop=stop)
    invocation.show(report, render_ingest)
    return signal_exit_code()


def render_ingest(report: IngestReport) -> RenderableType:
    """What an ingestion took in, a line a table, and the files that it refused."""
    took = [t for t in report.targets if t.files or t.rows or t.quarantined]
    refused = [(target.table, file) for target in report.targets for file in target.refused]
    if not took and not refused:
        return output.line("Nothing new at the sources.")
    rows = [
        [
            target.table,
            output.number(target.rows),
            output.number(target.files),
            output.number(target.quarantined),
        ]
        for target in took
    ]
    columns = ["table", "rows", "files", "quarantined"]
    return output.stack(
        output.table(columns, rows, right=columns[1:]) if rows else None,
        output.table(
            ["", "refused", "why"], [[output.styled_text("✗", "red"), *each] for each in refused]
        )
        if refused
        else None,
    )


@click.command(cls=Command)
@_run_options
@pass_invocation
def plan(
    invocation: Invocation,
    select: tuple[str, ...],
    full_refresh: bool,
    env: str | None,
    workers: str | None,
) -> None:
    """Explain what a run would do, step by step, without doing it. Starts no engine."""
    planned = invocation.lakehouse().plan(
        select, full_refresh=full_refresh, env=env, workers=workers
    )
    invocation.show(planned, _render_plan)


def _render_plan(planned: Plan) -> RenderableType:
    if not planned.steps:
        return output.line("Everything is up to date.")
    rows: list[output.Row] = [[step.table, "; ".join(step.why), step.how] for step in planned.steps]
    rows += [[name, output.styled_text("fresh", "dim"), ""] for name in planned.fresh]
    return output.table(["table", "why", "how"], rows)


@click.command(cls=Command)
@_run_options
@click.option("--plan", "only_plan", is_flag=True, help="Explain the steps and run none of them.")
@pass_invocation
def run(
    invocation: Invocation,
    select: tuple[str, ...],
    full_refresh: bool,
    env: str | None,
    workers: str | None,
    only_plan: bool,
) -> None:
    """Bring stale tables up to date on a branch, check them there, publish all of them at once."""
    lakehouse = invocation.lakehouse()
    how: dict[str, Any] = {"full_refresh": full_refresh, "env": env, "workers": workers}
    if only_plan:
        invocation.show(lakehouse.plan(select, **how), _render_plan)
        return
    with invocation.progress() as progress:
        report = lakehouse.run(select, progress=progress, **how)
    invocation.show(report, lambda done: render_run(done, env))


def render_run(report: RunReport, env: str | None = None) -> RenderableType:
    """What a run did: a line a table, then its checks and what it published."""
    if not report.steps:
        return output.line("Everything is up to date; nothing was run.")
    steps = output.table(
        ["table", "how", "changed", "rows now", "took"],
        [
            [
                step.table,
                " ".join(filter(None, (step.write, step.detail, f"on {step.engine}"))),
                output.counts(added=step.added, changed=step.changed, removed=step.removed),
                output.number(step.total),
                output.duration(step.seconds),
            ]
            for step in report.steps
        ],
        right=("rows now", "took"),
    )
    moved = ", ".join(report.replayed)
    return output.stack(
        steps,
        render_checks(report.checks),
        output.line(f"replayed onto a main that moved: {moved}") if moved else None,
        *(output.line(f"! {warning}", style="yellow") for warning in report.warnings),
        _render_published(report, env),
    )


def _render_published(report: RunReport, env: str | None) -> RenderableType:
    count = output.plural(len(report.steps), "table")
    if env is not None:
        return output.line(
            f"built {count} in {env}", f"thermo diff --env {env}", f"thermo publish --env {env}"
        )
    undo = f"(undo: thermo rollback --run {report.run})"
    return output.line(f"published {count} in one commit", undo)


@click.command(cls=Command)
@_select_option
@pass_invocation
def check(invocation: Invocation, select: tuple[str, ...]) -> int:
    """Hold the tables against the rules of their contracts; ends with 4 when one is broken."""
    reports = invocation.lakehouse().check(select)
    invocation.show(reports, render_checks)
    return 0 if all(report.passed for report in reports) else CheckFailed.exit_code


def render_checks(reports: Sequence[CheckReport]) -> RenderableType:
    """How many rules hold, and a line for each that does not."""
    rows: list[output.Row] = []
    for report in reports:
        for outcome in report.outcomes:
            if not outcome.holds:
                serious = outcome in report.failures
                mark = (
                    output.styled_text("✗", "red") if serious else output.styled_text("!", "yellow")
                )
                rows.append([mark, report.table, outcome.rule.title, outcome.message])
    rules = sum(len(report.outcomes) for report in reports)
    summary = output.line(f"{output.plural(rules, 'rule')} · {rules - len(rows):,} hold")
    if not rows:
        return summary
    return output.stack(output.table(["", "table", "rule", "found"], rows), summary)

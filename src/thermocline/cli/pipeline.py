"""The commands of the pipeline: ingest, plan, run, check."""

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
        click.option("--env", metavar="NAME", help="Work on this environment, not on main."),
        click.option(
            "--workers",
            type=click.Choice(["dag", "model", "partition"]),
            help="DuckDB processes: one for all models, one per model, or several per model.",
        ),
        click.option("--full-refresh", is_flag=True, help="Recompute all rows."),
        _select_option,
    ):
        command = option(command)
    return command


def accept_loss_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --accept-loss to a command that reads from sources."""
    return click.option(
        "--accept-loss",
        is_flag=True,
        help="Continue when a source reports that data may be missing.",
    )(command)


@click.command(cls=Command)
@click.argument("sources", nargs=-1)
@accept_loss_option
@pass_invocation
def ingest(invocation: Invocation, sources: tuple[str, ...], accept_loss: bool) -> int:
    """Ingest new data from SOURCES, or from every source, and stop. Each record lands once.

    Ctrl-C stops it after the current batch, with exit code 130. A batch that takes longer than a
    second is aborted; the next call ingests it again.
    """
    lakehouse = invocation.lakehouse()
    with stop_on_signal() as stop, invocation.progress() as progress:
        report = lakehouse.ingest(sources, accept_loss=accept_loss, progress=progress, stop=stop)
    invocation.show(report, render_ingest)
    return signal_exit_code()


def render_ingest(report: IngestReport) -> RenderableType:
    """Render what was ingested, one line per table, and the refused files."""
    took = [t for t in report.targets if t.files or t.rows or t.quarantined]
    refused = [(target.table, file) for target in report.targets for file in target.refused]
    if not took and not refused:
        return output.line("No new data at the sources.")
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
    """Explain each step of a run without executing it. Starts no engine."""
    planned = invocation.lakehouse().plan(
        select, full_refresh=full_refresh, env=env, workers=workers
    )
    invocation.show(planned, _render_plan)


def _render_plan(planned: Plan) -> RenderableType:
    if not planned.steps:
        return output.line("Everything is up to date.")
    rows: list[output.Row] = [
        [step.table, "; ".join(step.why), step.summary] for step in planned.steps
    ]
    rows += [[name, output.styled_text("fresh", "dim"), ""] for name in planned.fresh]
    return output.table(["table", "why", "how"], rows)


@click.command(cls=Command)
@_run_options
@click.option("--plan", "only_plan", is_flag=True, help="Explain the steps without executing them.")
@pass_invocation
def run(
    invocation: Invocation,
    select: tuple[str, ...],
    full_refresh: bool,
    env: str | None,
    workers: str | None,
    only_plan: bool,
) -> None:
    """Update stale tables on a branch, check them there, and publish all of them in one commit."""
    lakehouse = invocation.lakehouse()
    how: dict[str, Any] = {"full_refresh": full_refresh, "env": env, "workers": workers}
    if only_plan:
        invocation.show(lakehouse.plan(select, **how), _render_plan)
        return
    with invocation.progress() as progress:
        report = lakehouse.run(select, progress=progress, **how)
    invocation.show(report, lambda done: render_run(done, env))


def render_run(report: RunReport, env: str | None = None) -> RenderableType:
    """Render a run: one line per table, its checks, and what it published."""
    if not report.steps:
        return output.line("Everything is up to date; nothing was computed.")
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
        output.line(f"recomputed because main had changed: {moved}") if moved else None,
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
    """Check tables against the rules of their contracts. The exit code is 4 if a rule fails."""
    reports = invocation.lakehouse().check(select)
    invocation.show(reports, render_checks)
    return 0 if all(report.passed for report in reports) else CheckFailed.exit_code


def render_checks(reports: Sequence[CheckReport]) -> RenderableType:
    """Render how many rules passed, and one line for each that failed."""
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
    summary = output.line(f"{output.plural(rules, 'rule')} · {rules - len(rows):,} passed")
    if not rows:
        return summary
    return output.stack(output.table(["", "table", "rule", "found"], rows), summary)

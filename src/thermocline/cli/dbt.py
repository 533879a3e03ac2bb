"""The `dbt` command: run dbt projects on the lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.dbt import DbtReport

_VERBS = ("build", "run", "seed", "snapshot", "test")


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("verb", type=click.Choice(_VERBS))
@click.option("--project-dir", metavar="DIR", default=".", show_default=True,
              type=click.Path(path_type=Path), help="Folder of the dbt project.")  # fmt: skip
@click.option("--schema", metavar="NAME",
              help="Layer of its tables; by default the dbt project's name.")  # fmt: skip
@click.option("--env", metavar="NAME", help="Work on this environment, not on main.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DBT ARGUMENTS]...")
@pass_invocation
def dbt(
    invocation: Invocation,
    verb: str,
    project_dir: Path,
    schema: str | None,
    env: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Run a dbt project on the lake, unchanged, and publish all of its tables at once.

    Sources are the lake's tables: a source's schema is a layer. No profiles.yml is needed. When a
    model or a test fails, nothing is published.
    """
    from thermocline.dbt import DbtRequest, run

    project = project_dir.expanduser().absolute()
    request = DbtRequest(verb, project, arguments, schema, env, quiet=invocation.json)
    lakehouse = invocation.lakehouse()
    with invocation.progress() as progress:
        report = run(lakehouse, request, progress=progress)
    invocation.show(report, lambda done: render_report(done, env))


def render_report(report: DbtReport, env: str | None = None) -> RenderableType:
    """Render what a dbt run changed in the lake."""
    rows: list[output.Row] = [
        [
            each.table,
            each.materialized,
            output.counts(added=each.added, removed=each.removed) if each.changed else "unchanged",
            ", ".join(each.reads),
        ]
        for each in report.tables
    ]
    tests = [test.status for test in report.tests]
    passed = f"{output.plural(len(tests), 'test')} · {tests.count('pass'):,} passed"
    return output.stack(
        output.table(["table", "as", "changed", "built from"], rows) if rows else None,
        output.line(passed) if tests else None,
        _render_published(report, env) if rows else None,
    )


def _render_published(report: DbtReport, env: str | None) -> RenderableType:
    count = len(report.published.tables) if report.published else 0
    if not count:
        return output.line("every table already has these rows; nothing was published")
    if env is not None:
        return output.line(f"built {output.plural(count, 'table')} in {env}")
    undo = f"(undo: thermo rollback --run {report.run})"
    return output.line(f"published {output.plural(count, 'table')} in one commit", undo)

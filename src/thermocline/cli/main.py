"""The command line: find the command, run it, and report a failure in two lines.

Nothing heavy is imported here. COMMANDS lists all commands; the module of a command is imported
when the command runs, so that `thermo --help` imports only Python and click.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any

import click

from thermocline.cli.invocation import GLOBAL_OPTIONS, Invocation

# command → (its module in thermocline.cli, its help line)
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "init": ("project", "Create a new project in a folder."),
        "demo": ("demo", "Build the example lakehouse and show its tables."),
        "doctor": ("project", "Check that everything the project needs is in place."),
        "config": ("project", "Show every effective setting and its origin."),
        "relocate": ("relocate", "Repair a project that was copied or moved."),
        "torture": ("torture", "Kill the pipeline repeatedly and verify that no event is lost."),
    },
    "Move data": {
        "ingest": ("pipeline", "Ingest new data from the sources."),
        "stream": ("stream", "Ingest continuously from the sources."),
        "plan": ("pipeline", "Explain what a run would do, without doing it."),
        "run": ("pipeline", "Update stale tables, check them and publish them."),
        "backfill": ("workers", "Recompute partitions of a model in parallel."),
        "work": ("workers", "Compute work units of a backfill on this machine."),
        "check": ("pipeline", "Check tables against the rules of their contracts."),
        "dbt": ("dbt", "Run a dbt project on the lake, unchanged."),
        "quarantine": ("quarantine", "List, export and replay quarantined rows."),
    },
    "Explore": {
        "tables": ("tables", "List the tables of the lake."),
        "show": ("tables", "Describe one table."),
        "partitions": ("workers", "Show which partitions of a model are fresh, stale or failed."),
        "query": ("query", "Run a SQL query on current or earlier data."),
    },
    "Serve": {
        "serve": ("serve", "Answer queries over HTTP, hot tables from memory."),
        "token": ("token", "Create, list and revoke access tokens."),
    },
    "Versions": {
        "history": ("versions", "List the snapshots of a table."),
        "diff": ("diff", "Compare two versions of a table, or an environment with main."),
        "tag": ("versions", "Tag a snapshot so that it is kept, or list the tags."),
        "branch": ("versions", "List, create or drop branches of a table."),
        "publish": ("versions", "Publish an environment to main in one commit."),
        "rollback": ("versions", "Roll back a table, or all tables that a run published."),
        "clean": ("clean", "Drop the branches that failed and killed runs left."),
        "health": ("health", "Show how well tables can be read, and what holds their history."),
        "maintain": ("maintain", "Join small files and apply deletes, verified, beside writers."),
    },
}


class LazyGroup(click.Group):
    """A group that knows its commands by name, and imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in COMMANDS.values():
            if cmd_name in section:
                module = importlib.import_module(f"thermocline.cli.{section[cmd_name][0]}")
                command: click.Command = getattr(module, cmd_name)
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, help_line) for name, (_, help_line) in section.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"thermocline {version('thermocline')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    params=[*GLOBAL_OPTIONS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def thermo(ctx: click.Context) -> None:
    """A lakehouse in Python: Iceberg tables, pipelines on Spark and DuckDB."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one `thermo` command and return its exit code. Never raises, never prints a secret."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show becomes "?", instead of an error.
            stream.reconfigure(errors="replace")
    invocation = Invocation()
    try:
        result: Any = thermo.main(argv, prog_name="thermo", standalone_mode=False, obj=invocation)
        sys.stdout.flush()
    except BrokenPipeError:
        return _ignore_closed_pipe()
    except (click.Abort, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr)
        return 130
    except SystemExit:
        # click exits this way only if it met a broken pipe first.
        return 0
    except Exception as error:  # noqa: BLE001  the outermost handler
        from thermocline.cli.failure import report

        # The error may precede the parsing of options, so the arguments count as well.
        as_json = invocation.json or "--json" in argv
        return report(error, as_json=as_json, debug=invocation.debug or "--debug" in argv)
    return result if isinstance(result, int) else 0


def _ignore_closed_pipe() -> int:
    """Return 0 for `thermo tables | head`, and discard what would still go to that pipe."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    from thermocline.__main__ import main

    sys.exit(main())

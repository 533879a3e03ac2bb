"""The entry point: finds the command, runs it, and turns what went wrong into two lines.

Nothing heavy is imported here. The list of commands is a plain table, and a command's module is
loaded when it is called, so that `thermo --help` costs no more than Python and click.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any

import click

from thermocline.cli.invocation import GLOBAL_OPTIONS, Invocation

# command → (the module of thermocline.cli that holds it, what it does)
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "init": ("project", "Make a new project in a folder."),
        "demo": ("demo", "Build the example lakehouse and show what it holds."),
        "doctor": ("project", "Look whether everything the project needs is in place."),
        "config": ("project", "Show every setting in force and where it came from."),
        "relocate": ("relocate", "Make a project whole that was copied or moved."),
        "torture": ("torture", "Kill the pipeline again and again, and count the events."),
    },
    "Move data": {
        "ingest": ("pipeline", "Take in what is new at the sources."),
        "stream": ("stream", "Take in what comes at the sources, on and on."),
        "plan": ("pipeline", "Explain what a run would do, without doing it."),
        "run": ("pipeline", "Bring stale tables up to date, check them, publish them."),
        "backfill": ("workers", "Compute partitions of a model anew, many beside each other."),
        "work": ("workers", "Do pieces of a backfill that were handed out."),
        "check": ("pipeline", "Hold the tables against their contracts."),
        "dbt": ("dbt", "Run a dbt project on the lake, unchanged."),
        "quarantine": ("quarantine", "Look at rows that were set aside, and replay mended ones."),
    },
    "Look": {
        "tables": ("tables", "List the tables of the lake."),
        "show": ("tables", "Describe one table."),
        "partitions": ("workers", "Show which partitions of a model are fresh, stale or failed."),
        "query": ("query", "Run a SQL query, now or as of an earlier moment."),
    },
    "Serve": {
        "serve": ("serve", "Answer queries over HTTP, hot ones from memory."),
        "token": ("token", "Make, list and revoke the tokens of callers."),
    },
    "Versions": {
        "history": ("versions", "List the snapshots of a table."),
        "diff": ("diff", "Compare two versions of a table, or an environment with main."),
        "tag": ("versions", "Give a snapshot a name that keeps it, or list the names."),
        "branch": ("versions", "List, make or drop branches of tables."),
        "publish": ("versions", "Publish an environment to main in one commit."),
        "rollback": ("versions", "Take a table, or all tables of a run, back to what they were."),
        "clean": ("clean", "Drop what failed and killed runs left in the tables."),
    },
}


class LazyGroup(click.Group):
    """Knows its commands by name and help line, and imports one only to run it."""

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
    help="Show the version and leave.",
)
@click.pass_context
def thermo(ctx: click.Context) -> None:
    """A lakehouse in Python: Iceberg tables, pipelines on Spark, DuckDB beside it."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one `thermo` command and return its exit code. Never raises, never shows a secret."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a sign shows "?" for it; that is no reason to fail.
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
        # click leaves this way, and only this way, when it met a broken pipe before we did.
        return 0
    except Exception as error:  # noqa: BLE001  the outermost edge: nothing passes unexplained
        from thermocline.cli.failure import report

        # Options may not have been parsed when this happened, so the words decide as well.
        as_json = invocation.json or "--json" in argv
        return report(error, as_json=as_json, debug=invocation.debug or "--debug" in argv)
    return result if isinstance(result, int) else 0


def _ignore_closed_pipe() -> int:
    """`thermo tables | head` is no failure; only nothing more may be written to that pipe."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    from thermocline.__main__ import main

    sys.exit(main())

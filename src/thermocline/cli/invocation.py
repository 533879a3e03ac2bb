"""One call of `thermo`: the global options, and what commands get from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from thermocline.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api import Lakehouse
    from thermocline.config import Settings
    from thermocline.telemetry import Progress

T = TypeVar("T")


@dataclass
class Invocation:
    """Values of the global options. The project is opened only when a command needs it."""

    project: Path | None = None
    profile: str | None = None
    json: bool = False
    debug: bool = False

    def lakehouse(self) -> Lakehouse:
        """Open the project's lakehouse; redact its secrets from all later output."""
        import thermocline

        self.start_log()
        opened = thermocline.open(self.project or Path.cwd(), profile=self.profile)
        click.get_current_context().call_on_close(opened.close)
        self._prepare_output(opened.settings)
        return opened

    def settings(self) -> Settings:
        """Return the project's settings without opening the lakehouse."""
        from thermocline.config import find_project, load_settings

        found = load_settings(find_project(self.project or Path.cwd()), self.profile)
        self._prepare_output(found)
        return found

    def show(self, value: T, view: Callable[[T], RenderableType | None]) -> None:
        """Print a result: as JSON with --json, otherwise as text through its view."""
        from thermocline.cli import output

        if self.json:
            output.print_json(value)
        else:
            output.print_text(view(value))

    def is_interactive(self) -> bool:
        """Whether a person can be asked: not with --json, and not without a terminal."""
        return not self.json and sys.stdin.isatty() and sys.stdout.isatty()

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show progress on stderr; stay silent with --json."""
        if self.json:
            from thermocline.telemetry import SILENT

            yield SILENT
            return
        from thermocline.cli.progress import show_progress

        with show_progress() as progress:
            yield progress

    def _prepare_output(self, settings: Settings) -> None:
        from thermocline.telemetry import hide

        hide(secret.reveal() for secret in settings.secrets())
        for warning in settings.warnings:
            click.echo(f"warning: {warning}", err=True)

    def start_log(self) -> None:
        """Start logging to the target that THERMOCLINE_LOG names, if it is set."""
        import os

        target = os.environ.get("THERMOCLINE_LOG")
        if target:
            from thermocline.telemetry import configure_log

            level = os.environ.get("THERMOCLINE_LOG_LEVEL", "INFO")
            try:
                configure_log(None if target == "stderr" else Path(target), level)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"The log cannot be written: {error}",
                    "Set THERMOCLINE_LOG to a file or `stderr`, THERMOCLINE_LOG_LEVEL to INFO.",
                ) from error


def _store_option(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    # An option may come before or after the command; the position left out must not reset it.
    if ctx.get_parameter_source(option.name or "") is not click.core.ParameterSource.DEFAULT:
        setattr(ctx.ensure_object(Invocation), option.name or "", value)


GLOBAL_OPTIONS: tuple[click.Option, ...] = (
    click.Option(
        ["-C", "--project"],
        metavar="DIR",
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=_store_option,
        help="Folder of the project; by default the nearest one at or above the current folder.",
    ),
    click.Option(
        ["--profile"],
        metavar="NAME",
        expose_value=False,
        callback=_store_option,
        help="Apply the section [profile.NAME] of thermocline.toml.",
    ),
    click.Option(
        ["--json"],
        is_flag=True,
        expose_value=False,
        callback=_store_option,
        help="Print results and errors as JSON.",
    ),
    click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=_store_option,
        help="Show the stack trace of an error.",
    ),
)


class _CommandWithGlobalOptions(click.Command):
    """A command that also accepts the global options, and lists them last in its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *GLOBAL_OPTIONS]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        help_option = self.get_help_option(ctx)
        own = [
            option
            for option in self.params
            if isinstance(option, click.Option) and option not in GLOBAL_OPTIONS
        ]
        shared = [*GLOBAL_OPTIONS, *([help_option] if help_option else [])]
        for title, options in (("Options", own), ("Everywhere", shared)):
            records = [option.get_help_record(ctx) for option in options]
            rows = [record for record in records if record is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class Command(_CommandWithGlobalOptions):
    """A command of `thermo`."""


class Group(_CommandWithGlobalOptions, click.Group):
    """A command of `thermo` that has subcommands."""


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)

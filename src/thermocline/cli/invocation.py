"""One call of `thermo`: the options every command takes, and what commands get from them."""

from __future__ import annotations

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
    """What the global options ask for. Opens the project only when a command wants it."""

    project: Path | None = None
    profile: str | None = None
    json: bool = False
    debug: bool = False

    def lakehouse(self) -> Lakehouse:
        """The project's lakehouse, with its secrets hidden from everything printed later."""
        import thermocline

        self.start_log()
        opened = thermocline.open(self.project or Path.cwd(), profile=self.profile)
        click.get_current_context().call_on_close(opened.close)
        self._prepare_output(opened.settings)
        return opened

    def settings(self) -> Settings:
        """The project's settings alone."""
        from thermocline.config import find_project, load_settings

        found = load_settings(find_project(self.project or Path.cwd()), self.profile)
        self._prepare_output(found)
        return found

    def show(self, value: T, view: Callable[[T], RenderableType | None]) -> None:
        """Print a result: as JSON for a program, or through its view for a person."""
        from thermocline.cli import output

        if self.json:
            output.print_json(value)
        else:
            output.print_text(view(value))

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Progress for a person on stderr; silent when a program asked for JSON."""
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
        """Log to where THERMOCLINE_LOG says, if it says."""
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
    # Each option stands before and after the command; the one that was not written is silent.
    if ctx.get_parameter_source(option.name or "") is not click.core.ParameterSource.DEFAULT:
        setattr(ctx.ensure_object(Invocation), option.name or "", value)


GLOBAL_OPTIONS: tuple[click.Option, ...] = (
    click.Option(
        ["-C", "--project"],
        metavar="DIR",
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=_store_option,
        help="The project's folder; else the nearest above this one.",
    ),
    click.Option(
        ["--profile"],
        metavar="NAME",
        expose_value=False,
        callback=_store_option,
        help="Which [profile.NAME] of thermocline.toml to lay over it.",
    ),
    click.Option(
        ["--json"],
        is_flag=True,
        expose_value=False,
        callback=_store_option,
        help="Answer in JSON, errors as well.",
    ),
    click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=_store_option,
        help="Show where an error came from.",
    ),
)


class _CommandWithGlobalOptions(click.Command):
    """Takes the global options as well, and lists them last in its help."""

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
    """A command of `thermo` that has commands of its own."""


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)

"""Generates the parts of docs/{cli,configuration,python}.md that the code already knows.

`python -m thermocline.cli.docs docs/cli.md docs/configuration.md docs/python.md` rewrites what is
between `<!-- generated: NAME -->` and `<!-- end -->`; a test fails when a file is not up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from thermocline import errors
from thermocline.cli.api_reference import render_api
from thermocline.cli.failure import Bug, UsageError
from thermocline.cli.main import COMMANDS, thermo
from thermocline.config import SETTINGS, Secret

_BLOCK = re.compile(r"(<!-- generated: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_generated(text: str) -> str:
    """Return the document with every generated part brought up to date."""
    makers = {
        "commands": commands,
        "codes": render_exit_codes,
        "settings": settings,
        "api": render_api,
    }
    return _BLOCK.sub(lambda part: f"{part[1]}{makers[part[2]]()}\n{part[3]}", text)


def commands() -> str:
    """Return the help of `thermo` and of every command, as the terminal shows it."""
    parts = [f"## thermo\n\n```text\n{_render_help(['thermo'], thermo)}\n```"]
    for section in COMMANDS.values():
        for path, command in iterate_commands(section):
            parts.append(f"## {' '.join(path)}\n\n```text\n{_render_help(path, command)}\n```")
    return "\n\n".join(parts)


def iterate_commands(names: Iterable[str]) -> Iterator[tuple[list[str], click.Command]]:
    """Yield every command and subcommand with its full name."""
    context = click.Context(thermo)
    for name in names:
        command = thermo.get_command(context, name)
        assert command is not None, name
        yield ["thermo", name], command
        if isinstance(command, click.Group):
            for inner, subcommand in command.commands.items():
                yield ["thermo", name, inner], subcommand


def _render_help(path: list[str], command: click.Command) -> str:
    context: click.Context | None = None
    for name in path[:-1]:
        context = click.Context(thermo, info_name=name, parent=context)
    settings = {} if path == ["thermo"] else thermo.context_settings
    made = command.make_context(
        path[-1], [], parent=context, resilient_parsing=True, terminal_width=88, **settings
    )
    # The global options are the same for all commands; only `thermo` itself lists them.
    return command.get_help(made).partition("\n\nEverywhere:")[0].strip()


def render_exit_codes() -> str:
    """Return a table of all exit codes."""
    known: dict[int, list[str]] = {}
    for kind in [*vars(errors).values(), UsageError, Bug]:
        if isinstance(kind, type) and issubclass(kind, errors.ThermoclineError):
            known.setdefault(kind.exit_code, []).append(f"`{kind.code}`")
    meanings = {
        0: "Success.",
        1: "Something is wrong (`thermo doctor`: a finding failed).",
        2: "Invalid input: an option, a setting, a name or a query is wrong, or does not exist.",
        3: "A contract is invalid or requires a change that is not allowed. Nothing was written.",
        4: "A quality rule failed. Nothing was published.",
        5: "A retry may succeed: the catalog is unavailable, or another writer committed first.",
        6: "An engine cannot be started on this machine.",
        70: "A bug in Thermocline.",
        129: "Ended by SIGHUP: the terminal was closed.",
        130: "Interrupted by Ctrl-C. Nothing is lost; the next call resumes.",
        143: "Ended by SIGTERM, as by Ctrl-C.",
    }
    assert set(known) <= set(meanings), "an exit code without a meaning"
    rows = [
        f"| {code} | {', '.join(dict.fromkeys(known.get(code, [])))} | {meaning} |"
        for code, meaning in meanings.items()
    ]
    return "\n".join(["| exit code | `error.code` | meaning |", "|---|---|---|", *rows])


def settings() -> str:
    """Return a table of all settings."""
    kinds = {
        str: "text",
        int: "number",
        float: "number",
        bool: "true/false",
        tuple: "list",
        dict: "table",
        Secret: "secret",
    }
    rows = []
    for setting in SETTINGS:
        default = setting.default
        shown = "" if default is None or default in ((), {}) else f"`{default}`"
        shown = shown.lower() if setting.kind is bool else shown
        rows.append(
            f"| `{setting.key}` | {kinds[setting.kind]} | {shown} | {setting.help} "
            f"| `{setting.variable}` |"
        )
    head = ["| setting | type | default | meaning | variable |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(
            fill_generated(Path(name).read_text(encoding="utf-8")), encoding="utf-8"
        )

"""The commands of a project: init, doctor, config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api import Finding


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option("--example", default="shop", show_default=True, help="Example to copy.")
@pass_invocation
def init(invocation: Invocation, folder: Path, example: str) -> None:
    """Create a new project in FOLDER (default: the current folder)."""
    import thermocline

    made = thermocline.init(folder, example=example)
    shown = {"project": str(made), "example": example}
    invocation.show(shown, lambda _: _render_next_steps(folder))


def _render_next_steps(folder: Path) -> RenderableType:
    enter = [] if folder == Path() else [f"cd {folder}"]
    generate = ["python generate.py"] if (folder / "generate.py").is_file() else []
    steps = [*enter, *generate, "thermo ingest", "thermo run", "thermo tables"]
    return output.stack(
        output.line(f"Created a project in {folder.absolute()}"),
        output.line("Next:  " + " && ".join(steps), style="dim"),
    )


@click.command(cls=Command)
@click.option("--fix", is_flag=True, help="Repair commit times that are out of order.")
@pass_invocation
def doctor(invocation: Invocation, fix: bool) -> int:
    """Check that everything the project needs is in place. The exit code is 1 if it is not."""
    lakehouse = invocation.lakehouse()
    with invocation.progress() as progress:
        findings = lakehouse.doctor(fix=fix, progress=progress)
    invocation.show(findings, _render_findings)
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def _render_findings(findings: Sequence[Finding]) -> RenderableType:
    marks = {"ok": "✓", "warn": "!", "fail": "✗"}
    rows: list[output.Row] = []
    for finding in findings:
        mark = output.styled_text(marks[finding.status], output.STATUS_STYLE[finding.status])
        rows.append([mark, finding.what, finding.detail])
        if finding.next_step and finding.status != "ok":
            rows.append(["", "", f"→ {finding.next_step}"])
    return output.table(["", "what", "found"], rows)


@click.command(cls=Command)
@pass_invocation
def config(invocation: Invocation) -> None:
    """Show every effective setting and its origin. Secrets are shown as ***."""
    from thermocline.config import SETTINGS

    settings = invocation.settings()
    shown: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS:
        value = settings.value(setting.key)
        entries = {setting.key: value}
        if setting.kind is dict and value:
            entries = {f"{setting.key}.{name}": entry for name, entry in value.items()}
        for key, entry in entries.items():
            shown[key] = {"value": output.to_json_value(entry), "origin": settings.origins[key]}
    document = {"project": str(settings.project), "profile": settings.profile, "settings": shown}
    invocation.show(document, _render_settings)


def _render_settings(document: dict[str, Any]) -> RenderableType:
    profile = f"profile {document['profile']}" if document["profile"] else "no profile"
    rows: list[output.Row] = []
    for key, entry in document["settings"].items():
        value = entry["value"]
        unset = value is None or value in ([], {})
        shown = "" if unset else value if isinstance(value, str) else json.dumps(value)
        style = "dim" if entry["origin"] == "default" else ""
        rows.append([key, shown, output.styled_text(entry["origin"], style)])
    return output.stack(
        output.line(document["project"], profile), output.table(["setting", "value", "from"], rows)
    )

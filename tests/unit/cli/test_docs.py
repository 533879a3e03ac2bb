"""The documents say what the code does: whatever is generated is up to date, nothing is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import thermocline
from thermocline import api
from thermocline.cli import api_reference, docs
from thermocline.cli.main import COMMANDS
from thermocline.config import SETTINGS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", ["cli.md", "configuration.md", "python.md"])
def test_the_generated_parts_are_up_to_date(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert docs.fill_generated(text) == text, f"run: python -m thermocline.cli.docs docs/{name}"


def test_every_command_and_its_options_are_documented() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    for section in COMMANDS.values():
        for path, command in docs.iterate_commands(section):
            title = f"\n## {' '.join(path)}\n"
            assert title in text, f"docs/cli.md lacks {title.strip()}"
            part = text.partition(title)[2].partition("\n## ")[0]
            for parameter in command.params:
                if parameter.param_type_name == "option" and parameter.expose_value:
                    assert parameter.opts[-1] in part, f"{title.strip()} lacks {parameter.opts[-1]}"
                    assert parameter.help, f"{parameter.opts[-1]} has no help"  # type: ignore[attr-defined]


def test_every_setting_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    for setting in SETTINGS:
        assert f"| `{setting.key}` |" in text
        assert f"| `{setting.variable}` |" in text
        assert setting.help.endswith((".", "…"))


def test_every_public_object_is_in_the_reference() -> None:
    documented = {name for names in api_reference.SECTIONS.values() for name in names}
    public = {*thermocline.__all__, *api.__all__} - {"__version__"}
    assert public <= documented, f"SECTIONS in cli/api_reference.py lacks {public - documented}"

"""What messages advise exists: every command with its options, and every setting by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import thermocline
from thermocline.cli.main import COMMANDS, thermo
from thermocline.config import SETTINGS

SOURCE = Path(thermocline.__file__).parent
_COMMAND = re.compile(r"\bthermo ([a-z-]+)((?: [^`.,;:()\"]+)?)")
_SECTIONS = {name.split(".")[0] for name in (setting.key for setting in SETTINGS)}
_SETTING = re.compile(r"\b([Ss]et|[Rr]aise|[Ll]ower|more) ([a-z]+(?:\.[a-z_]+)+)\b")


def texts() -> Iterator[tuple[str, str]]:
    """Every text of the source that a person may read, with where it is; docstrings are not."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        shown = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if isinstance(part, ast.Constant)
        }
        documents = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            where = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield where, _text(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in shown and id(node) not in documents:
                    yield where, node.value


def _text(node: ast.JoinedStr) -> str:
    parts = (p.value if isinstance(p, ast.Constant) else "X" for p in node.values)
    return "".join(map(str, parts))


def options(words: list[str]) -> set[str] | None:
    """The options of a command, or of the command inside it that the next word names."""
    context = click.Context(thermo)
    command = thermo.get_command(context, words[0])
    if command is None:
        return None
    if isinstance(command, click.Group) and len(words) > 1 and words[1] in command.commands:
        command = command.commands[words[1]]
    found = {name for param in command.params for name in param.opts}
    return found | {name for param in thermo.params for name in param.opts}


def test_commands_in_messages_exist_with_their_options() -> None:
    wrong, seen = [], set()
    for where, text in texts():
        for name, rest in _COMMAND.findall(text):
            if name not in {command for section in COMMANDS.values() for command in section}:
                if name not in {"does", "has", "is", "runs", "itself"}:
                    wrong.append(f"{where}: thermo {name}")
                continue
            seen.add(name)
            words = [name, *rest.split()]
            there = options(words) or set()
            if name == "dbt":
                continue  # what follows is for dbt
            wrong += [
                f"{where}: thermo {' '.join(words)}"
                for word in words[1:]
                if word.startswith("--") and word.partition("=")[0] not in there
            ]
            if name in {"tag", "branch"} and words[1:2] in (["drop"], ["list"], ["create"]):
                wrong.append(f"{where}: thermo {' '.join(words)}")
    assert not wrong
    assert {"run", "ingest", "history", "quarantine", "clean"} <= seen


def test_settings_in_messages_exist() -> None:
    known = {setting.key for setting in SETTINGS}
    found = {
        (where, name)
        for where, text in texts()
        for _, name in _SETTING.findall(text)
        if name.split(".")[0] in _SECTIONS
    }
    assert {name for _, name in found} >= {"transform.engine", "engine.spark.memory"}
    assert not [each for each in found if each[1] not in known]


@pytest.mark.parametrize("text", ["Set transform.engin = auto.", "Run it with more engine.memory"])
def test_a_setting_that_is_not_there_would_be_found(text: str) -> None:
    [(_, name)] = _SETTING.findall(text)
    assert name not in {setting.key for setting in SETTINGS}

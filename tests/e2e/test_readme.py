"""The README's tour, run command by command as a new user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def tour() -> list[tuple[str, list[str]]]:
    """Each command of the tour with the lines that the README shows for it."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return found


def shown(expected: str, output: str) -> bool:
    """Whether the output has the line; `…` stands for anything, and space for any space."""
    pattern = r"\s+".join(
        ".*".join(re.escape(part) for part in word.split("…")) for word in expected.split()
    )
    return re.search(pattern, output) is not None


@pytest.mark.timeout(1800)  # a JVM for most of its commands, on a machine that may be busy
def test_every_command_of_the_tour_does_what_the_readme_shows(tmp_path: Path) -> None:
    commands = tour()
    assert len(commands) > 15
    environment = {k: v for k, v in os.environ.items() if not k.startswith("THERMOCLINE_L")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160"}
    folder = tmp_path
    for command, expected in commands:
        if command.startswith("cd "):
            folder = folder / command[3:]
            continue
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        for line in expected:
            assert shown(line, done.stdout), f"{command}\nlacks: {line}\n{done.stdout}"


def test_the_readme_names_the_two_commands_and_existing_pages() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    for page in re.findall(r"\]\(([^)]+\.md)\)", text):
        assert (ROOT / page).exists(), page

"""The README's tour, run command by command as a new user would, with the wheel alone.

The wheel is built and installed into an environment of its own, outside of the source tree, whose
only other packages are the pinned dependencies.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
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


def activated(command: str, folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment of the shell after a command that changes it."""
    done = subprocess.run(
        ["sh", "-c", f"{command} && env -0"], cwd=folder, env=environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    found = (line.partition("=") for line in done.stdout.split("\0") if line)
    return {name: value for name, _, value in found}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel, and the dependencies from the one of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*build, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / ".venv"
    venv.create(environment, symlinks=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    # A path file inside this folder is not followed from here, so ours is not among them.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, str(environment / "bin/python"), *install], check=True)
    return environment


def outside(environment: Path) -> dict[str, str]:
    """The variables of a shell that knows nothing of the source tree or of its environment."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("THERMOCLINE_L")}
    variables.pop("PYTHONPATH", None)
    ours = str(Path(sys.executable).parent)
    path = [each for each in variables["PATH"].split(os.pathsep) if each != ours]
    return variables | {"PATH": os.pathsep.join(path), "COLUMNS": "160"}


def test_the_wheel_brings_the_package_its_types_and_the_shop(installed: Path) -> None:
    code = (
        "import thermocline, pathlib; here = pathlib.Path(thermocline.__file__).parent;"
        "print(here); print(*(path for path in ("
        "'py.typed', 'engine/log4j2.properties', 'scaffold/shop/thermocline.toml')"
        " if (here / path).is_file()))"
    )
    done = subprocess.run(
        [installed / "bin/python", "-c", code], cwd=installed, env=outside(installed),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    place, files = done.stdout.splitlines()
    assert Path(place).is_relative_to(installed)
    assert files.split() == [
        "py.typed", "engine/log4j2.properties", "scaffold/shop/thermocline.toml",
    ]  # fmt: skip


@pytest.mark.timeout(1800)  # a JVM for most of its commands, on a machine that may be busy
def test_every_command_of_the_tour_does_what_the_readme_shows(
    installed: Path, tmp_path: Path
) -> None:
    commands = tour()
    assert len(commands) > 15
    environment = outside(installed)
    (tmp_path / ".venv").symlink_to(installed)
    folder = tmp_path
    for command, expected in commands:
        if command.startswith("cd "):
            folder = folder / command[3:]
            continue
        if command.startswith(". "):
            environment = activated(command, folder, environment)
            continue
        if command == "make demo":  # what it sets up is there already
            command = f"{installed}/bin/thermo demo demo"
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"
        for line in expected:
            assert shown(line, done.stdout), f"{command}\nlacks: {line}\n{done.stdout}"


def test_the_readme_names_the_two_commands_and_existing_pages() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    for page in re.findall(r"\]\(([^)]+\.md)\)", text):
        assert (ROOT / page).exists(), page

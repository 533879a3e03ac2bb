"""What a first user is told to type after the demo works in their shell."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from thermocline.api import init
from thermocline.cli.demo import _first_commands
from thermocline.errors import BadInput


def test_the_commands_to_begin_with_find_thermo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my demo").mkdir()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    typed = [command for _, command in _first_commands(Path("my demo"))]
    assert typed[0] == ". .venv/bin/activate"
    script = " && ".join([*typed, "thermo --version", "pwd"])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(tmp_path / "my demo")


def test_who_has_thermo_already_only_enters_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert _first_commands(Path("demo")) == [("Next:", "cd demo")]


def test_a_project_that_was_half_made_is_completed(tmp_path: Path) -> None:
    """Interrupted while its files were copied: the project's own file comes last."""
    whole = init(tmp_path / "whole")
    half = init(tmp_path / "half")
    for gone in ("thermocline.toml", "models/silver/customers.sql"):
        (half / gone).unlink()
    cut = half / "generate.py"
    cut.write_bytes(cut.read_bytes()[:100])
    init(half)
    assert _files(half) == _files(whole)
    (half / "thermocline.toml").unlink()
    (half / "models" / "silver" / "customers.sql").write_text("select 'mine'")
    with pytest.raises(BadInput, match="already has models"):
        init(half)


def test_a_demo_interrupted_while_it_generates_makes_its_files_again(tmp_path: Path) -> None:
    """Some landing files are no landing folder: the next demo would take them for all."""
    command = [sys.executable, "-m", "thermocline", "demo", str(tmp_path / "demo")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    private = tmp_path / "demo" / ".thermocline"
    while process.poll() is None and not any(private.glob("generate-*/landing/*/*")):
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert not (tmp_path / "demo" / "landing").exists()
    assert any(private.glob("generate-*/landing/*/*"))


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }

"""The project's private folder is closed to others, whoever made it and how."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from thermocline import config
from thermocline.config import private_files
from thermocline.engine.duck import DuckEngine
from thermocline.serve.http import server_record
from thermocline.serve.identity.token_store import TokenStore


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def settings(project: Path) -> config.Settings:
    (project / "thermocline.toml").write_text('[lake]\nname = "p"\n')
    return config.load_settings(project, environ={})


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    """A project whose folder somebody made by hand, before anything of ours."""
    before = os.umask(0o022)
    (tmp_path / ".thermocline").mkdir()
    for name in ("serve.log", "spark.log", "tokens.lock"):
        (tmp_path / ".thermocline" / name).write_text("kept\n")
    os.umask(before)
    assert mode(tmp_path / ".thermocline") == 0o755
    return tmp_path


USES: dict[str, Callable[[Path], object]] = {
    "the folder": private_files.ensure_folder,
    "a log": lambda project: private_files.ensure_file(project, "serve.log"),
    "a token": lambda project: TokenStore(project).create("a"),
    "where a server is": lambda project: server_record.write_record(settings(project), "http://x"),
    "what DuckDB spills": lambda project: DuckEngine(settings(project)).connect().close(),
}


@pytest.mark.parametrize("use", USES)
def test_others_cannot_enter_after_any_use(open_to_all: Path, use: str) -> None:
    USES[use](open_to_all)
    assert mode(open_to_all / ".thermocline") == 0o700


@pytest.mark.parametrize("name", ["serve.log", "new.log"])
def test_a_file_is_its_owners_and_is_kept(open_to_all: Path, name: str) -> None:
    path = private_files.ensure_file(open_to_all, name)
    assert mode(path) == 0o600
    assert path.read_text() == ("kept\n" if name == "serve.log" else "")


def test_a_log_that_has_grown_is_put_aside(
    open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_files, "MAX_LOG_BYTES", 4)
    folder = private_files.ensure_folder(open_to_all)
    for _ in range(2):
        path = private_files.ensure_log(open_to_all, "serve.log")
        assert path.read_text() == ""
        path.write_text("newer\n")
    assert (folder / "serve.log.1").read_text() == "newer\n"
    assert {file.name for file in folder.glob("serve.log*")} == {"serve.log", "serve.log.1"}
    monkeypatch.setattr(private_files, "MAX_LOG_BYTES", 6)
    assert private_files.ensure_log(open_to_all, "serve.log").read_text() == "newer\n"

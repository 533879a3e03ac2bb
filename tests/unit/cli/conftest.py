"""`thermo` in this process, without settings of whoever runs the tests."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from thermocline.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("THERMOCLINE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command; gives its exit code, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main.run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call

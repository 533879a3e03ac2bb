"""A few random histories of tables and their companions; `benchmarks.histories` plays many."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.table_histories import KINDS, History


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_and_its_companions_are_what_the_model_says(tmp_path: Path, kind: str) -> None:
    for seed in range(1, 5):
        _play(tmp_path / str(seed), seed, kind, "duckdb", 10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_while_all_expires_that_may(tmp_path: Path, kind: str) -> None:
    for seed in range(5, 8):
        _play(tmp_path / str(seed), seed, kind, "duckdb", 10, expiring=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_on_spark(tmp_path: Path, kind: str) -> None:
    _play(tmp_path, 7, kind, "spark", 4)


def _play(
    folder: Path, seed: int, kind: str, engine: str, steps: int, *, expiring: bool = False
) -> None:
    folder.mkdir(exist_ok=True)
    history = History(folder, seed, kind, engine, expiring=expiring)
    try:
        history.play(steps)
    finally:
        history.close()

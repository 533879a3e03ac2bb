"""Maintenance changes no row of any snapshot, whatever else happens to the table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.conftest import SETTINGS, clean_environment
from tests.integration.maintained_tables import play

from thermocline.config import load_settings
from thermocline.lake import Lake

HISTORIES, STEPS = 12, 30


def test_every_ref_equals_the_model_after_every_step(tmp_path: Path) -> None:
    rewrites: Counter[str] = Counter()
    for seed in range(HISTORIES):
        project = tmp_path / str(seed)
        project.mkdir()
        (project / "thermocline.toml").write_text(SETTINGS)
        lake = Lake(load_settings(project, environ=clean_environment()))
        rewrites.update(play(lake, seed, STEPS))
        lake.close()
    assert rewrites["published"] > 50
    assert rewrites["carried"] > 3
    assert rewrites["discarded"] > 3

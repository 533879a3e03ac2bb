"""Maintenance changes no row of any snapshot, whatever else happens to the table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.conftest import SETTINGS, clean_environment
from tests.integration.maintained_histories import play

from thermocline.config import load_settings
from thermocline.lake import Lake

HISTORIES, STEPS = 50, 40

# What the histories must have in them, so that they show something.
LEAST = {
    "published": 50, "carried": 4, "discarded": 10, "expire published": 20, "expired": 50,
    "expire discarded": 10, "manifests published": 10, "manifests discarded": 3,
    "remove done": 100, "removed": 100, "runs published": 3,
}  # fmt: skip


def test_every_ref_equals_the_model_after_every_step(tmp_path: Path) -> None:
    rewrites: Counter[str] = Counter()
    for seed in range(HISTORIES):
        project = tmp_path / str(seed)
        project.mkdir()
        (project / "thermocline.toml").write_text(SETTINGS)
        lake = Lake(load_settings(project, environ=clean_environment()))
        rewrites.update(play(lake, seed, STEPS))
        lake.close()
    for name in LEAST:
        assert rewrites[name] >= LEAST[name], (name, rewrites)

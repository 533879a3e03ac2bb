"""A trial's tables lie where the project's catalog expects tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import SETTINGS, clean_environment

from thermocline.config import load_settings
from thermocline.lake.locations import Warehouse
from thermocline.torture import trial_project as projects

OWN = {"a catalog in the lake": "", "one in the project": 'catalog.uri = "catalog.db"\n'}
SHARED = {
    "a server": 'catalog.type = "postgres"\ncatalog.uri = "postgresql://db/lake"\n',
    "a file": 'catalog.uri = "{folder}/shared.db"\n',
}


@pytest.mark.parametrize("catalog", [*OWN, *SHARED])
def test_tables_of_one_catalog_lie_in_one_warehouse(
    tmp_path: Path, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, folder = tmp_path / "project", tmp_path / "project" / ".thermocline" / "trial"
    project.mkdir()
    more = {**OWN, **SHARED}[catalog].format(folder=tmp_path)
    (project / "thermocline.toml").write_text(SETTINGS.replace("[lake]\n", f"[lake]\n{more}"))
    settings = load_settings(project, environ=clean_environment())
    projects.write(settings, folder, "t1", ())
    trial = load_settings(folder, environ=clean_environment())
    table = f"file:{trial.warehouse}/bronze/t/metadata/1.json"
    assert Warehouse(trial.warehouse).holds(table)
    assert Warehouse(settings.warehouse).holds(table) == (catalog in SHARED)
    assert (trial.catalog.uri == settings.catalog.uri) == (catalog in SHARED)

"""Random histories of a table and its companions that go on in a copy, and in the original."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.contract.random_rows import photo
from tests.integration.table_histories import KINDS, History

from thermocline.errors import TablesElsewhere


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [21, 22])
def test_a_history_goes_on_in_a_relocated_copy(tmp_path: Path, kind: str, seed: int) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    history = History(first, seed, kind)
    history.play(6)
    history.close()
    shutil.copytree(first, copy)
    before = photo(first)
    history.move(copy)
    with pytest.raises(TablesElsewhere):
        history.house.tables()
    assert history.house.relocate().done
    assert all(each.status != "fail" for each in history.house.doctor())
    assert sum(target.files for target in history.house.ingest().targets) == 0
    history.play(6)
    history.close()
    assert photo(first) == before

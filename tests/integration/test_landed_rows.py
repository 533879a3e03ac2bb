"""What a table has consumed stands in rows beside its pointer, in the same transaction."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from tests.conftest import clean_environment
from tests.servers import settings

from thermocline.config import load_settings
from thermocline.contract.definition import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.ingest import ledger
from thermocline.ingest.folder_stream import FolderIngester
from thermocline.ingest.source import Source
from thermocline.lake import Draft, Lake, refs
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.consumption import Consumption

if TYPE_CHECKING:
    from thermocline.ingest.inspection import InspectedFile

TARGET = "bronze.raw_things"
CONTRACT = Contract(TARGET, (Column("id", Primitive("long"), required=True),))


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


@pytest.fixture(params=["sqlite", "rest"])
def any_lake(request: pytest.FixtureRequest, project: Path) -> Iterator[Lake]:
    """A lake on a catalog that has rows, or on one that has none."""
    there: dict[str, str] = {}
    if request.param == "rest":
        there = settings.rest_lake_settings(request.getfixturevalue("rest_catalog_server"))
    opened = Lake(load_settings(project, environ={**clean_environment(), **there}))
    yield opened
    opened.duck.stop()


def ingester(lake: Lake, landing: Path) -> FolderIngester:
    """A new process's look at the folder."""
    return FolderIngester(lake, Source("things", str(landing), TARGET, format="jsonl"), CONTRACT)


def put(folder: Path, name: str, *ids: int) -> None:
    path = folder / name
    path.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
    when = time.time() - 60
    os.utime(path, (when, when))


def ids(lake: Lake) -> list[int]:
    return sorted(lake.iceberg(TARGET).scan().to_arrow()["id"].to_pylist())


def rows(lake: Lake, query: str) -> list[Any]:
    with lake.catalog.engine.connect() as connection:  # type: ignore[attr-defined]
        return list(connection.execute(text(query)))


def test_a_summary_says_how_many_files_and_rows_say_which(lake: Lake, landing: Path) -> None:
    for number in range(20):
        put(landing, f"{number}.jsonl", number)
    assert ingester(lake, landing).ingest_batch()
    state = lake.state(TARGET)
    assert bookmarks.read(state) == {"landed": 20}
    found = rows(lake, "SELECT name, snapshot, table_uuid FROM thermocline_landed")
    assert sorted(found) == sorted((f"{n}.jsonl", state.head(), state.uuid) for n in range(20))
    assert ingester(lake, landing).ingest_batch() is None


def test_a_rollback_makes_files_new_again_and_forward_known_again(
    any_lake: Lake, landing: Path
) -> None:
    lake = any_lake
    put(landing, "a.jsonl", 1)
    assert ingester(lake, landing).ingest_batch()
    first = lake.state(TARGET).head()
    put(landing, "b.jsonl", 2)
    assert ingester(lake, landing).ingest_batch()
    second = lake.state(TARGET).head()
    assert first is not None and second is not None
    lake.commit([refs.rollback(lake.state(TARGET), first)])
    lake.commit([refs.rollback(lake.state(TARGET), second)])
    assert ingester(lake, landing).ingest_batch() is None
    lake.commit([refs.rollback(lake.state(TARGET), first)])
    assert ingester(lake, landing).ingest_batch()
    assert ids(lake) == [1, 2]


def test_a_lake_whose_summaries_hold_the_ledger_is_carried_over(
    any_lake: Lake, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Landed by an older version; then by this one, whatever was delivered again."""
    lake = any_lake
    with monkeypatch.context() as older:
        older.setattr(ledger, "make_bookmark", list_files_in_bookmark)
        older.setattr(ledger.Ledger, "make_consumed", lambda *_: Consumption())
        older.setattr(Draft, "_carry_consumption", lambda *_: {})
        heads = []
        for number, name in enumerate(("a.jsonl", "b.jsonl"), start=1):
            put(landing, name, number)
            assert ingester(lake, landing).ingest_batch()
            heads.append(lake.state(TARGET).head())
            if lake.consumption_store is not None:
                _without_rows(lake)
    put(landing, "again.jsonl", 1)
    assert ingester(lake, landing).ingest_batch() is None
    assert ids(lake) == [1, 2]
    assert heads[0] is not None
    lake.commit([refs.rollback(lake.state(TARGET), heads[0])])
    assert ingester(lake, landing).ingest_batch()
    assert ids(lake) == [1, 2]


def list_files_in_bookmark(files: Sequence[InspectedFile]) -> dict[str, Any]:
    """Return the bookmark entry of older versions."""
    return {
        "files": {file.sha256: file.file.name for file in files},
        "seen": {file.sha256: [file.file.size, file.file.modified_ns] for file in files},
    }


def _without_rows(lake: Lake) -> None:
    """The catalog as an older version left it."""
    with lake.catalog.engine.begin() as connection:  # type: ignore[attr-defined]
        for table in ("landed", "carried", "positions", "consumers"):
            connection.execute(text(f"DROP TABLE thermocline_{table}"))
    assert lake.consumption_store is not None
    lake.consumption_store._is_created = False


def test_a_row_that_is_gone_is_an_error_and_not_a_beginning(lake: Lake) -> None:
    """A catalog that was restored without our rows: a stream stops rather than start over."""
    from thermocline.errors import Permanent
    from thermocline.ingest import marks
    from thermocline.ingest.marks import Mark

    lake.ensure(CONTRACT)
    mark = Mark("s", 3, {"offset": 7})
    draft = lake.draft("RUN", late_branches=True)
    draft.append(
        TARGET, (), bookmark=marks.to_bookmark("things", mark), operation="ingest",
        consumed=marks.to_consumed("things", mark),
    )  # fmt: skip
    draft.publish()
    assert marks.read(lake, lake.state(TARGET), "things") == mark
    assert marks.read(lake, lake.state(TARGET), "other") is None
    with lake.catalog.engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(text("DELETE FROM thermocline_positions"))
    with pytest.raises(Permanent, match="its record is gone"):
        marks.read(lake, lake.state(TARGET), "things")
    assert marks.read(lake, lake.state(TARGET), "things", accept_loss=True) is None

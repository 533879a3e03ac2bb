"""A landing folder that is watched: files land look by look, each once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.conftest import clean_environment
from tests.integration.attached import COMMAND, child
from tests.integration.odcs import HEAD
from tests.servers import settings

from thermocline.config import load_settings
from thermocline.contract.definition import Column, Contract, DriftMode
from thermocline.contract.types import Primitive
from thermocline.ingest import batch, files, folder_stream
from thermocline.ingest.folder_stream import SETTLE_SECONDS, FolderIngester
from thermocline.ingest.source import Source
from thermocline.ingest.stream import poll_sources
from thermocline.lake import Lake, refs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = "bronze.raw_things"
CONTRACT = Contract(
    TARGET, (Column("id", Primitive("long"), required=True),), drift=DriftMode.REFUSE
)


ON_BOTH = pytest.mark.parametrize("lake", ["sqlite", "rest"], indirect=True)


@pytest.fixture
def lake(request: pytest.FixtureRequest, project: Path) -> Iterator[Lake]:
    """A lake with consumption rows in its catalog, or on a catalog that has none."""
    there: dict[str, str] = {}
    if getattr(request, "param", "sqlite") == "rest":
        there = settings.rest_lake_settings(request.getfixturevalue("rest_catalog_server"))
    opened = Lake(load_settings(project, environ={**clean_environment(), **there}))
    yield opened
    opened.duck.stop()


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder_stream = tmp_path / "landing"
    folder_stream.mkdir()
    return folder_stream


@pytest.fixture
def ingester(lake: Lake, landing: Path) -> FolderIngester:
    return FolderIngester(lake, Source("things", str(landing), TARGET, format="jsonl"), CONTRACT)


def put(folder_stream: Path, name: str, *ids: int, age: float = 60, **more: object) -> Path:
    """A file that was last written so many seconds ago."""
    path = folder_stream / name
    path.write_text("".join(json.dumps({"id": each, **more}) + "\n" for each in ids))
    when = time.time() - age
    os.utime(path, (when, when))
    return path


def landed(lake: Lake) -> list[int]:
    return sorted(lake.iceberg(TARGET).scan().to_arrow()["id"].to_pylist())


@ON_BOTH
def test_files_land_as_they_come_each_once(
    lake: Lake, landing: Path, ingester: FolderIngester, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ingester.ingest_batch() is None
    assert lake.exists(TARGET)  # models may ask for it before the first file is there
    put(landing, "a.jsonl", 1, 2)
    taken = ingester.ingest_batch()
    assert taken is not None
    assert (taken.rows, taken.sequence, taken.behind) == (2, 1, 0)
    assert taken.landed.newest is not None
    assert 50 < time.time() - taken.landed.newest.timestamp() < 120
    assert ingester.ingest_batch() is None

    # Delivered again under another name, and one more beside it.
    put(landing, "again.jsonl", 1, 2)
    put(landing, "b.jsonl", 3)
    taken = ingester.ingest_batch()
    assert taken is not None
    assert (taken.rows, taken.sequence) == (1, 2)
    assert landed(lake) == [1, 2, 3]

    # A look at a folder without news asks nobody.
    monkeypatch.setattr(files, "ingest", None)
    assert ingester.ingest_batch() is None


def test_a_file_that_grows_waits(lake: Lake, landing: Path, ingester: FolderIngester) -> None:
    growing = put(landing, "a.jsonl", 1, age=0)
    assert ingester.ingest_batch() is None
    put(landing, "a.jsonl", 1, 2, age=SETTLE_SECONDS / 2)
    assert ingester.ingest_batch() is None
    when = time.time() - SETTLE_SECONDS - 1
    os.utime(growing, (when, when))
    assert ingester.ingest_batch() is not None
    assert landed(lake) == [1, 2]


def test_a_refused_file_is_looked_at_again_when_it_changes(
    lake: Lake, landing: Path, ingester: FolderIngester
) -> None:
    put(landing, "a.jsonl", 1, stray="x")
    assert ingester.ingest_batch() is None
    assert ingester.ingest_batch() is None
    put(landing, "a.jsonl", 1, age=30)
    assert ingester.ingest_batch() is not None
    assert landed(lake) == [1]


def test_old_files_are_not_asked_again_and_news_among_them_are_found(
    lake: Lake, landing: Path, ingester: FolderIngester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in ("one", "two"):
        (landing / day).mkdir()
        put(landing / day, "a.jsonl", len(day) * 10 + (day == "two"))
        os.utime(landing / day, (1, 1))
    assert ingester.ingest_batch() is not None
    assert ingester.ingest_batch() is None  # now every folder is known to be quiet

    listed: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or real(path))
    assert ingester.ingest_batch() is None
    assert not {str(landing / day) for day in ("one", "two")} & set(listed)

    put(landing / "two", "b.jsonl", 5)  # a new file beside an old one
    assert ingester.ingest_batch() is not None
    put(landing / "one", "new", 6)
    (landing / "one" / "new").replace(landing / "one" / "a.jsonl")  # in an old one's place
    assert ingester.ingest_batch() is not None
    assert landed(lake) == [5, 6, 30, 31]

    put(landing / "two", "b.jsonl", 5, 7)  # in place: by the next look that asks all of them
    monkeypatch.setattr(folder_stream, "FULL_LISTING_SECONDS", 0.0)
    assert ingester.ingest_batch() is not None
    assert landed(lake) == [5, 5, 6, 7, 30, 31]


@ON_BOTH
def test_after_a_rollback_files_are_new_again(
    lake: Lake, landing: Path, ingester: FolderIngester
) -> None:
    put(landing, "a.jsonl", 1)
    first = ingester.ingest_batch()
    put(landing, "b.jsonl", 2)
    assert ingester.ingest_batch() is not None
    assert first is not None
    lake.commit([refs.rollback(lake.state(TARGET), first.snapshot)])
    assert landed(lake) == [1]
    assert ingester.ingest_batch() is not None
    assert landed(lake) == [1, 2]


@ON_BOTH
def test_two_that_watch_one_folder_land_each_file_once(
    lake: Lake, landing: Path, ingester: FolderIngester
) -> None:
    other = FolderIngester(lake, replace(ingester.source), CONTRACT)
    put(landing, "a.jsonl", 1)
    assert ingester.ingest_batch() is not None
    assert other.ingest_batch() is None
    put(landing, "b.jsonl", 2)
    assert other.ingest_batch() is not None
    assert ingester.ingest_batch() is None
    assert landed(lake) == [1, 2]


SOURCE = "name: things\npath: landing\nformat: jsonl\ntarget: bronze.raw_things\n"
ODCS = (
    HEAD.format(name="raw_things")
    + """\
      - {name: id, physicalType: long, required: true}
customProperties:
  - {property: write, value: append}
"""
)


@ON_BOTH
def test_two_at_the_same_moment_land_each_file_once(
    lake: Lake, landing: Path, ingester: FolderIngester, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FolderIngester(lake, replace(ingester.source), CONTRACT)
    put(landing, "a.jsonl", 1)
    put(landing, "b.jsonl", 2)
    overtaken = []

    def overtake(point: str) -> None:
        if point == "ingest.committed-bronze" and not overtaken:
            overtaken.append(point)
            assert other.ingest_batch() is not None

    monkeypatch.setattr(batch, "crash_point", overtake)
    assert ingester.ingest_batch() is None
    assert overtaken
    assert landed(lake) == [1, 2]


def test_of_two_commands_that_watch_one_folder_each_can_go_on_alone(
    project: Path, lake: Lake, spark: SparkSession
) -> None:
    for name, text in {
        "sources/things.yaml": SOURCE, "contracts/bronze/raw_things.odcs.yaml": ODCS,
    }.items():  # fmt: skip
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text(text)
    (project / "landing").mkdir()
    arguments = ["stream", "things", "--every", "100ms", "--json", "-C", str(project)]
    both = [child(spark, COMMAND, *arguments) for _ in range(2)]
    said = []
    for number, process in enumerate(both):
        for each in (2 * number, 2 * number + 1):
            put(project / "landing", f"{each}.jsonl", each)
            await_landed(lake, list(range(each + 1)))
        process.send_signal(signal.SIGTERM)
        said.append(process.communicate(timeout=60))
    assert [process.returncode for process in both] == [0, 0], said
    rows = [sum(json.loads(line)["rows"] for line in out.splitlines()) for out, _ in said]
    assert sum(rows) == 4 and rows[1] >= 2, said


def await_landed(lake: Lake, ids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while not lake.exists(TARGET) or landed(lake) != ids:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_stream_loop_takes_a_folder_like_any_source(
    lake: Lake, landing: Path, ingester: FolderIngester
) -> None:
    put(landing, "a.jsonl", 1)
    stop = Event()
    seen: Iterator[int] = iter(
        beat.batch.rows
        for beat in poll_sources(lake, [ingester], every=0.05, stop=stop)
        if beat.batch is not None
    )
    assert next(seen) == 1
    put(landing, "b.jsonl", 2, 3)
    assert next(seen) == 2
    stop.set()
    assert list(seen) == []
    assert landed(lake) == [1, 2, 3]

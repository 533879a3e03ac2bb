"""Every file that metadata refers to, under its new location, and nothing else is different."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from tests.contract import random_files
from tests.contract.random_files import RandomFiles

from thermocline.lake import Lake
from thermocline.lake.metadata import location_path
from thermocline.lake.references import ReferenceRewriter
from thermocline.recover.location_mapping import LocationMapping

LISTED = "file:///lake"
"""Where the files are that are only listed."""


@pytest.fixture(params=["sqlite"])
def catalog_environ(request: pytest.FixtureRequest) -> dict[str, str]:
    """References are the same on every catalog."""
    return {}


@pytest.mark.parametrize("seed", range(40, 52))
def test_every_snapshot_lists_the_same_files_at_their_new_place(
    lake: Lake, tmp_path: Path, seed: int
) -> None:
    made = RandomFiles(lake, seed)
    for _ in range(12):
        made.step()
    raw = json.loads(location_path(made.table.metadata_location).read_text())
    old, new = f"file://{lake.settings.warehouse}", f"file://{tmp_path}/new"
    moving = LocationMapping(new, [old, LISTED], {made.name: made.table.metadata_location})

    def read(location: str) -> bytes:
        if location not in made.named:
            return location_path(location).read_bytes()
        names = sorted(made.named[location])
        out = BytesIO()
        pq.write_table(pa.table({"file_path": names, "pos": [0] * len(names)}), out)
        return out.getvalue()

    written: dict[str, bytes] = {}
    found = ReferenceRewriter(made.name, moving, read, written.__setitem__).rewrite(raw)
    for location, content in written.items():
        path = location_path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        assert old.encode() not in content
    assert old not in json.dumps(found.raw)
    after = Table(made.table.name(), TableMetadataUtil.parse_obj(found.raw), "", made.table.io,
                  made.table.catalog)  # fmt: skip
    listed = {f.file_path for each in raw["snapshots"]
              for f in _files(made.table, each["snapshot-id"])}  # fmt: skip
    assert set(found.kept) == listed - set(made.named)
    for each in raw["snapshots"]:
        head = each["snapshot-id"]
        here, there = _files(after, head), _files(made.table, head)
        said = [moving.map_rewritten(f.file_path) if f.file_path in made.named
                else moving.map_location(f.file_path) for f in there]  # fmt: skip
        assert [f.file_path for f in here] == said
        assert [_facts(f) for f in here] == [_facts(f) for f in there]
        for f in here:
            if f.file_path in written:
                assert f.file_size_in_bytes == len(written[f.file_path])
        applied = {moving.map_location(data): _again(moving, deletes)
                   for data, _, deletes in _applied(made.table, head)}  # fmt: skip
        assert {data: deletes for data, _, deletes in _applied(after, head)} == applied


def _applied(table: Table, head: int) -> set[Any]:
    """The data files of a snapshot with the delete files that apply to each."""
    return random_files._shown(random_files._compared(table, None, head))


def _again(moving: LocationMapping, deletes: frozenset[str]) -> frozenset[str]:
    return frozenset(moving.map_rewritten(path) for path in deletes)


def _files(table: Table, head: int) -> list[Any]:
    return [entry.data_file for entry in random_files._all(table, head)]


def _facts(file: Any) -> tuple[Any, ...]:
    """What does not change with the place."""
    return file.content, file.file_format, repr(file.partition), file.record_count, file.spec_id

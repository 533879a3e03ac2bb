"""The cache of metadata files: bounded, and right when many threads use it."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from thermocline.lake.metadata_files import FileCache, read_metadata

_METADATA = {
    "format-version": 2,
    "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
    "location": "file:///lake/t",
    "last-sequence-number": 0,
    "last-updated-ms": 1_700_000_000_000,
    "last-column-id": 1,
    "current-schema-id": 0,
    "schemas": [
        {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 1, "name": "n", "required": False, "type": "long"}],
        }
    ],
    "default-spec-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "last-partition-id": 999,
    "default-sort-order-id": 0,
    "sort-orders": [{"order-id": 0, "fields": []}],
}


@pytest.mark.parametrize("name", ["plain.metadata.json", "small.gz.metadata.json"])
def test_a_file_is_read_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    content = json.dumps(_METADATA).encode()
    path.write_bytes(gzip.compress(content) if ".gz." in name else content)
    first = read_metadata(PyArrowFileIO(), str(path))
    assert first.schema().find_type("n").__class__.__name__ == "LongType"
    assert read_metadata(PyArrowFileIO(), str(path)) is first
    assert read_metadata(PyArrowFileIO(), path.as_uri()) is not first


def test_a_local_file_that_was_restored_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "plain.metadata.json"
    path.write_text(json.dumps(_METADATA))
    assert read_metadata(PyArrowFileIO(), str(path)).last_sequence_number == 0
    path.write_text(json.dumps(_METADATA | {"last-sequence-number": 12}))
    assert read_metadata(PyArrowFileIO(), str(path)).last_sequence_number == 12
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_metadata(PyArrowFileIO(), str(path))


def test_a_file_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "late.metadata.json"
    with pytest.raises(FileNotFoundError):
        read_metadata(PyArrowFileIO(), str(path))
    path.write_text(json.dumps(_METADATA))
    assert str(read_metadata(PyArrowFileIO(), str(path)).table_uuid) == _METADATA["table-uuid"]


def test_the_least_recently_used_go_first() -> None:
    cache: FileCache[str] = FileCache(budget=30)
    read: list[str] = []

    def get(name: str, size: int = 10) -> str:
        def load() -> tuple[str, int]:
            read.append(name)
            return name.upper(), size

        return cache.get(name, load)

    assert [get(name) for name in "abcab"] == ["A", "B", "C", "A", "B"]
    get("d")  # in the place of c, which was used longest ago
    assert read == [*"abcd"]
    for name in "abd":
        get(name)
    get("c")  # in the place of a
    get("huge", size=31)
    get("huge", size=31)
    for name in "bdc":
        get(name)
    assert read == [*"abcdc", "huge", "huge"]


def test_threads_get_their_own_file_and_the_bound_holds() -> None:
    cache: FileCache[int] = FileCache(budget=50)

    def work(seed: int) -> None:
        for step in range(2000):
            wanted = (seed * 7 + step) % 23
            assert cache.get(str(wanted), lambda n=wanted: (n, 10)) == wanted

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert cache._bytes == 50
    assert len(cache._entries) == 5

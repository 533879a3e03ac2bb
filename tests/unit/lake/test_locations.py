"""Whether a location is inside a folder, by every spelling of both."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from thermocline.errors import TablesElsewhere
from thermocline.lake.locations import (
    Warehouse,
    is_same_file,
    normalize_location,
    relative_path,
    warehouse_of,
)

FILE = "silver/orders/metadata/00001-a.metadata.json"
SPELLINGS = ("{}", "file:{}", "file://{}", "file://{}/", "{}/")


def of_file(folder: str) -> list[str]:
    """Every spelling of a file in a folder."""
    plain = f"{folder.rstrip('/')}/{FILE}"
    doubled = f"{folder.rstrip('/')}//{FILE}"
    return [plain, f"file:{plain}", f"file://{plain}", doubled, f"{folder.rstrip('/')}/./{FILE}"]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A warehouse with a table's metadata, and links to it and to what is above it."""
    path = tmp_path / "city" / "lake"
    (path / FILE).parent.mkdir(parents=True)
    (path / FILE).write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "city")
    (tmp_path / "straight").symlink_to(path)
    (tmp_path / "chain").symlink_to(tmp_path / "link")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    return path


def ways(tmp_path: Path) -> list[str]:
    """Paths that lead to the warehouse."""
    climbing = tmp_path / "deep" / "er" / ".." / ".." / "link" / "lake"
    names = ("city/lake", "link/lake", "straight", "chain/lake")
    return [*(str(tmp_path / name) for name in names), str(climbing)]


def test_a_file_is_inside_by_every_spelling_of_it_and_of_the_folder(
    tmp_path: Path, lake: Path
) -> None:
    for folder, spelled, way in product(ways(tmp_path)[:4], SPELLINGS, ways(tmp_path)):
        for location in of_file(way):
            warehouse = Warehouse(spelled.format(folder))
            assert warehouse.holds(location), (spelled.format(folder), location)


def test_what_only_looks_like_the_folder_is_outside(tmp_path: Path, lake: Path) -> None:
    copy = tmp_path / "copy" / "lake"
    (copy / FILE).parent.mkdir(parents=True)
    (copy / FILE).write_text("{}")
    (tmp_path / "city" / "lake2").mkdir()
    outside = [copy, tmp_path / "city" / "lake2", tmp_path / "city", tmp_path / "gone" / "lake",
               tmp_path / "city" / "lake" / ".." / ".." / "copy" / "lake"]  # fmt: skip
    for folder, other in product(ways(tmp_path)[:4], outside):
        for location in of_file(str(other)):
            assert not Warehouse(folder).holds(location), (folder, location)
    for location in of_file(str(lake)):
        assert not Warehouse(str(copy)).holds(location)


def test_a_warehouse_that_is_not_there_holds_what_is_spelled_so(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path / "new"))
    assert warehouse.holds(f"file:{tmp_path}/new/{FILE}")
    assert not warehouse.holds(f"file:{tmp_path}/new2/{FILE}")
    assert not warehouse.holds(f"file:{tmp_path}/new/../old/{FILE}")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_stores_are_told_apart_by_bucket_and_prefix(scheme: str) -> None:
    for folder in ("s3://bucket/lake", "s3a://bucket/lake/"):
        assert Warehouse(folder).holds(f"{scheme}://bucket/lake/{FILE}")
        for other in ("bucket/lake2", "bucket", "other/lake", "bucket/x/lake", "bucket/lake/.."):
            assert not Warehouse(folder).holds(f"{scheme}://{other}/{FILE}")
    assert not Warehouse("/bucket/lake").holds(f"{scheme}://bucket/lake/{FILE}")
    assert not Warehouse("s3://bucket/lake").holds(f"/bucket/lake/{FILE}")
    assert not Warehouse("/lake").holds(f"file://host/lake/{FILE}")


def test_the_warehouse_itself_is_inside(lake: Path) -> None:
    assert Warehouse(str(lake)).holds(f"file://{lake}")
    assert Warehouse("s3://bucket/lake").holds("s3a://bucket/lake/")


def test_every_path_that_was_met_is_a_spelling_of_the_warehouse(tmp_path: Path, lake: Path) -> None:
    warehouse = Warehouse(str(lake))
    assert warehouse.holds(f"file:{tmp_path}/link/lake/{FILE}")
    assert warehouse.holds(f"file:{tmp_path}/link/lake/{FILE}")
    assert list(warehouse.roots) == [str(lake), f"{tmp_path}/link/lake"]


def test_the_error_names_a_table_the_place_and_the_command(tmp_path: Path, lake: Path) -> None:
    there = {
        "silver.orders": f"file:{lake}/{FILE}",
        "silver.people": f"file:{lake}/silver/people/x",
    }
    with pytest.raises(TablesElsewhere) as caught:
        Warehouse(str(tmp_path / "copy")).require(there)
    cause, next_step = str(caught.value).split("\n")
    assert f"silver.orders and 1 other in {lake}, not in its warehouse {tmp_path}/copy." in cause
    assert "`thermo relocate`" in next_step
    assert caught.value.exit_code == 2


def test_parts_of_locations() -> None:
    assert relative_path("file:/lake/a/b", "/lake/") == "a/b"
    assert relative_path("s3a://x/lake/a", "s3://x/lake") == "a"
    assert relative_path("/lake/a%20b/c d#e", "file:///lake") == "a%20b/c d#e"
    assert relative_path("/lake/../b", "/lake") is None
    assert normalize_location("file:///a//b/./c") == "/a/b/c"
    assert normalize_location("s3n://b//c") == "s3://b//c"
    assert warehouse_of("silver.t", "file:/x/silver/t/lake/silver/t/metadata/1.json") == (
        "file:/x/silver/t/lake"
    )
    assert warehouse_of("silver.t", "file:/x/elsewhere") == "file:/x/elsewhere"


def test_one_folder_by_two_paths_is_one(tmp_path: Path, lake: Path) -> None:
    assert is_same_file(str(lake), f"file:{tmp_path}/straight")
    assert not is_same_file(str(lake), str(tmp_path))
    assert not is_same_file(str(tmp_path / "gone"), str(tmp_path / "gone"))
    assert not is_same_file("s3://b/x", "s3://b/x")

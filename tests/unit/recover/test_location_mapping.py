"""Texts that mention an old location, and the mapping of locations."""

from __future__ import annotations

import pytest

from thermocline.recover.location_mapping import LocationMapping, source_warehouses

NAMES = ["/data/lake", "file:/data/lake/x", "file:///data/lake", "see /data/lake, please",
         "s3a://b/p/x", "s3://b/p", '{"at":"s3n://b/p/t"}']  # fmt: skip
OTHERS = ["", "/data/lakehouse", "/other/data/lake", "s3://b/p2", "s3://a/b/p", "lake", "data/lake",
          "/data/lake.old", "orders 1.0.0", "s3://xb/p"]  # fmt: skip


@pytest.mark.parametrize("text", NAMES)
def test_a_text_that_names_an_old_place(text: str) -> None:
    assert LocationMapping(
        "file:///new", ["file:///data/lake", "s3://b/p/"], {}
    ).mentions_old_location(text)


@pytest.mark.parametrize("text", OTHERS)
def test_a_text_that_names_none(text: str) -> None:
    assert not LocationMapping(
        "file:///new", ["file:///data/lake", "s3://b/p/"], {}
    ).mentions_old_location(text)


def test_a_file_keeps_its_place_in_the_warehouse_and_its_name() -> None:
    mapping = LocationMapping(
        "s3://new/lake", ["/old/lake", "/old/lake/inner"], {"a.b": "/old/lake/a/b/m"}
    )
    assert (
        mapping.map_location("file:/old/lake/a/b/x%20y.parquet")
        == "s3://new/lake/a/b/x%20y.parquet"
    )
    assert mapping.map_location("/old/lake/inner/a/b/x") == "s3://new/lake/a/b/x"
    assert mapping.map_location("s3a://new/lake/a/b/x") == "s3a://new/lake/a/b/x"
    once = mapping.map_rewritten("/old/lake/a/b/m.avro")
    again = LocationMapping("/third", ["s3://new/lake"], {}).map_rewritten(once)
    assert once.rpartition("/")[2].endswith("-m.avro")
    assert len(again.rpartition("/")[2]) == len(once.rpartition("/")[2])
    assert mapping.map_pointer("/old/lake/a/b/00041-x.metadata.json").startswith(
        "s3://new/lake/a/b/00042-"
    )
    for outside in ("/old/lake2/x", "/old/lake/../x", "s3://other/x"):
        with pytest.raises(ValueError, match=r"."):
            mapping.map_location(outside)


def test_warehouses_are_seen_from_where_tables_lie() -> None:
    tables = {"a.b": "file:/w/one/a/b/metadata/1.json", "a.c": "/w/two/a/c/metadata/1.json",
              "a.d": "/w/two/own/place/metadata/1.json"}  # fmt: skip
    assert source_warehouses(tables) == ["file:/w/one", "/w/two"]
    assert source_warehouses({}, "s3://x") == ["s3://x"]

"""What a relocation refuses before anything is changed, and what it notices before it switches."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.contract.catalog_tables import ORDERS, add_orders, ids
from tests.contract.random_rows import Photo, RandomRows, photo
from tests.servers.postgres import Postgres
from tests.servers.rest_catalog import RestCatalog
from tests.servers.settings import postgres_lake_settings, rest_lake_settings

from thermocline.config import load_settings
from thermocline.errors import BadInput, CheckFailed, NotFound, Permanent, TablesElsewhere
from thermocline.lake import Lake, avro
from thermocline.lake.metadata import location_path
from thermocline.lake.references import Unmovable
from thermocline.recover import relocate

TABLE = ORDERS.table
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lake with deletes, branches, tags and statistics, which no test may change."""
    folder = tmp_path_factory.mktemp("original") / "city"
    folder.mkdir()
    (folder / "thermocline.toml").write_text(SETTINGS)
    lake = Lake(load_settings(folder, environ=clean_environment()))
    RandomRows(lake, 3).play(0)
    lake.close()
    before = photo(folder)
    yield folder
    assert photo(folder) == before


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(original, tmp_path / "copy"))


def files(copy: Path) -> Photo:
    """The files of the copy's lake, but for those that SQLite has only while it is asked."""
    found = photo(copy / "lake")
    return {path: each for path, each in found.items() if "db-" not in path}


def refused(copy: Path, kind: type[Exception], match: str, **how: Any) -> None:
    """Relocating is refused, and has written nothing."""
    before = files(copy)
    with pytest.raises(kind, match=match) as caught:
        relocate(load_settings(copy, environ=clean_environment()), **how)
    assert str(caught.value).count("\n") == 1, "cause and next step are a line each"
    assert files(copy) == before
    with pytest.raises(TablesElsewhere):
        Lake(load_settings(copy, environ=clean_environment())).states()


def pointer_of(copy: Path) -> str:
    """The metadata file that the copy's catalog names, from the table's folder."""
    with closing(sqlite3.connect(copy / "lake" / "catalog.db")) as db:
        [found] = db.execute("select metadata_location from iceberg_tables").fetchone()
    return str(found)


def metadata(copy: Path) -> Path:
    """The copy's own metadata file."""
    return copy / "lake" / "silver" / "orders" / "metadata" / pointer_of(copy).rpartition("/")[2]


def in_copy(copy: Path, original: Path, location: str) -> Path:
    """Where the copy has a file that metadata names."""
    path = location_path(location)
    assert path is not None
    return copy / path.relative_to(original)


def edited(copy: Path, change: Change) -> None:
    """Change the copy's metadata file, as another writer might have made it."""
    raw = json.loads(metadata(copy).read_text())
    change(raw)
    metadata(copy).write_text(json.dumps(raw))


METADATA: dict[str, tuple[Change, str]] = {
    "a later format": (lambda raw: raw.update({"format-version": 3}), "format version 3"),
    "an unknown field": (lambda raw: raw.update({"next-row-id": 7}), "next-row-id"),
    "encryption keys": (lambda raw: raw.update({"encryption-keys": [{}]}), "encryption-keys"),
    "an encrypted table": (
        lambda raw: raw["properties"].update({"encryption.key-id": "k"}), "encryption.key-id"
    ),
    "an unknown field of a snapshot": (
        lambda raw: raw["snapshots"][0].update({"key-id": "k"}), "key-id"
    ),
    "rows with lineage": (
        lambda raw: raw["snapshots"][-1].update({"first-row-id": 0}), "first-row-id"
    ),
    "a folder of data elsewhere": (
        lambda raw: raw["properties"].update({"write.data.path": "file:/other/disk"}), "/other/disk"
    ),
    "a list elsewhere": (
        lambda raw: raw["snapshots"][0].update({"manifest-list": "s3://b/l.avro"}), "s3://b/l.avro"
    ),
    "a list that climbs out": (
        lambda raw: raw["snapshots"][0].update(
            {"manifest-list": raw["location"] + "/../../../../x.avro"}), "x.avro"
    ),
    "a property that names the place": (
        lambda raw: raw["properties"].update({"own.index": raw["location"] + "/index"}), "own.index"
    ),
    "unknown statistics": (
        lambda raw: raw["statistics"][0].update({"key-metadata": "x"}), "key-metadata"
    ),
    "manifests without a list": (
        lambda raw: raw["snapshots"][0].pop("manifest-list"), "no manifest list"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", METADATA)
def test_metadata_that_is_not_understood_is_refused(copy: Path, what: str) -> None:
    change, match = METADATA[what]
    edited(copy, change)
    refused(copy, Unmovable, match)
    refused(copy, Unmovable, match, plan=True)


def manifests(copy: Path, original: Path, lists: bool) -> list[Path]:
    """The copy's manifest lists, or its manifests, those of deletes last."""
    raw = json.loads(metadata(copy).read_text())
    listed = [in_copy(copy, original, each["manifest-list"]) for each in raw["snapshots"]]
    if lists:
        return listed
    records = [record for path in listed for record in avro.read(path.read_bytes()).records]
    records.sort(key=lambda record: record["content"])
    return [in_copy(copy, original, record["manifest_path"]) for record in records]


def put(file: dict[str, Any], **values: Any) -> None:
    """Set fields of a manifest's data file."""
    file["data_file"].update(values)


ENTRIES: dict[str, tuple[Change, str]] = {
    "equality deletes": (lambda entry: put(entry, content=2), "equality deletes"),
    "deletes in a vector": (lambda entry: put(entry, file_format="PUFFIN"), "PUFFIN"),
    "another format": (lambda entry: put(entry, file_format="ORC"), "ORC"),
    "an encrypted file": (lambda entry: put(entry, key_metadata=(1, b"k")), "key_metadata"),
    "a file elsewhere": (lambda entry: put(entry, file_path="/other/f.parquet"), "/other/f"),
}


@pytest.mark.parametrize("what", ENTRIES)
def test_files_that_are_not_understood_are_refused(copy: Path, original: Path, what: str) -> None:
    change, match = ENTRIES[what]
    path = manifests(copy, original, lists=False)[-1]
    file = avro.read(path.read_bytes())
    change(file.records[0])
    path.write_bytes(avro.dump(file))
    refused(copy, Unmovable, match)


def with_field(
    file: avro.AvroFile, name: str, value: Any, at: tuple[Any, ...] = ()
) -> avro.AvroFile:
    """A file whose records have one more optional field."""
    schema = json.loads(file.metadata["avro.schema"])
    fields = schema["fields"]
    records = file.records
    if at:
        fields = next(each for each in fields if each["name"] == at[0])["type"]["fields"]
        records = [record[at[0]] for record in records]
    fields.append({"name": name, "type": ["null", "long"], "default": None})
    for record in records:
        record[name] = (0, None) if value is None else (1, value)
    return avro.AvroFile(
        {**file.metadata, "avro.schema": json.dumps(schema).encode()}, file.records
    )


@pytest.mark.parametrize(
    ("name", "lists", "at"),
    [("first_row_id", True, ()), ("first_row_id", False, ("data_file",)), ("made_up", False, ()),
     ("content_offset", False, ("data_file",)), ("made_up", True, ())],
)  # fmt: skip
def test_an_unknown_field_is_refused_where_it_has_a_value(
    copy: Path, original: Path, name: str, lists: bool, at: tuple[str, ...]
) -> None:
    path = manifests(copy, original, lists)[-1]
    content = path.read_bytes()
    path.write_bytes(avro.dump(with_field(avro.read(content), name, 5, at)))
    refused(copy, Unmovable, name)
    path.write_bytes(avro.dump(with_field(avro.read(content), name, None, at)))
    plan = relocate(load_settings(copy, environ=clean_environment()), plan=True)
    assert [each.table for each in plan.tables] == [TABLE]


def kept_data(copy: Path, original: Path) -> Path:
    """A data file of the copy that main needs."""
    lake = Lake(load_settings(original, environ=clean_environment()))
    task = next(iter(lake.iceberg(TABLE).scan().plan_files()))
    lake.close()
    return in_copy(copy, original, task.file.file_path)


def test_a_file_that_is_cut_off_is_copied_again_and_one_that_is_lost_is_named(
    original: Path, copy: Path
) -> None:
    path = kept_data(copy, original)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    plan = relocate(load_settings(copy, environ=clean_environment()), plan=True)
    assert [(each.copied, each.copied_bytes) for each in plan.tables] == [(1, len(whole))]
    aside = original.with_name("aside")
    original.rename(aside)
    try:
        refused(copy, NotFound, f"1 files are missing or incomplete.*{path.name}")
    finally:
        aside.rename(original)
    relocate(load_settings(copy, environ=clean_environment()))
    assert path.read_bytes() == whole


def test_rows_that_differ_are_noticed_before_the_switch(original: Path, copy: Path) -> None:
    """The file is as long as it was, but other values are in it."""
    path = kept_data(copy, original)
    rows, size = pq.read_table(path), path.stat().st_size
    place = rows.column_names.index("note")
    notes = pa.array([f"N{note[1:]}" for note in rows["note"].to_pylist()])
    changed = rows.set_column(place, rows.schema.field(place), notes.cast(rows.schema.types[place]))
    pq.write_table(changed, path, compression="zstd", write_statistics=False, store_schema=False)
    content = path.read_bytes()
    footer = 8 + int.from_bytes(content[-8:-4], "little")
    room = bytes(size - len(content))  # before the footer there may be anything
    path.write_bytes(content[:-footer] + room + content[-footer:])
    assert path.stat().st_size == size
    before = pointer_of(copy)
    with pytest.raises(CheckFailed, match=r"silver.orders does not have the same rows"):
        relocate(load_settings(copy, environ=clean_environment()))
    assert pointer_of(copy) == before


def test_a_link_to_the_original_is_refused(original: Path, copy: Path) -> None:
    shutil.rmtree(copy / "lake" / "silver")
    (copy / "lake" / "silver").symlink_to(original / "lake" / "silver")
    refused(copy, BadInput, "is a link to")


def test_a_log_of_metadata_elsewhere_is_let_go(copy: Path) -> None:
    def log(raw: dict[str, Any]) -> None:
        raw["metadata-log"].append({"metadata-file": "s3://far/away.json", "timestamp-ms": 1})

    edited(copy, log)
    assert relocate(load_settings(copy, environ=clean_environment())).done
    lake = Lake(load_settings(copy, environ=clean_environment()))
    assert lake.state(TABLE).raw["metadata-log"] == []
    add_orders(lake, TABLE, 1001)


def test_a_layer_elsewhere_needs_the_name_of_its_warehouse(copy: Path) -> None:
    relocate(load_settings(copy, environ=clean_environment()))
    lake = Lake(load_settings(copy, environ=clean_environment()))
    lake.catalog.create_namespace("own", {"location": "file:/far/lake/own"})
    lake.close()
    refused(copy, BadInput, "The layer own writes")
    relocate(load_settings(copy, environ=clean_environment()), old="/far/lake")
    found = Lake(
        load_settings(copy, environ=clean_environment())
    ).catalog.load_namespace_properties("own")
    assert found["location"] == f"file://{copy}/lake/own"


def test_a_table_of_an_unknown_warehouse_needs_its_name(copy: Path, original: Path) -> None:
    odd = "file:/far/away/t/metadata/00001-a.metadata.json"
    with closing(sqlite3.connect(copy / "lake" / "catalog.db")) as db:
        db.execute("update iceberg_tables set metadata_location = ?", [odd])
        db.commit()
    refused(copy, BadInput, "not known which warehouse")
    refused(copy, NotFound, "cannot be read", old="/far/away")


def test_a_catalog_that_others_may_use_is_changed_only_when_that_is_said(
    project: Path, tmp_path: Path, postgres_server: Postgres
) -> None:
    environ = {**clean_environment(), **postgres_lake_settings(postgres_server, project)}
    first = Lake(load_settings(project, environ=environ))
    first.ensure(ORDERS)
    add_orders(first, TABLE, 1, 2)
    shutil.copytree(project, tmp_path / "copy")
    moved = {**environ, "THERMOCLINE_LAKE__WAREHOUSE": str(tmp_path / "copy" / "warehouse")}
    second = load_settings(tmp_path / "copy", environ=moved)
    for act in (Lake(second).tables, lambda: Lake(second).catalog):
        with pytest.raises(TablesElsewhere):
            act()
    with pytest.raises(BadInput, match="theirs would move too"):
        relocate(second)
    assert ids(first, TABLE) == [1, 2]
    assert [each.table for each in relocate(second, plan=True).tables] == [TABLE]
    relocate(second, shared=True)
    here = Lake(second)
    assert ids(here, TABLE) == [1, 2]
    add_orders(here, TABLE, 3)
    assert ids(here, TABLE) == [1, 2, 3]
    with pytest.raises(TablesElsewhere):
        Lake(load_settings(project, environ=environ)).tables()


def test_a_catalog_file_outside_of_the_project_is_one_that_others_may_use(
    original: Path, copy: Path, tmp_path: Path
) -> None:
    (copy / "lake" / "catalog.db").rename(tmp_path / "shared.db")
    environ = {**clean_environment(), "THERMOCLINE_LAKE__CATALOG__URI": str(tmp_path / "shared.db")}
    with pytest.raises(BadInput, match="Other projects may use"):
        relocate(load_settings(copy, environ=environ))
    relocate(load_settings(copy, environ=environ), shared=True)
    assert Lake(load_settings(copy, environ=environ)).tables() == [TABLE]


def test_where_tables_of_a_rest_catalog_lie_is_its_own_business(
    project: Path, tmp_path: Path, rest_catalog_server: RestCatalog
) -> None:
    environ: Mapping[str, str] = {**clean_environment(), **rest_lake_settings(rest_catalog_server)}
    first = Lake(load_settings(project, environ=environ))
    first.ensure(ORDERS)
    add_orders(first, TABLE, 1)
    other = load_settings(
        project, environ={**environ, "THERMOCLINE_LAKE__WAREHOUSE": str(tmp_path / "any")}
    )
    assert ids(Lake(other), TABLE) == [1]
    with pytest.raises(Permanent, match="REST catalog decides"):
        relocate(other)

"""One behaviour, whichever catalog holds the tables: SQLite, PostgreSQL, or a REST server."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tests.contract.catalog_tables import (
    EVERY_TYPE,
    ORDERS,
    add_orders,
    append,
    duck_rows,
    evolved,
    ids,
    order,
    orders,
    rows,
)

from thermocline.contract import Column, Contract, PartitionField, UpdateMode
from thermocline.contract.types import Decimal, Primitive
from thermocline.errors import BadInput, CommitConflict, ContractError, NotFound
from thermocline.lake import Lake, MainMoved, refs
from thermocline.lake.metadata import location_path
from thermocline.lake.schema import shape_of
from thermocline.lake.table_setup import pending_changes
from thermocline.lake.time_travel import resolve_snapshot

TABLE = "silver.orders"
THREE = ("gold.a", "gold.b", "gold.c")


def test_a_table_is_made_as_its_contract_says(lake: Lake) -> None:
    assert pending_changes(lake, EVERY_TYPE) == ["create"]
    assert lake.ensure(EVERY_TYPE) == ["created"]

    state = lake.state("silver.every_type")
    made, wanted = shape_of(state), EVERY_TYPE.shape
    assert made.columns == wanted.columns
    assert made.partition == wanted.partition
    assert made.sort == wanted.sort
    assert set(made.key) == {"id", "country"}
    assert state.properties["write.merge.mode"] == "copy-on-write"
    assert state.raw["format-version"] == 2
    numbered = _field_ids(state.schema)
    assert len(numbered) == len(set(numbered.values())) == 26
    assert numbered["id"] == 1
    table = lake.iceberg("silver.every_type")
    assert sorted(table.schema().identifier_field_names()) == ["country", "id"]
    assert [f"{f.name} {f.transform}" for f in table.spec().fields] == [
        "country identity",
        "a_date_year year",
        "born_month month",
        "paid_day day",
        "a_timestamptz_hour hour",
        "id_bucket bucket[8]",
        "a_decimal_trunc truncate[10]",
    ]
    assert ids(lake, "silver.every_type") == []


def _field_ids(struct: Any, path: str = "") -> dict[str, int]:
    """Every field's id, nested ones by their dotted path."""
    found: dict[str, int] = {}
    for field in struct["fields"]:
        found[path + field["name"]] = field["id"]
        found |= _nested_ids(field["type"], f"{path}{field['name']}.")
    return found


def _nested_ids(kind: Any, path: str) -> dict[str, int]:
    if isinstance(kind, str):
        return {}
    if kind["type"] == "struct":
        return _field_ids(kind, path)
    found: dict[str, int] = {}
    for part in ("element", "key", "value"):
        if part in kind:
            found[path + part] = kind[f"{part}-id"]
            found |= _nested_ids(kind[part], f"{path}{part}.")
    return found


def test_asking_again_for_what_is_there_commits_nothing(lake: Lake) -> None:
    lake.ensure(EVERY_TYPE)
    before = lake.state("silver.every_type").metadata_location

    assert pending_changes(lake, EVERY_TYPE) == []
    assert lake.ensure(EVERY_TYPE) == []
    assert lake.state("silver.every_type").metadata_location == before


def test_a_changed_write_mode_reaches_the_table(lake: Lake) -> None:
    lake.ensure(ORDERS)
    lake.ensure(orders(updates=UpdateMode.MERGE_ON_READ))
    assert lake.state(TABLE).properties["write.update.mode"] == "merge-on-read"


def test_evolving_keeps_every_row_and_every_field_id(lake: Lake) -> None:
    lake.ensure(ORDERS)
    first = add_orders(lake, TABLE, 1, 2)
    before = _field_ids(lake.state(TABLE).schema)
    files = _data_files(lake)
    foreseen = pending_changes(lake, evolved())

    assert lake.ensure(evolved()) == foreseen
    assert lake.ensure(evolved()) == []

    state = lake.state(TABLE)
    after = _field_ids(state.schema)
    assert list(after) == ["id", "amount", "title", "channel", "quantity", "weight", "placed"]
    assert after["title"] == before["note"]
    assert {n: after[n] for n in ("id", "amount", "quantity", "weight", "placed")} == {
        n: before[n] for n in ("id", "amount", "quantity", "weight", "placed")
    }
    assert after["channel"] > max(before.values())
    assert shape_of(state).partition == evolved().partition
    assert shape_of(state).sort == evolved().sort
    assert shape_of(state).columns == tuple(
        replace(column, renamed_from=None) for column in evolved().columns
    )

    known = [_as_evolved(number) for number in (1, 2)]
    assert rows(lake, TABLE) == known
    assert _data_files(lake) == files
    new = {**_as_evolved(3), "channel": "web", "title": None, "quantity": 2**40}
    append(lake, TABLE, new)
    assert rows(lake, TABLE) == [*known, new] == duck_rows(lake, TABLE)
    specs = {task.file.spec_id for task in lake.iceberg(TABLE).scan().plan_files()}
    assert len(specs) == 2, "old files stay in the old partitioning, new ones are in the new"
    assert rows(lake, TABLE, first) == [order(1), order(2)]


def _as_evolved(number: int) -> dict[str, Any]:
    was = order(number)
    return {
        "id": number,
        "amount": was["amount"],
        "title": was["note"],
        "channel": None,
        "quantity": number,
        "weight": was["weight"],
        "placed": was["placed"],
    }


def _data_files(lake: Lake) -> set[str]:
    return {task.file.file_path for task in lake.iceberg(TABLE).scan().plan_files()}


def _with(name: str, column: Column | None) -> tuple[Column, ...]:
    """The columns of orders with one of them exchanged or left out."""
    changed = ((column if c.name == name else c) for c in ORDERS.columns)
    return tuple(c for c in changed if c is not None)


REFUSED = {
    "old: is in the table but not in the contract": orders(columns=_with("old", None)),
    "quantity: int → string is another type": orders(
        columns=_with("quantity", Column("quantity", Primitive("string")))
    ),
    "id: long → int narrows": orders(columns=_with("id", Column("id", Primitive("int"), True))),
    "amount: decimal(9,2) → decimal(9,3) changes the scale": orders(
        columns=_with("amount", Column("amount", Decimal(9, 3)))
    ),
    "amount: decimal(9,2) → decimal(8,2) narrows": orders(
        columns=_with("amount", Column("amount", Decimal(8, 2)))
    ),
    "old: cannot become required; stored rows may have nulls": orders(
        columns=_with("old", Column("old", Primitive("string"), True))
    ),
    "new: a new column cannot be required": orders(
        columns=(*ORDERS.columns, Column("new", Primitive("string"), True))
    ),
    "NOTE: differs from note only by case": orders(
        columns=_with("note", Column("NOTE", Primitive("string"), True))
    ),
    "placed: is a partition column and cannot be dropped": orders(
        columns=_with("placed", None), dropped=("placed",), partition=()
    ),
}


def test_what_a_contract_may_not_ask_for_changes_nothing(lake: Lake) -> None:
    lake.ensure(ORDERS)
    add_orders(lake, TABLE, 1)
    before = lake.state(TABLE)
    content = location_path(before.metadata_location).read_bytes()
    for said, contract in REFUSED.items():
        for ask in (lake.ensure, lambda wanted: pending_changes(lake, wanted)):
            with pytest.raises(ContractError) as caught:
                ask(_also_adding(contract))
            assert said in str(caught.value)
    after = lake.state(TABLE)
    assert after.metadata_location == before.metadata_location
    assert location_path(after.metadata_location).read_bytes() == content
    assert rows(lake, TABLE) == [order(1)]


def _also_adding(contract: Contract) -> Contract:
    """With an allowed change beside the refused one, which must not be applied alone."""
    return replace(contract, columns=(*contract.columns, Column("extra", Primitive("int"))))


def test_looking_and_writing_see_the_same(lake: Lake) -> None:
    from pyiceberg.table.metadata import TableMetadataUtil

    assert lake.tables() == []
    assert not lake.exists(TABLE)
    with pytest.raises(NotFound, match=f"no table {TABLE}"):
        lake.state(TABLE)
    with pytest.raises(NotFound, match=f"no table {TABLE}"):
        lake.iceberg(TABLE)

    for table in (TABLE, "bronze.raw", *THREE):
        lake.ensure(orders(table))
    add_orders(lake, TABLE, 1)
    append(lake, TABLE, {**order(2), "note": ""})
    lake.ensure(evolved())
    lake.commit([refs.new_ref(lake.state(TABLE), "v1", None, tag=True)])

    listed = [
        ".".join(name)
        for namespace in lake.catalog.list_namespaces()
        for name in lake.catalog.list_tables(namespace)
    ]
    assert lake.tables() == sorted(listed) == ["bronze.raw", *THREE, TABLE]
    for table in lake.tables():
        assert lake.exists(table)
        state, loaded = lake.state(table), lake.iceberg(table)
        assert state.metadata_location == loaded.metadata_location
        assert TableMetadataUtil.parse_obj(dict(state.raw)) == loaded.metadata
        assert state.location == loaded.location()
        assert state.head() == loaded.metadata.current_snapshot_id


def test_branches_and_tags_are_made_and_dropped(lake: Lake) -> None:
    lake.ensure(ORDERS)
    one = add_orders(lake, TABLE, 1)
    lake.commit([refs.new_ref(lake.state(TABLE), "release-1.0", None, tag=True)])
    lake.commit([refs.new_ref(lake.state(TABLE), "try", one, tag=False)])
    on_branch = add_orders(lake, TABLE, 2, branch="try")
    two = add_orders(lake, TABLE, 3)

    state = lake.state(TABLE)
    assert {name: (ref.type, ref.snapshot) for name, ref in state.refs.items()} == {
        "main": ("branch", two),
        "release-1.0": ("tag", one),
        "try": ("branch", on_branch),
    }
    assert ids(lake, TABLE) == [1, 3]
    assert ids(lake, TABLE, resolve_snapshot(state, "try")) == [1, 2]
    assert ids(lake, TABLE, resolve_snapshot(state, "release-1.0")) == [1]
    with pytest.raises(BadInput, match=r"has a tag release-1\.0 already"):
        refs.new_ref(state, "release-1.0", None, tag=False)
    with pytest.raises(NotFound, match="no snapshot 7"):
        refs.new_ref(state, "other", 7, tag=True)

    lake.commit([refs.remove_ref(state, "try")])
    lake.commit([refs.remove_ref(lake.state(TABLE), "release-1.0")])
    assert list(lake.state(TABLE).refs) == ["main"]
    with pytest.raises(NotFound, match="no branch or tag try"):
        refs.remove_ref(lake.state(TABLE), "try")
    with pytest.raises(BadInput, match="main cannot be dropped"):
        refs.remove_ref(lake.state(TABLE), "main")


def test_rollback_goes_back_and_what_came_after_stays_readable(lake: Lake) -> None:
    lake.ensure(ORDERS)
    one = add_orders(lake, TABLE, 1)
    two = add_orders(lake, TABLE, 2)
    lake.commit([refs.new_ref(lake.state(TABLE), "side", one, tag=False)])
    aside = add_orders(lake, TABLE, 9, branch="side")
    before = lake.state(TABLE)

    lake.commit([refs.rollback(before, one)])

    assert ids(lake, TABLE) == [1]
    assert ids(lake, TABLE, two) == [1, 2]
    state = lake.state(TABLE)
    assert resolve_snapshot(state, state.published_at(two)) == two, "it was true at that time"
    add_orders(lake, TABLE, 3)
    assert ids(lake, TABLE) == [1, 3]
    with pytest.raises(BadInput, match="was never on main"):
        refs.rollback(lake.state(TABLE), aside)
    with pytest.raises(CommitConflict, match=TABLE):
        lake.commit([refs.rollback(before, one)])
    assert ids(lake, TABLE) == [1, 3]


def test_three_tables_are_published_at_once(lake: Lake) -> None:
    for table in THREE:
        lake.ensure(orders(table))
    draft = lake.draft("RUN")
    draft.begin(*THREE)
    for number, table in enumerate(THREE):
        add_orders(lake, table, number, branch=draft.branch)
    before = {table: lake.state(table) for table in THREE}
    assert [ids(lake, table) for table in THREE] == [[], [], []]

    published = draft.publish()

    assert [ids(lake, table) for table in THREE] == [[0], [1], [2]]
    for table in THREE:
        after = lake.state(table)
        assert published.tables[table] == (before[table].head(), after.head())
        assert list(after.refs) == ["main"]
        log = [entry["metadata-file"] for entry in after.raw["metadata-log"]]
        assert log[-1] == before[table].metadata_location, "one commit a table"


def test_none_is_published_when_one_has_moved(lake: Lake) -> None:
    for table in THREE:
        lake.ensure(orders(table))
    draft = lake.draft("SLOW")
    draft.begin(*THREE)
    for table in THREE:
        add_orders(lake, table, 1, branch=draft.branch)
    add_orders(lake, "gold.b", 7)
    before = [lake.state(table).metadata_location for table in THREE]

    with pytest.raises(MainMoved) as caught:
        draft.publish()

    assert caught.value.tables == ["gold.b"]
    assert [lake.state(table).metadata_location for table in THREE] == before
    assert [ids(lake, table) for table in THREE] == [[], [7], []]
    draft.drop()
    assert all(list(lake.state(table).refs) == ["main"] for table in THREE)


def test_a_transaction_that_moves_too_late_changes_no_table(lake: Lake) -> None:
    """Here the catalog itself refuses: nobody looked before."""
    heads = {}
    for table in THREE:
        lake.ensure(orders(table))
        heads[table] = add_orders(lake, table, 1)
    changes = [refs.set_ref(t, "new", head, was=None) for t, head in heads.items()]
    stale = refs.set_ref("gold.c", "main", heads["gold.c"], was=heads["gold.a"])
    before = [lake.state(table).metadata_location for table in THREE]
    files = _metadata_files(lake)

    with pytest.raises(CommitConflict) as caught:
        lake.commit([*changes[:2], stale])

    assert "gold.c was changed by another process" in caught.value.cause
    assert caught.value.details == {"table": "gold.c"}
    assert [lake.state(table).metadata_location for table in THREE] == before
    assert _metadata_files(lake) == files, "what was staged is taken back"

    lake.commit(changes)
    assert [lake.state(table).head("new") for table in THREE] == list(heads.values())


def _metadata_files(lake: Lake) -> list[str]:
    return sorted(
        str(path)
        for table in THREE
        for path in (location_path(lake.state(table).location) / "metadata").glob("*.json")
    )


@pytest.mark.parametrize(
    "name", ["orders", "a.b.c", "../b.c", "a'; drop table t--.x", "a.\x00", "a." + "x" * 300, "."]
)
def test_a_wrong_name_is_refused_before_the_catalog_is_asked(lake: Lake, name: str) -> None:
    for ask in (lake.exists, lake.state, lake.iceberg):
        with pytest.raises(BadInput, match="is not a table name"):
            ask(name)
    with pytest.raises(BadInput, match="is not a table name"):
        lake.ensure(replace(ORDERS, table=name))


def test_names_of_branches_are_checked(lake: Lake) -> None:
    lake.ensure(ORDERS)
    state = lake.state(TABLE)
    for name in ("", "a b", "-x", "a..b", "a/b", "a'b", "x" * 200):
        with pytest.raises(BadInput, match="not a name for a branch or tag"):
            refs.new_ref(state, name, None, tag=True)


def test_repartitioning_back_and_forth_reads_every_row(lake: Lake) -> None:
    lake.ensure(ORDERS)
    layouts = [
        (),
        (PartitionField("placed", "year"),),
        (PartitionField("id", "bucket", 4),),
        (PartitionField("note", "truncate", 2), PartitionField("placed", "day")),
        (PartitionField("id", "bucket", 8),),
        (PartitionField("placed", "day"),),
    ]
    for number, layout in enumerate(layouts):
        assert lake.ensure(orders(partition=layout))
        add_orders(lake, TABLE, number)
        assert shape_of(lake.state(TABLE)).partition == layout
    assert ids(lake, TABLE) == list(range(len(layouts)))
    assert [row["id"] for row in duck_rows(lake, TABLE)] == list(range(len(layouts)))


def test_the_private_parts_of_pyiceberg_that_we_use_have_not_changed() -> None:
    """Compare lake/pyiceberg_internals.py and its users with the new PyIceberg when this fails."""
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from pyiceberg.manifest import DataFile, DataFileContent
    from pyiceberg.table import CommitTableRequest
    from pyiceberg.typedef import Record

    from thermocline.lake import pyiceberg_internals

    assert list(inspect.signature(SqlCatalog._update_and_stage_table).parameters) == [
        "self", "current_table", "table_identifier", "requirements", "updates",
    ]  # fmt: skip
    assert list(inspect.signature(SqlCatalog._write_metadata).parameters) == [
        "metadata", "io", "metadata_path",
    ]  # fmt: skip
    assert list(inspect.signature(SqlCatalog._load_file_io).parameters) == [
        "self", "properties", "location",
    ]  # fmt: skip
    pointer = f"s3://b/t/metadata/00041-{UUID(int=7)}.metadata.json"
    assert SqlCatalog._parse_metadata_version(pointer) == 41
    merging = inspect.signature(pyiceberg_internals.ManifestMergeManager).parameters
    assert list(merging) == [
        "target_size_bytes", "min_count_to_merge", "merge_enabled", "snapshot_producer",
    ]  # fmt: skip
    assert pyiceberg_internals.record_values(Record(1, "a")) == [1, "a"]
    file = DataFile.from_args(content=DataFileContent.DATA, file_path="f")
    assert pyiceberg_internals.data_file_values(file)[:2] == [DataFileContent.DATA, "f"]
    assert list(inspect.signature(RestCatalog.url).parameters)[:2] == ["self", "endpoint"]
    assert "_session" in RestCatalog.__annotations__
    assert list(CommitTableRequest.model_fields) == ["identifier", "requirements", "updates"]
    columns = IcebergTables.__table__.columns
    assert {column.name for column in columns} == {
        "catalog_name", "table_namespace", "table_name", "metadata_location",
        "previous_metadata_location", "iceberg_type",
    }  # fmt: skip
    assert [c.name for c in columns if c.primary_key] == [
        "catalog_name", "table_namespace", "table_name",
    ]  # fmt: skip

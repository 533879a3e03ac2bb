"""Changes of one small table, written by PyIceberg alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from thermocline.errors import BadInput, NotFound
from thermocline.lake.changes import (
    diff_snapshots,
    estimate_read_bytes,
    has_only_appends,
    read_rows,
)
from thermocline.lake.changeset import ChangedCell
from thermocline.lake.metadata import read_state

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "city", StringType()),
    NestedField(3, "amount", DecimalType(9, 2)),
)
ROWS = [
    {"id": 1, "city": "Bern", "amount": Decimal("1.00")},
    {"id": 2, "city": "Oslo", "amount": Decimal("2.00")},
    {"id": 3, "city": None, "amount": Decimal("3.00")},
]


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("silver")
    return catalog


@pytest.fixture
def orders(catalog: SqlCatalog) -> Table:
    return catalog.create_table("silver.orders", SCHEMA)


def put(table: Table, given: list[dict[str, Any]], **options: Any) -> int:
    """Append rows; the new snapshot's id."""
    return commit(table, lambda: table.append(arrow(table, given), **options))


def arrow(table: Table, given: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(given, schema=table.schema().as_arrow())


def commit(table: Table, write: Callable[[], object]) -> int:
    before = {s.snapshot_id for s in table.metadata.snapshots}
    write()
    table.refresh()
    return max(
        (s for s in table.metadata.snapshots if s.snapshot_id not in before),
        key=lambda s: s.sequence_number or 0,
    ).snapshot_id


def test_a_key_turns_delete_and_insert_into_an_update(orders: Table) -> None:
    first = put(orders, ROWS)
    new = [ROWS[0], {**ROWS[1], "city": "Rome"}, {"id": 4, "city": "", "amount": None}]
    second = commit(orders, lambda: orders.overwrite(arrow(orders, new)))

    found = diff_snapshots(orders, first, second, key=["id"])
    assert found.counts == {"inserts": 1, "updates": 1, "deletes": 1}
    assert found.inserts.to_pylist() == [new[2]]
    assert found.deletes.to_pylist() == [ROWS[2]]
    assert found.before.to_pylist() == [ROWS[1]]
    assert found.after.to_pylist() == [new[1]]
    assert list(found.changed_cells()) == [ChangedCell((2,), "city", "Oslo", "Rome")]

    without_key = diff_snapshots(orders, first, second)
    assert without_key.counts == {"inserts": 2, "updates": 0, "deletes": 2}
    assert list(without_key.changed_cells()) == []


def test_from_empty_is_all_rows_and_back_again(orders: Table) -> None:
    only = put(orders, ROWS)
    assert diff_snapshots(orders, None, only).inserts.to_pylist() == ROWS
    assert read_rows(orders, only, ["city"]).to_pylist() == [{"city": r["city"]} for r in ROWS]
    assert diff_snapshots(orders, only, only, key=["id"]).is_empty
    emptied = commit(orders, lambda: orders.delete("id > 0"))
    assert diff_snapshots(orders, only, emptied).deletes.to_pylist() == ROWS
    assert diff_snapshots(orders, emptied, only).inserts.to_pylist() == ROWS


def test_a_projection_ignores_what_changed_elsewhere(orders: Table) -> None:
    first = put(orders, ROWS)
    new = [{**ROWS[0], "city": "Rome"}, {**ROWS[1], "amount": Decimal("9.99")}, ROWS[2]]
    second = commit(orders, lambda: orders.overwrite(arrow(orders, new)))
    found = diff_snapshots(orders, first, second, key=["id"], columns=["amount"])
    assert found.columns == ["id", "amount"]
    assert found.after.to_pylist() == [{"id": 2, "amount": Decimal("9.99")}]
    assert found.counts == {"inserts": 0, "updates": 1, "deletes": 0}


def test_branches_are_compared_with_each_other(orders: Table) -> None:
    base = put(orders, ROWS[:1])
    orders.manage_snapshots().create_branch(base, "env-dev").commit()
    orders.refresh()
    on_main = put(orders, ROWS[1:2])
    on_branch = put(orders, ROWS[2:], branch="env-dev")
    found = diff_snapshots(orders, on_main, on_branch, key=["id"])
    assert found.inserts.to_pylist() == [ROWS[2]]
    assert found.deletes.to_pylist() == [ROWS[1]]
    assert not has_only_appends(orders, on_main, on_branch)
    assert has_only_appends(orders, base, on_branch)


def test_renamed_added_dropped_and_promoted_columns(catalog: SqlCatalog) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "qty", IntegerType()),
        NestedField(3, "old", StringType(), required=True),
        NestedField(4, "at", StructType(NestedField(5, "x", IntegerType()))),
    )
    table = catalog.create_table("silver.evolving", schema)
    first = put(table, [{"id": 1, "qty": 5, "old": "o", "at": {"x": 7}}])
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("qty", LongType())
        update.rename_column("qty", "quantity")
        update.add_column("note", StringType())
        update.delete_column("old")
        update.rename_column("at.x", "lon")
        update.add_column(("at", "lat"), IntegerType())
    big = {"id": 2, "quantity": 2**40, "note": "n", "at": {"lon": 1, "lat": 2}}
    second = put(table, [big])

    forward = diff_snapshots(table, None, second).inserts.sort_by("id")
    evolved = {"id": 1, "quantity": 5, "note": None, "at": {"lon": 7, "lat": None}}
    assert forward.to_pylist() == [evolved, big]
    assert diff_snapshots(table, first, second, key=["id"]).counts["inserts"] == 1

    # Back to the old schema: its names and columns, but the type that holds both sides, and null
    # where the newer file has no such column although it was required.
    back = diff_snapshots(table, second, first)
    assert back.deletes.to_pylist() == [{"id": 2, "qty": 2**40, "old": None, "at": {"x": 1}}]
    assert back.inserts.num_rows == 0


def test_a_snapshot_has_the_schema_it_was_written_with(orders: Table) -> None:
    head = put(orders, ROWS)
    with orders.update_schema() as update:
        update.add_column("note", StringType())
    orders.refresh()
    assert read_rows(orders, head).column_names == ["id", "city", "amount"]
    found = diff_snapshots(orders, None, head, schema=orders.schema())
    assert found.inserts.to_pylist() == [{**row, "note": None} for row in ROWS]
    only_new = diff_snapshots(orders, None, head, columns=["note"], schema=orders.schema())
    assert only_new.inserts.to_pylist() == [{"note": None}] * 3


def test_only_files_that_differ_are_read(catalog: SqlCatalog, tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city"))
    table = catalog.create_table("silver.cities", SCHEMA, partition_spec=spec)
    first = put(table, ROWS)
    second = put(table, [{"id": 4, "city": "Oslo", "amount": None}])
    third = commit(table, lambda: table.delete(EqualTo("city", "Bern")))
    sizes = {
        task.file.file_path: task.file.file_size_in_bytes
        for snapshot in (first, second)
        for task in table.scan(snapshot_id=snapshot).plan_files()
    }
    added = sizes.keys() - {t.file.file_path for t in table.scan(snapshot_id=first).plan_files()}
    assert estimate_read_bytes(table, first, second) == sum(sizes[path] for path in added)
    assert estimate_read_bytes(table, None, second) == sum(sizes.values())
    assert estimate_read_bytes(table, second, second) == 0
    # The proof: everything else may be gone.
    for path in sizes.keys() - added:
        Path(path.removeprefix("file://")).unlink()
    assert [r["id"] for r in diff_snapshots(table, first, second).inserts.to_pylist()] == [4]
    with pytest.raises(FileNotFoundError):
        diff_snapshots(table, second, third)


def test_only_appends_reads_the_light_state_too(orders: Table) -> None:
    first = put(orders, ROWS[:1])
    second = put(orders, ROWS[1:])
    third = commit(orders, lambda: orders.delete("id = 2"))
    state = read_state("silver.orders", orders.metadata_location)
    for source in (orders, state):
        assert has_only_appends(source, None, second)
        assert has_only_appends(source, first, second)
        assert has_only_appends(source, third, third)
        assert not has_only_appends(source, first, third)
        assert not has_only_appends(source, second, first)


def test_unknown_snapshots_and_columns_are_named(orders: Table) -> None:
    head = put(orders, ROWS)
    with pytest.raises(NotFound, match="no snapshot 42"):
        diff_snapshots(orders, 42, head)
    with pytest.raises(NotFound, match="no snapshot 42"):
        estimate_read_bytes(orders, head, 42)
    with pytest.raises(BadInput, match="no column colour") as caught:
        diff_snapshots(orders, None, head, key=["colour"])
    assert caught.value.next_step == "Its columns are id, city, amount."


def test_a_change_set_shows_itself(orders: Table) -> None:
    first = put(orders, ROWS[:2])
    new = [{**ROWS[0], "city": "<b>Rome</b>"}]
    second = commit(orders, lambda: orders.overwrite(arrow(orders, new)))
    found = diff_snapshots(orders, first, second, key=["id"])
    assert json.loads(json.dumps(found.as_dict())) == {
        "table": "silver.orders",
        "start": first,
        "end": second,
        "key": ["id"],
        "columns": ["id", "city", "amount"],
        "counts": {"inserts": 0, "updates": 1, "deletes": 1},
        "inserts": [],
        "updates": [
            {
                "before": {"id": 1, "city": "Bern", "amount": "1.00"},
                "after": {"id": 1, "city": "<b>Rome</b>", "amount": "1.00"},
            }
        ],
        "deletes": [{"id": 2, "city": "Oslo", "amount": "2.00"}],
    }
    assert found.as_dict(limit=0)["counts"] == found.counts
    shown = found._repr_html_()
    assert "<s>Bern</s> &lt;b&gt;Rome&lt;/b&gt;" in shown and "<b>" not in shown
    assert "silver.orders" in repr(found) and "1 updates" in repr(found)
    listed = found.to_arrow().select(["change", "id", "city"]).to_pylist()
    assert listed == [
        {"change": "delete", "id": 2, "city": "Oslo"},
        {"change": "before", "id": 1, "city": "Bern"},
        {"change": "after", "id": 1, "city": "<b>Rome</b>"},
    ]
    assert found.to_polars().rows() == list(found.to_pandas().itertuples(index=False, name=None))


def test_a_column_named_change_stays_beside_the_kind_of_change(catalog: SqlCatalog) -> None:
    table = catalog.create_table("silver.moves", Schema(NestedField(1, "change", StringType())))
    found = diff_snapshots(table, None, put(table, [{"change": "left"}]))
    assert found.to_arrow().to_pylist() == [{"_change": "insert", "change": "left"}]


def test_names_with_dots_and_spaces(catalog: SqlCatalog) -> None:
    schema = Schema(
        NestedField(1, "a", StructType(NestedField(2, "b", StringType()))),
        NestedField(3, "a b", LongType()),
        NestedField(4, "größe.x", StringType()),
    )
    table = catalog.create_table("silver.odd", schema)
    given = [{"a": {"b": "1"}, "a b": 2, "größe.x": "3"}]
    head = put(table, given)
    assert read_rows(table, head).to_pylist() == given
    assert read_rows(table, head, ["größe.x"]).to_pylist() == [{"größe.x": "3"}]


def test_a_file_with_null_lists_of_structs_keeps_them(catalog: SqlCatalog, tmp_path: Path) -> None:
    """PyIceberg's own reader gives an empty list instead."""
    import pyarrow.parquet as pq

    item = StructType(NestedField(4, "sku", StringType()))
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "items", ListType(3, item, element_required=False)),
    )
    table = catalog.create_table("silver.baskets", schema)
    given = [{"id": 1, "items": None}, {"id": 2, "items": []}, {"id": 3, "items": [None]}]
    given.append({"id": 4, "items": [{"sku": None}, {"sku": "a"}]})
    path = tmp_path / "given.parquet"
    kind = pa.list_(pa.struct([("sku", pa.string())]))
    pq.write_table(pa.Table.from_pylist(given, pa.schema([("id", "int64"), ("items", kind)])), path)
    head = commit(table, lambda: table.add_files([path.as_uri()]))
    assert read_rows(table, head).to_pylist() == given

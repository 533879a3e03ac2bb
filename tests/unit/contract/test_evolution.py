"""How a table may become what its contract says, and how not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from thermocline.contract import (
    AddColumn,
    ChangeKey,
    ChangePartitioning,
    ChangeSortOrder,
    Column,
    Contract,
    DriftMode,
    DropColumn,
    MakeOptional,
    PartitionField,
    PromoteType,
    RenameColumn,
    ReorderColumns,
    SetDoc,
    SortField,
    TableShape,
    WriteMode,
    parse_type,
)
from thermocline.contract.evolution import plan_evolution
from thermocline.contract.types import Decimal, Field, List, Primitive, Struct
from thermocline.errors import ContractError


def column(name: str, type_: str = "string", **more) -> Column:
    return Column(name, parse_type(type_), **more)


def contract(*columns: Column, **more) -> Contract:
    path = Path("contracts/silver/orders.odcs.yaml")
    return Contract("silver.orders", columns, path=path, line=6, **more)


ORDER_ID = column("order_id", required=True)
AT = column("at", "timestamptz")
TOTAL = column("total", "decimal(12,2)")
TABLE = TableShape(
    (ORDER_ID, AT, TOTAL), ("order_id",), (PartitionField("at", "day"),), (SortField("at", True),)
)
AS_IS = contract(
    ORDER_ID, AT, TOTAL, key=TABLE.key, partition=TABLE.partition, sort=TABLE.sort
)  # fmt: skip


def changes(wanted: Contract, current: TableShape = TABLE) -> list[str]:
    evolution = plan_evolution(current, wanted)
    assert evolution.problems == ()
    after = evolution.apply(current)
    assert plan_evolution(after, wanted).changes == (), (
        "applied changes must not be asked for again"
    )
    return [str(change) for change in evolution.changes]


def problems(wanted: Contract, current: TableShape = TABLE) -> list[str]:
    return [str(problem) for problem in plan_evolution(current, wanted).problems]


def test_a_table_that_is_as_its_contract_says_needs_nothing():
    assert changes(AS_IS) == []


def test_each_kind_of_change():
    wanted = contract(
        column("id", required=False, renamed_from="order_id"),
        column("total", "decimal(14,2)", doc="net"),
        column("note"),
        column("at", "timestamptz", required=False),
        dropped=("old",),
        partition=(PartitionField("at", "month"),),
        sort=(SortField("id"),),
    )
    current = replace(TABLE, columns=(*TABLE.columns, column("old", "int")))
    assert plan_evolution(current, wanted).changes == (
        RenameColumn(("order_id",), "id"),
        ChangeKey(("id",), ()),
        MakeOptional(("id",)),
        PromoteType(("total",), Decimal(12, 2), Decimal(14, 2)),
        SetDoc(("total",), "net"),
        AddColumn(("note",), Primitive("string")),
        ChangePartitioning((PartitionField("at", "day"),), (PartitionField("at", "month"),)),
        ChangeSortOrder((SortField("at", True),), (SortField("id"),)),
        DropColumn(("old",)),
        ReorderColumns((), ("id", "total", "note", "at")),
    )
    assert changes(wanted, current) == [
        "rename order_id to id",
        "key (id) → ()",
        "allow nulls in id",
        "widen total: decimal(12,2) → decimal(14,2)",
        "describe total",
        "add note string",
        "partition by (day(at)) → (month(at))",
        "sort by (at desc) → (id)",
        "drop old",
        "reorder: id, total, note, at",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [("int", "long"), ("float", "double"), ("decimal(9,2)", "decimal(38,2)")],
)
def test_promotions(old, new):
    current, wanted = TableShape((column("x", old),)), contract(column("x", new))
    assert changes(wanted, current) == [f"widen x: {old} → {new}"]
    back = problems(contract(column("x", old)), TableShape((column("x", new),)))
    file = "contracts/silver/orders.odcs.yaml"
    assert back == [f"{file}:6  x: {new} → {old} narrows; declare it as a new column"]


@pytest.mark.parametrize(
    ("old", "new", "verb"),
    [
        ("string", "int", "is another type"),
        ("int", "double", "is another type"),
        ("int", "decimal(10,0)", "is another type"),
        ("date", "timestamp", "is another type"),
        ("timestamp", "timestamptz", "is another type"),
        ("decimal(12,2)", "decimal(14,4)", "changes the scale"),
        ("fixed[4]", "fixed[8]", "is another type"),
        ("list<int>", "int", "is another type"),
        ("struct<a: int>", "map<string, int>", "is another type"),
    ],
)
def test_other_types_are_refused(old, new, verb):
    evolution = plan_evolution(TableShape((column("x", old),)), contract(column("x", new, line=9)))
    assert evolution.changes == ()
    assert [str(problem) for problem in evolution.problems] == [
        f"contracts/silver/orders.odcs.yaml:9  x: {old} → {new} {verb}; declare it as a new column"
    ]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (contract(ORDER_ID, AT, key=("order_id",)),
         ":6  total: is in the table but not in the contract; keep it, or list total under "
         "dropped"),
        (contract(ORDER_ID, AT, replace(TOTAL, required=True, line=9)),
         ":9  total: cannot become required; stored rows may have nulls; keep it optional "
         "and add a nullValues rule"),
        (contract(ORDER_ID, AT, TOTAL, column("new", required=True, line=9)),
         ":9  new: a new column cannot be required; stored rows have no value for it; add it as "
         "optional"),
        (contract(ORDER_ID, AT, TOTAL, write=WriteMode.SCD2, key=("order_id",)),
         ":6  _valid_from: the table has no history; create a new table for scd2"),
        (contract(ORDER_ID, AT, column("total", "decimal(12,2)", renamed_from="at", line=9)),
         ":9  total: renamed from at, which the contract still has; remove renamedFrom once the "
         "rename has been applied"),
        (contract(ORDER_ID, column("total", "decimal(12,2)", renamed_from="at", line=9)),
         ":9  total: renamed from at, but the table has both; remove renamedFrom, and list at "
         "under dropped"),
        (contract(ORDER_ID, AT, column("Total", "decimal(12,2)", line=9)),
         ":9  Total: differs from total only by case; declare renamedFrom: total"),
        (contract(AT, TOTAL, dropped=("order_id",)),
         ":6  order_id: is part of the key and cannot be dropped"),
        (contract(ORDER_ID, TOTAL, dropped=("at",)),
         ":6  at: is a partition column and cannot be dropped; partition by other columns first, "
         "and drop it in a later version"),
        (contract(ORDER_ID, AT, column("a", "decimal(12,2)", renamed_from="total"),
                  column("b", "decimal(12,2)", renamed_from="total", line=9)),
         ":9  b: renamed from total, as is a"),
    ],
)  # fmt: skip
def test_what_is_refused(wanted, expected):
    assert problems(wanted)[0] == f"contracts/silver/orders.odcs.yaml{expected}"


def test_nothing_is_applied_when_something_is_refused():
    wanted = contract(ORDER_ID, AT, column("total", "decimal(10,2)", line=31), column("new"))
    evolution = plan_evolution(TABLE, wanted)
    with pytest.raises(ContractError) as caught:
        evolution.apply(TABLE)
    assert str(caught.value).splitlines() == [
        "contracts/silver/orders.odcs.yaml:31  total: decimal(12,2) → decimal(10,2) narrows; "
        "declare it as a new column",
        "  Fix this problem in the contract. Nothing was written.",
    ]


def test_a_rename_and_a_drop_that_were_applied_are_nothing():
    wanted = contract(ORDER_ID, AT, column("net", "decimal(12,2)", renamed_from="total"),
                      key=TABLE.key, partition=TABLE.partition, sort=TABLE.sort,
                      dropped=("note",))  # fmt: skip
    current = replace(TABLE, columns=(*TABLE.columns, column("note")))
    assert changes(wanted, current) == ["rename total to net", "drop note"]
    after = plan_evolution(current, wanted).apply(current)
    assert [c.name for c in after.columns] == ["order_id", "at", "net"]
    assert plan_evolution(after, wanted).changes == ()


def test_a_renamed_column_keeps_its_place_in_key_partition_and_sort():
    wanted = contract(
        column("id", required=True, renamed_from="order_id"),
        column("moment", "timestamptz", renamed_from="at"),
        TOTAL,
        key=("id",),
        partition=(PartitionField("moment", "day"),),
        sort=(SortField("moment", True),),
    )
    assert changes(wanted) == ["rename order_id to id", "rename at to moment"]


def test_a_name_may_differ_by_case_when_the_rename_is_declared():
    wanted = replace(AS_IS, columns=(ORDER_ID, AT, column("Total", "decimal(12,2)",
                                                          renamed_from="total")))  # fmt: skip
    assert changes(wanted) == ["rename total to Total"]


def test_the_order_of_key_columns_is_no_change():
    columns = (column("a", required=True), column("b", required=True))
    assert changes(contract(*columns, key=("b", "a")), TableShape(columns, ("a", "b"))) == []


def test_columns_that_drift_added_stay_behind_the_contracts_own():
    wanted = replace(AS_IS, drift=DriftMode.ADD, columns=(*AS_IS.columns, column("later")))
    current = replace(TABLE, columns=(*TABLE.columns, column("found")))
    assert changes(wanted, current) == ["add later string", "reorder: order_id, at, total, later, "
                                        "found"]  # fmt: skip
    assert changes(replace(wanted, dropped=("found",)), current) == [
        "add later string", "drop found",
    ]  # fmt: skip


NESTED = TableShape(
    (column("items", "list<struct<sku: string not null, price: decimal(8,2), old: int> not null>"),
     column("by_day", "map<string, struct<n: int> not null>"))
)  # fmt: skip


def test_changes_inside_columns():
    wanted = contract(
        Column(
            "items",
            List(
                Struct(
                    (
                        Field("price", Decimal(10, 2)),
                        Field("code", Primitive("string"), renamed_from="sku", doc="stock unit"),
                        Field("note", Primitive("string")),
                    )
                )
            ),
        ),
        column("by_day", "map<string, struct<n: long>>"),
        dropped=("items.element.old",),
    )
    assert changes(wanted, NESTED) == [
        "rename items.element.sku to code",
        "allow nulls in items.element",
        "allow nulls in items.element.code",
        "allow nulls in by_day.value",
        "widen items.element.price: decimal(8,2) → decimal(10,2)",
        "widen by_day.value.n: int → long",
        "describe items.element.code",
        "add items.element.note string",
        "drop items.element.old",
        "reorder inside items.element: price, code, note",
    ]


def test_refusals_inside_columns():
    wanted = contract(
        column("items", "list<struct<sku: string not null, price: float, x: int not null> "
               "not null>", line=8),
        column("by_day", "map<int, struct<n: int not null> not null>", line=9),
    )  # fmt: skip
    assert [text.split("odcs.yaml", 1)[1].split(";")[0] for text in problems(wanted, NESTED)] == [
        ":8  items.element.price: decimal(8,2) → float is another type",
        ":8  items.element.x: a new column cannot be required",
        ":8  items.element.old: is in the table but not in the contract",
        ":9  by_day.key: string → int changes a map's key",
        ":9  by_day.value.n: cannot become required",
    ]


def test_a_new_struct_may_have_required_fields():
    wanted = replace(
        AS_IS, columns=(*AS_IS.columns, column("where", "struct<lat: double not null>"))
    )
    assert changes(wanted) == ["add where struct<lat: double not null>"]

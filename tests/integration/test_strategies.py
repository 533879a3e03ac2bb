"""Each write strategy in the cases that a user would name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.engines import Writer, writer

from thermocline.contract import Contract
from thermocline.contract.definition import Column, PartitionField, UpdateMode, WriteMode
from thermocline.contract.types import Decimal as DecimalType
from thermocline.contract.types import Field, Fixed, List, Map, Primitive, Struct
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.engine.spark_types import to_ddl
from thermocline.errors import CheckFailed, ContractError
from thermocline.lake import bookmark as bookmarks
from thermocline.transform import tombstones

if TYPE_CHECKING:
    from thermocline.lake import Lake

__all__ = ["writer"]

ORDERS = (
    Column("id", Primitive("string"), required=True),
    Column("day", Primitive("date")),
    Column("amount", DecimalType(8, 2), required=True),
    Column("version", Primitive("long")),
)
JAN, FEB, MAR = date(2026, 1, 1), date(2026, 2, 1), date(2026, 3, 1)


def orders(write: WriteMode, **more: Any) -> Contract:
    """A small table of orders."""
    return Contract(table="silver.orders", columns=ORDERS, write=write, **more)


def put(writer: Writer, contract: Contract, select: str, **how: Any) -> None:
    """Write what a query gives, in a run of its own, and publish it."""
    lake = writer.lake
    companion = tombstones.derive_companion(contract)
    wanted = [contract] if companion is None else [companion, contract]
    for each in wanted:
        lake.ensure(each)
    draft = lake.draft(f"run{len(lake.state(contract.table).snapshots)}")
    draft.begin(*(each.table for each in wanted))
    writer.write(select, contract, draft, bookmark={"source": select}, **how)
    draft.publish()


def content(
    writer: Writer, columns: str = "*", table: str = "silver.orders"
) -> list[tuple[Any, ...]]:
    """What a reader of main sees, sorted; a reader on the other engine than wrote it."""
    lake = writer.lake
    if writer.engine == "duckdb":
        rows = lake.spark.session.sql(f"select {columns} from lake.{table}").collect()
    else:
        state = lake.state(table)
        lake.duck.view("t", state.metadata_location, state.head() or 0)
        rows = lake.duck.connection.execute(f"select {columns} from t").fetchall()
    return sorted(tuple(row) for row in rows)


def values(rows: Sequence[str]) -> str:
    """Orders as a query that also gives the operation, as change data capture does."""
    return f"select * from (values {', '.join(rows)}) as t(id, day, amount, version, _op)"


def summary(writer: Writer, table: str = "silver.orders") -> dict[str, str]:
    """The summary of main's newest snapshot."""
    state = writer.lake.state(table)
    head = state.head()
    assert head is not None
    return dict(state.snapshot(head).summary)


def marked(writer: Writer, table: str = "silver.orders") -> Any:
    """The bookmark that main carries."""
    return bookmarks.read(writer.lake.state(table), "main")["source"]


A = "('a', date'2026-01-01', '1.50', 1, 'u')"
B = "('b', date'2026-02-01', '2.00', 1, 'u')"


def test_append_adds_and_a_full_refresh_replaces(writer: Writer) -> None:
    contract = orders(WriteMode.APPEND)
    put(writer, contract, values([A]))
    put(writer, contract, values([A, B]))
    assert content(writer, "id, day, amount") == [
        ("a", JAN, Decimal("1.50")),
        ("a", JAN, Decimal("1.50")),
        ("b", FEB, Decimal("2.00")),
    ]
    put(writer, contract, values([B]), full=True)
    assert content(writer, "id") == [("b",)]


def test_replace_keeps_what_was_there_in_the_history(writer: Writer) -> None:
    contract = orders(WriteMode.REPLACE)
    put(writer, contract, values([A]))
    lake = writer.lake
    before = lake.state(contract.table).head()
    put(writer, contract, values([B]))
    assert content(writer, "id") == [("b",)]
    old = lake.spark.session.read.option("versionAsOf", str(before)).table("lake.silver.orders")
    assert [row.id for row in old.collect()] == ["a"]


def test_partitions_without_a_row_are_emptied_and_others_stay(writer: Writer) -> None:
    contract = orders(WriteMode.PARTITIONS, partition=(PartitionField("day"),))
    put(writer, contract, values([A, B, "('c', date'2026-03-01', '3', 1, 'u')"]))
    put(
        writer,
        contract,
        values(["('a2', date'2026-01-01', '9', 1, 'u')"]),
        computed=[{"day": JAN}, {"day": FEB}, {"day": None}],
    )
    assert content(writer, "id, day") == [("a2", JAN), ("c", MAR)]
    nothing = values([A]) + " where false"
    put(writer, contract, nothing, computed=[{"day": MAR}])
    assert content(writer, "id, day") == [("a2", JAN)]
    assert marked(writer) == nothing


def test_partitions_that_are_not_named_are_those_of_the_rows(writer: Writer) -> None:
    contract = orders(WriteMode.PARTITIONS, partition=(PartitionField("day", "month"),))
    put(writer, contract, values([A, B]))
    put(writer, contract, values(["('a2', date'2026-01-31', '9', 1, 'u')"]))
    assert content(writer, "id") == [("a2",), ("b",)]
    nothing = values([A]) + " where false"
    put(writer, contract, nothing)
    assert content(writer, "id") == [("a2",), ("b",)]
    assert marked(writer) == nothing, "an empty result still moves the bookmark"


def test_a_row_outside_the_computed_partitions_is_refused(writer: Writer) -> None:
    contract = orders(WriteMode.PARTITIONS, partition=(PartitionField("day"),))
    put(writer, contract, values([A, B]))
    with pytest.raises(CheckFailed, match=r'outside the partitions.*\{"day":"2026-02-01"\}'):
        put(writer, contract, values([B]), computed=[{"day": JAN}])
    assert content(writer, "id") == [("a",), ("b",)]


@pytest.mark.parametrize("updates", list(UpdateMode))
def test_state_is_upserted_and_affected_keys_without_a_row_go(
    writer: Writer, updates: UpdateMode
) -> None:
    contract = orders(WriteMode.MERGE, key=("id",), updates=updates)
    put(writer, contract, values([A, B, "('c', null, '3', 1, 'u')"]))
    put(
        writer,
        contract,
        values(["('a', date'2026-03-01', '7', 2, 'u')", "('d', null, '4', 1, 'u')"]),
        affected=["a", "b", "b", "d", "x"],
    )
    assert content(writer, "id, amount, version") == [
        ("a", Decimal("7.00"), 2),
        ("c", Decimal("3.00"), 1),
        ("d", Decimal("4.00"), 1),
    ]
    assert not writer.lake.exists("silver.orders__tombstones")
    put(writer, contract, values([B]), full=True)
    assert content(writer, "id") == [("b",)]


def test_two_states_of_one_key_are_refused_by_name(writer: Writer) -> None:
    contract = orders(WriteMode.MERGE, key=("id",))
    put(writer, contract, values([A]))
    with pytest.raises(CheckFailed, match=r'several rows for the key \{"id":"b"\}'):
        put(writer, contract, values([A, B, B]))
    assert content(writer, "id") == [("a",)]


def test_a_late_row_does_not_raise_the_dead(writer: Writer) -> None:
    contract = orders(WriteMode.MERGE, key=("id",), order_by=("version",), delete_when="_op = 'd'")
    put(writer, contract, values(["('a', null, '1', 5, 'u')"]))
    put(writer, contract, values(["('a', null, null, 7, 'd')", "('b', null, null, 3, 'd')"]))
    put(writer, contract, values(["('a', null, '2', 6, 'u')", "('b', null, '2', 3, 'u')"]))
    assert content(writer) == []
    assert content(writer, table="silver.orders__tombstones") == [("a", 7), ("b", 3)]
    put(writer, contract, values(["('a', null, '3', 8, 'u')", "('b', null, '3', null, 'u')"]))
    assert content(writer, "id, version") == [("a", 8)]
    put(writer, contract, values([A, "('b', null, null, 1, 'd')"]), full=True)
    assert content(writer, "id, version") == [("a", 1)]
    assert content(writer, table="silver.orders__tombstones") == [("b", 1)]


@pytest.mark.parametrize("updates", list(UpdateMode))
def test_rows_that_change_nothing_are_not_written(writer: Writer, updates: UpdateMode) -> None:
    contract = orders(WriteMode.MERGE, key=("id",), order_by=("version",), updates=updates)
    put(writer, contract, values([A, B]))
    again = values([A, A, "('b', date'2026-05-05', '9', 0, 'u')"])
    put(writer, contract, again)
    assert "added-data-files" not in summary(writer)
    assert "deleted-data-files" not in summary(writer)
    assert marked(writer) == again
    put(writer, contract, values([A, "('c', null, '3', 1, 'u')"]))
    assert summary(writer)["added-records"] == "1", "a new key is appended, nothing is rewritten"
    assert content(writer, "id, amount") == [
        ("a", Decimal("1.50")),
        ("b", Decimal("2.00")),
        ("c", Decimal("3.00")),
    ]


def test_ties_are_decided_by_content_also_where_there_are_maps(lake: Lake) -> None:
    writer = Writer(lake, "spark")
    contract = Contract(
        table="silver.orders",
        columns=(
            Column("id", Primitive("uuid"), required=True),
            Column("labels", Map(Primitive("string"), Primitive("timestamptz"))),
            Column("version", Primitive("long")),
        ),
        key=("id",),
        write=WriteMode.MERGE,
        order_by=("version",),
    )
    key = "'0F8FAD5B-D9CB-469F-A165-70867728950E'"
    late = f"select {key} id, map('k', timestamp'2026-01-01 00:00:00.000002') labels, 1 version"
    early = f"select {key} id, map('k', timestamp'2026-01-01 00:00:00.000001') labels, 1 version"
    for first, second in ((late, early), (early, late)):
        put(writer, contract, first, full=True)
        put(writer, contract, second)
        assert content(writer, "cast(id as varchar), microsecond(labels['k'])") == [
            ("0f8fad5b-d9cb-469f-a165-70867728950e", 2)
        ]
    told = f"select {key} id, map(['k'], [timestamptz'2026-01-01']) labels, 1 as version"
    with pytest.raises(UnsupportedByDuckDB, match="labels holds a map"):
        put(Writer(lake, "duckdb"), contract, told)


@pytest.mark.parametrize("updates", list(UpdateMode))
def test_history_is_split_by_late_rows(writer: Writer, updates: UpdateMode) -> None:
    contract = Contract(
        table="silver.customers",
        columns=(
            Column("id", Primitive("long"), required=True),
            Column("since", Primitive("date"), required=True),
            Column("city", Primitive("string")),
        ),
        key=("id",),
        write=WriteMode.SCD2,
        order_by=("since",),
        delete_when="gone",
        updates=updates,
    )

    def history() -> list[tuple[Any, ...]]:
        shown = "city, month(_valid_from), month(_valid_to), _is_current"
        rows = content(writer, f"_valid_from, {shown}", "silver.customers")
        return [row[1:] for row in rows]

    def event(month: int, city: str | None) -> str:
        what = "null city, true gone" if city is None else f"'{city}' city, false gone"
        return f"select 1 id, date'2026-{month:02}-01' since, {what}"

    put(writer, contract, f"{event(1, 'Oslo')} union all {event(9, 'Oslo')}")
    assert history() == [("Oslo", 1, None, True)]
    put(writer, contract, event(5, "Rome"))
    assert history() == [("Oslo", 1, 5, False), ("Rome", 5, 9, False), ("Oslo", 9, None, True)]
    put(writer, contract, f"{event(7, None)} union all {event(12, None)}")
    assert history() == [("Oslo", 1, 5, False), ("Rome", 5, 7, False), ("Oslo", 9, 12, False)]
    put(writer, contract, event(8, "Oslo"))
    assert history() == [("Oslo", 1, 5, False), ("Rome", 5, 7, False), ("Oslo", 8, 12, False)]
    put(writer, contract, event(5, "Rome"))
    assert "added-data-files" not in summary(writer, "silver.customers")
    put(writer, contract, event(3, "Bonn"), full=True)
    assert history() == [("Bonn", 3, None, True)]
    assert content(writer, table="silver.customers__tombstones") == []


def test_history_needs_a_time(writer: Writer) -> None:
    columns = (*ORDERS, Column("at", Primitive("timestamptz")))
    contract = Contract(
        table="silver.orders",
        columns=columns,
        key=("id",),
        write=WriteMode.SCD2,
        order_by=("version",),
    )
    with pytest.raises(ContractError, match="begin with a date or timestamp column"):
        put(writer, contract, "select 1")


KEYED = orders(WriteMode.MERGE, key=("id",), order_by=("version",))


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        (
            "(null, null, '1', 1, 'u')",
            CheckFailed,
            r'1 rows have no id: \{"amount":1.00,"version":1',
        ),
        (
            "('x', null, cast(null as string), 1, 'u')",
            CheckFailed,
            r"amount is null in 1 rows.*\"id\":\"x\"",
        ),
        ("('x', null, 'oops', 1, 'u')", CheckFailed, r"amount: 1 values are no decimal.*'oops'"),
        (
            "('x', null, '1234567.1', 1, 'u')",
            CheckFailed,
            r"amount: 1 values are no decimal\(8,2\)",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(
    writer: Writer, rows: str, error: type[Exception], said: str
) -> None:
    put(writer, KEYED, values([A]))
    with pytest.raises(error, match=said):
        put(writer, KEYED, values([rows]))
    assert content(writer, "id") == [("a",)]


def test_missing_columns_are_all_named(writer: Writer) -> None:
    with pytest.raises(ContractError) as caught:
        put(writer, KEYED, "select 'a' as id, 1 as version")
    assert caught.value.problems == [
        "silver.orders: the model's output has no column day.",
        "silver.orders: the model's output has no column amount.",
    ]


def test_members_of_structs_are_matched_by_name(writer: Writer) -> None:
    address = Struct((Field("street", Primitive("string")), Field("number", Primitive("long"))))
    contract = Contract(
        table="silver.orders",
        columns=(
            Column("home", address),
            Column("others", List(address)),
            Column("byname", Map(Primitive("string"), address)),
        ),
    )
    if writer.engine == "spark":
        place = "named_struct('number', '7', 'extra', true, 'street', 'Elm')"
        nested = f"{place} as home, array({place}, null) as others, map('k', {place}) as byname"
    else:
        place = "{'number': '7', 'extra': true, 'street': 'Elm'}"
        nested = f"{place} as home, [{place}, null] as others, map(['k'], [{place}]) as byname"
    put(writer, contract, f"select {nested} union all select null, null, null")
    shown = "home.street, home.number, others[0].street, byname['k'].number, size(others)"
    session = writer.lake.spark.session
    found = session.sql(f"select {shown} from lake.silver.orders order by 1 nulls last")
    assert [tuple(row) for row in found.collect()] == [
        ("Elm", 7, "Elm", 7, 2),
        (None, None, None, None, None),
    ]


def test_times_of_day_have_no_type_in_spark() -> None:
    assert (
        to_ddl(Map(Primitive("string"), List(DecimalType(9, 2))))
        == "map<string,array<decimal(9,2)>>"
    )
    assert to_ddl(Struct((Field("a`b", Fixed(4)),))) == "struct<`a``b`:binary>"
    assert to_ddl(Primitive("timestamp")) == "timestamp_ntz"
    with pytest.raises(ContractError, match="no type for Iceberg's time"):
        to_ddl(Primitive("time"))

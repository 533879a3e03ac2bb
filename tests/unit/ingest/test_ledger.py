from __future__ import annotations

import pytest

from thermocline.contract.definition import Column, Contract, DriftMode
from thermocline.contract.types import Primitive
from thermocline.ingest import drift
from thermocline.ingest.inspection import InspectedFile
from thermocline.ingest.landing import LandingFile
from thermocline.ingest.layout import Layout
from thermocline.ingest.ledger import CarriedLedger, Ledger, make_bookmark
from thermocline.ingest.source import Source, TextOptions
from thermocline.lake.carried_state import CarriedState, extend_state
from thermocline.lake.consumption import Consumption, LandedFile
from thermocline.lake.digest_runs import RunFiles

STRING = Primitive("string")
TABLE = Contract("bronze.a", (Column("a", STRING), Column("b", STRING)), drift=DriftMode.ADD)


def file(name: str = "a.csv", size: int = 1, modified: int = 1) -> LandingFile:
    return LandingFile(name, size, modified, f"/in/{name}")


def test_a_bookmark_counts_files_and_the_record_names_them() -> None:
    inspected = [InspectedFile(file("x", 5, 7), "ab")]
    assert make_bookmark(inspected) == {"landed": 1}
    assert Ledger().make_consumed(inspected).files == (LandedFile("ab", "x", 5, 7),)


def test_a_file_is_known_unread_only_while_nothing_of_it_changed() -> None:
    runs = RunFiles("bronze.a", "/nowhere", lambda: pytest.fail("no run is needed"))
    state = extend_state(runs, CarriedState(), Consumption((LandedFile("ab", "x", 5, 7),)))
    ledger = CarriedLedger(runs=runs, state=state)
    assert ledger.filter_unread([file("x", 5, 7)]) == []
    assert ledger.filter_unread([file("x", 5, 8)]) == [file("x", 5, 8)]
    assert ledger.filter_unread([file("x", 6, 7)]) == [file("x", 6, 7)]
    assert ledger.filter_unread([file("y", 5, 7)]) == [file("y", 5, 7)]
    assert ledger.find_landed([InspectedFile(file("other"), "ab")]) == {"ab"}


def test_where_bookmarks_have_expired_name_and_age_decide() -> None:
    ledger = Ledger(names_before_expiry=frozenset({"x"}), expired_ns=100)
    assert ledger.filter_unread([file("x", modified=100)]) == []
    assert ledger.filter_unread([file("x", modified=101)]) == [file("x", modified=101)]
    assert ledger.filter_unread([file("y", modified=1)]) == [file("y", modified=1)]


def test_added_columns_have_usable_names() -> None:
    found = dict.fromkeys(["new", "A", "_own", "with space", "x.y", "_file", "z" * 300], STRING)
    assert [column.name for column in drift.add_columns(TABLE, found).columns] == ["a", "b", "new"]


def test_a_batch_adds_a_bounded_number_of_columns() -> None:
    found = dict.fromkeys((f"k{n:04}" for n in range(1000)), STRING)
    assert len(drift.add_columns(TABLE, found).columns) == 2 + drift.MAX_ADDED_COLUMNS


def test_a_refusal_names_the_first_fields() -> None:
    said = drift.explain_refusal([f"f{n:02}" for n in range(12)], TABLE)
    assert "fields that bronze.a does not name: f00, f01" in said
    assert "f09 and 2 more; add" in said


def test_a_layout_survives_quarantine() -> None:
    source = Source("a", "/in", "bronze.a", options=TextOptions(delimiter="|", escape="\\"))
    inspected = InspectedFile(file(), "ab", "csv", fields=("x", "é"))
    layout = Layout.from_file(inspected, source, TABLE)
    assert Layout.read(layout.to_json()) == layout
    assert Layout.read(Layout("parquet", schema="a: int").to_json()) == Layout("jsonl")


def test_without_a_header_the_contract_names_the_fields() -> None:
    source = Source("a", "/in", "bronze.a", options=TextOptions(header=False))
    assert Layout.from_file(InspectedFile(file(), "ab", "csv"), source, TABLE).fields == ("a", "b")

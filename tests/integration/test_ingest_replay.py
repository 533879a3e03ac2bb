"""Quarantined rows on their way back: mended or judged anew, each through at most once."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from thermocline.contract.definition import Column, Contract, Drift, Rule
from thermocline.contract.types import Decimal, List, Primitive
from thermocline.errors import BadInput
from thermocline.ingest import quarantine
from thermocline.ingest.files import ingest
from thermocline.ingest.quarantine import ReplayReport
from thermocline.ingest.source import Source
from thermocline.lake.names import new_run_id

if TYPE_CHECKING:
    from thermocline.lake import Lake

ORDERS = Contract(
    "bronze.raw_orders",
    (
        Column("order_id", Primitive("string"), required=True),
        Column("qty", Primitive("int")),
        Column("total", Decimal(12, 2)),
        Column("tags", List(Primitive("int"))),
    ),
    rules=(Rule("range", ("qty",), (("max", 10),)),),
)


class Kept:
    """A lake with rows in quarantine."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self.lake = lake
        self.folder = folder
        self.source = Source("orders", str(folder), "bronze.raw_orders", bad_share=1.0)

    def ingest(self, contract: Contract = ORDERS) -> None:
        ingest(self.lake, self.source, contract, run=new_run_id())

    def replay(
        self, contract: Contract = ORDERS, *, mended: list[dict[str, Any]] | None = None,
        ids: list[str] | None = None, run: str | None = None,
    ) -> ReplayReport:  # fmt: skip
        path = None
        if mended is not None:
            path = self.folder.parent / "mended.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in mended))
        return quarantine.replay(
            self.lake, self.source, contract, mended=path, ids=ids, run=run or new_run_id()
        )

    def id_at(self, position: int) -> str:
        rows = quarantine.rows(self.lake, replayed=True)
        return next(row.id for row in rows if row.position == position)

    def waiting(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(row.position, row.reasons) for row in quarantine.rows(self.lake)]

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        table = self.lake.spark.session.table("lake.bronze.raw_orders")
        ordered = table.orderBy("_source_file", "_position").select(*columns)
        return [tuple(row.values()) for row in ordered.toArrow().to_pylist()]


@pytest.fixture
def kept(lake: Lake, tmp_path: Path) -> Kept:
    folder = tmp_path / "landing"
    folder.mkdir()
    return Kept(lake, folder)


def test_mended_rows_go_through_once(kept: Kept) -> None:
    lines = [
        '{"order_id":"1"}',
        '{"order_id":"2","qty":"two","total":7.25}',
        "garbage",
        '{"qty":1}',
    ]
    (kept.folder / "a.jsonl").write_text("\n".join(lines))
    kept.ingest()
    mended = [
        {"id": kept.id_at(2), "qty": 2, "tags": [1, 2]},
        {"id": kept.id_at(3), "row": {"order_id": "3", "qty": 3}},
        {"id": kept.id_at(4), "qty": 99, "order_id": "4"},
    ]
    first = kept.replay(mended=mended, run="FIRST")
    assert (first.replayed, first.still_bad, first.already) == (2, 1, 0)
    assert first.snapshot == kept.lake.state("bronze.raw_orders").head()
    names = ("order_id", "qty", "total", "tags", "_source", "_source_file", "_position")
    landed = [tuple(str(value) for value in row) for row in kept.rows(*names)]
    assert landed == [
        ("1", "None", "None", "None", "orders", "a.jsonl", "1"),
        ("2", "2", "7.25", "[1, 2]", "orders", "a.jsonl", "2"),
        ("3", "3", "None", "None", "orders", "a.jsonl", "3"),
    ]
    assert kept.waiting() == [(4, ("qty is not ≤ 10",))]
    marked = kept.lake.iceberg("quarantine.raw_orders").scan().to_arrow().to_pylist()
    assert {row["position"]: row["replayed_run"] for row in marked} == {
        2: "FIRST", 3: "FIRST", 4: None,
    }  # fmt: skip
    second = kept.replay(mended=mended)
    assert (second.replayed, second.still_bad, second.already) == (0, 1, 2)
    assert len(kept.rows("order_id")) == 3


def test_todays_contract_lets_kept_rows_in(kept: Kept) -> None:
    (kept.folder / "a.jsonl").write_text('{"order_id":"1","qty":50}\n{"order_id":"2","qty":"x"}\n')
    (kept.folder / "b.csv").write_text('qty,order_id\n60,"a, b"\n70,c\n')
    kept.ingest()
    assert [position for position, _ in kept.waiting()] == [1, 2, 1, 2]
    relaxed = replace(ORDERS, rules=())
    only = [row.id for row in quarantine.rows(kept.lake) if row.file == "b.csv"][:1]
    assert kept.replay(relaxed, ids=only).replayed == 1
    done = kept.replay(relaxed)
    assert (done.replayed, done.still_bad) == (2, 1)
    assert kept.rows("order_id", "qty", "_source_file", "_position") == [
        ("1", 50, "a.jsonl", 1),
        ("a, b", 60, "b.csv", 1),
        ("c", 70, "b.csv", 2),
    ]
    assert kept.waiting() == [(2, ('qty: "x" is not of type int',))]


def test_a_replay_that_another_overtakes_lands_nothing_twice(kept: Kept) -> None:
    (kept.folder / "a.jsonl").write_text('{"order_id":"1","qty":"x"}\n')
    kept.ingest()
    mended = [{"id": kept.id_at(1), "qty": 1}]
    from thermocline.ingest import replay as module

    real, calls = module.crash_point, []

    def overtake(point: str) -> None:
        if point == "replay.committed-quarantine" and not calls:
            calls.append(point)
            assert kept.replay(mended=mended).replayed == 1
        real(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "crash_point", overtake)
        late = kept.replay(mended=mended)
    assert (late.replayed, late.already) == (0, 1)
    assert kept.rows("order_id", "qty") == [("1", 1)]
    assert set(kept.lake.state("bronze.raw_orders").refs) == {"main"}


def test_what_is_wrong_with_a_mended_file_is_said_before_anything_happens(kept: Kept) -> None:
    (kept.folder / "a.jsonl").write_text('{"order_id":"1","qty":"x"}\n')
    kept.ingest()
    good = kept.id_at(1)
    path = kept.folder.parent / "bad.jsonl"
    path.write_text(f'{{"id":"{good}","qty":1}}\nnope\n[1]\n{{"qty":1}}\n{{"id":"{good}"}}\n')
    with pytest.raises(BadInput) as caught:
        quarantine.replay(kept.lake, kept.source, ORDERS, mended=path, run=new_run_id())
    assert [line.split("  ")[0] for line in caught.value.cause.splitlines()] == [
        "bad.jsonl:2", "bad.jsonl:3", "bad.jsonl:4", "bad.jsonl:5",
    ]  # fmt: skip
    with pytest.raises(BadInput, match=r"Not in quarantine\.raw_orders: 0000"):
        kept.replay(mended=[{"id": "0" * 64, "qty": 1}])
    with pytest.raises(BadInput, match="is no id"):
        kept.replay(ids=["'; drop table x"])
    assert kept.rows("order_id") == []


def test_a_mended_row_may_not_bring_unknown_fields(kept: Kept) -> None:
    (kept.folder / "a.jsonl").write_text('{"order_id":"1","qty":"x"}\n')
    kept.ingest()
    mended = [{"id": kept.id_at(1), "qty": 1, "color": "red"}]
    assert kept.replay(mended=mended).still_bad == 1
    assert kept.waiting() == [(1, ("fields that the contract does not name: color",))]
    rescue = replace(ORDERS, drift=Drift.RESCUE)
    assert kept.replay(rescue, mended=mended).replayed == 1
    assert kept.rows("qty", "_rescued") == [(1, [("color", "red")])]


def test_a_field_that_is_there_twice_is_bad_until_it_is_mended(kept: Kept) -> None:
    lines = [
        '{"order_id":"1","qty":1,"qty":2}',
        '{"order_id":"2","qty":null,"total":null}',
        '{"order_id":"3","color":"red","color":"blue"}',
    ]
    (kept.folder / "a.jsonl").write_text("\n".join(lines))
    rescue = replace(ORDERS, drift=Drift.RESCUE)
    kept.ingest(rescue)
    assert kept.rows("order_id", "qty") == [("2", None)]
    twice = ("a field that is there twice",)
    assert kept.waiting() == [(1, twice), (3, twice)]

    assert kept.replay(rescue, mended=[{"id": kept.id_at(1), "total": 1}]).still_bad == 1
    assert kept.replay(rescue, mended=[{"id": kept.id_at(1), "qty": 2}]).replayed == 1
    assert kept.rows("order_id", "qty", "total") == [("1", 2, None), ("2", None, None)]


def test_digits_after_the_point_are_never_rounded_away(kept: Kept) -> None:
    totals = [
        "7.25",
        '"7.250"',
        "7.255",
        '"7.2500001"',
        "1e1",
        '"1e-3"',
        '"12345678901.00"',
        "-0.1",
    ]
    (kept.folder / "a.jsonl").write_text(
        "".join(f'{{"order_id":"{n}","total":{total}}}\n' for n, total in enumerate(totals))
    )
    kept.ingest()
    landed = {int(number): str(total) for number, total in kept.rows("order_id", "total")}
    assert landed == {0: "7.25", 1: "7.25", 4: "10.00", 7: "-0.10"}
    assert [position for position, _ in kept.waiting()] == [3, 4, 6, 7]


def test_a_parquet_row_keeps_its_microseconds_in_quarantine(kept: Kept) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    moment = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
    rows = {"order_id": [None], "at": pa.array([moment], pa.timestamp("us", "UTC"))}
    pq.write_table(pa.table(rows, pa.schema([("order_id", pa.string()), ("at", rows["at"].type)])),
                   kept.folder / "a.parquet")  # fmt: skip
    columns = (ORDERS.columns[0], Column("at", Primitive("timestamptz")))
    contract = replace(ORDERS, columns=columns, rules=())
    kept.ingest(contract)
    assert kept.replay(contract, mended=[{"id": kept.id_at(1), "order_id": "1"}]).replayed == 1
    assert kept.rows("order_id", "at") == [("1", moment)]

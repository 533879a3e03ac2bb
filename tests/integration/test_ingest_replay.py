"""Replay of quarantined rows: corrected or validated again, each lands at most once."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thermocline.contract.definition import Column, Contract, DriftMode, Rule
from thermocline.contract.types import Decimal, List, Primitive
from thermocline.engine.spark import SparkEngine
from thermocline.errors import BadInput
from thermocline.ingest import corrections, quarantine
from thermocline.ingest.files import ingest
from thermocline.ingest.quarantine import ReplayReport
from thermocline.ingest.replay import resolve_ids
from thermocline.ingest.source import Source
from thermocline.lake.naming import new_run_id

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

    def __init__(self, lake: Lake, folder: Path, lane: str) -> None:
        self.lake = lake
        self.folder = folder
        self.source = Source("orders", str(folder), "bronze.raw_orders", bad_share=1.0, lane=lane)

    def ingest(self, contract: Contract = ORDERS) -> None:
        ingest(self.lake, self.source, contract, run=new_run_id())

    def replay(
        self, contract: Contract = ORDERS, *, corrections: list[dict[str, Any]] | None = None,
        ids: list[str] | None = None, run: str | None = None,
    ) -> ReplayReport:  # fmt: skip
        path = None
        if corrections is not None:
            path = self.folder.parent / "mended.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in corrections))
        return quarantine.replay(
            self.lake, self.source, contract, file=path, ids=ids, run=run or new_run_id()
        )

    def id_at(self, position: int) -> str:
        rows = quarantine.list_rows(self.lake, replayed=True)
        return next(row.id for row in rows if row.position == position)

    def waiting(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(row.position, row.reasons) for row in quarantine.list_rows(self.lake)]

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        table = self.lake.iceberg("bronze.raw_orders").scan().to_arrow()
        ordered = table.sort_by([("_source_file", "ascending"), ("_position", "ascending")])
        return [tuple(row.values()) for row in ordered.select(list(columns)).to_pylist()]


@pytest.fixture(params=["auto", "spark"])
def kept(request: pytest.FixtureRequest, lake: Lake, tmp_path: Path) -> Iterator[Kept]:
    """By the Arrow lane, which needs no Spark here unless it says so, and by Spark's."""
    folder = tmp_path / "landing"
    folder.mkdir()
    yield Kept(lake, folder, request.param)


def test_mended_rows_go_through_once(kept: Kept) -> None:
    lines = [
        '{"order_id":"1"}',
        '{"order_id":"2","qty":"two","total":7.25}',
        "garbage",
        '{"qty":1}',
    ]
    (kept.folder / "a.jsonl").write_text("\n".join(lines))
    kept.ingest()
    corrections = [
        {"id": kept.id_at(2), "qty": 2, "tags": [1, 2]},
        {"id": kept.id_at(3), "row": {"order_id": "3", "qty": 3}},
        {"id": kept.id_at(4), "qty": 99, "order_id": "4"},
    ]
    first = kept.replay(corrections=corrections, run="FIRST")
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
    second = kept.replay(corrections=corrections)
    assert (second.replayed, second.still_bad, second.already) == (0, 1, 2)
    assert len(kept.rows("order_id")) == 3


def test_todays_contract_lets_kept_rows_in(kept: Kept) -> None:
    (kept.folder / "a.jsonl").write_text('{"order_id":"1","qty":50}\n{"order_id":"2","qty":"x"}\n')
    (kept.folder / "b.csv").write_text('qty,order_id\n60,"a, b"\n70,c\n')
    kept.ingest()
    assert [position for position, _ in kept.waiting()] == [1, 2, 1, 2]
    relaxed = replace(ORDERS, rules=())
    only = [row.id for row in quarantine.list_rows(kept.lake) if row.file == "b.csv"][:1]
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
    corrections = [{"id": kept.id_at(1), "qty": 1}]
    from thermocline.ingest import replay as module

    real, calls = module.crash_point, []

    def overtake(point: str) -> None:
        if point == "replay.committed-quarantine" and not calls:
            calls.append(point)
            assert kept.replay(corrections=corrections).replayed == 1
        real(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "crash_point", overtake)
        late = kept.replay(corrections=corrections)
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
        quarantine.replay(kept.lake, kept.source, ORDERS, file=path, run=new_run_id())
    assert [line.split("  ")[0] for line in caught.value.cause.splitlines()] == [
        "bad.jsonl:2", "bad.jsonl:3", "bad.jsonl:4", "bad.jsonl:5",
    ]  # fmt: skip
    with pytest.raises(BadInput, match=r"Not in quarantine\.raw_orders: 0000"):
        kept.replay(corrections=[{"id": "0" * 64, "qty": 1}])
    with pytest.raises(BadInput, match="is no id"):
        kept.replay(ids=["'; drop table x"])
    assert kept.rows("order_id") == []


def test_a_mended_row_may_not_bring_unknown_fields(kept: Kept) -> None:
    (kept.folder / "a.jsonl").write_text('{"order_id":"1","qty":"x"}\n')
    kept.ingest()
    corrections = [{"id": kept.id_at(1), "qty": 1, "color": "red"}]
    assert kept.replay(corrections=corrections).still_bad == 1
    assert kept.waiting() == [(1, ("fields that the contract does not name: color",))]
    rescue = replace(ORDERS, drift=DriftMode.RESCUE)
    assert kept.replay(rescue, corrections=corrections).replayed == 1
    assert kept.rows("qty", "_rescued") == [(1, [("color", "red")])]


def test_a_field_that_is_there_twice_is_bad_until_it_is_mended(kept: Kept) -> None:
    lines = [
        '{"order_id":"1","qty":1,"qty":2}',
        '{"order_id":"2","qty":null,"total":null}',
        '{"order_id":"3","color":"red","color":"blue"}',
    ]
    (kept.folder / "a.jsonl").write_text("\n".join(lines))
    rescue = replace(ORDERS, drift=DriftMode.RESCUE)
    kept.ingest(rescue)
    assert kept.rows("order_id", "qty") == [("2", None)]
    twice = ("a field that is there twice",)
    assert kept.waiting() == [(1, twice), (3, twice)]

    assert kept.replay(rescue, corrections=[{"id": kept.id_at(1), "total": 1}]).still_bad == 1
    assert kept.replay(rescue, corrections=[{"id": kept.id_at(1), "qty": 2}]).replayed == 1
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


def test_a_replayed_row_leaves_after_its_time(kept: Kept) -> None:
    (kept.folder / "a.jsonl").write_text('{"order_id":"1","qty":"x"}\n{"order_id":"2","qty":"x"}\n')
    kept.ingest()
    kept.replay(corrections=[{"id": kept.id_at(1), "qty": 1}])
    assert len(quarantine.list_rows(kept.lake, replayed=True)) == 2
    settings = kept.lake.settings
    soon = replace(settings, quarantine=replace(settings.quarantine, keep_replayed="0s"))
    kept.lake.settings = soon
    second = kept.replay(corrections=[{"id": kept.id_at(2), "qty": 2}])
    assert (second.replayed, second.still_bad) == (1, 0)
    left = kept.lake.iceberg("quarantine.raw_orders").scan().to_arrow()
    assert left.column("position").to_pylist() == [2]
    assert [row[0] for row in kept.rows("order_id")] == ["1", "2"]


def test_only_so_many_rows_are_listed_the_oldest_first(kept: Kept) -> None:
    for name in ("b", "a"):
        lines = "".join(f'{{"tags":"{name}"}}\n' for _ in range(30))
        (kept.folder / f"{name}.jsonl").write_text(lines)
        kept.ingest()
    found = quarantine.list_rows(kept.lake, limit=35)
    assert [row.file for row in found] == ["b.jsonl"] * 30 + ["a.jsonl"] * 5
    assert [row.position for row in found[30:]] == [1, 2, 3, 4, 5]


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
    assert kept.replay(contract, corrections=[{"id": kept.id_at(1), "order_id": "1"}]).replayed == 1
    assert kept.rows("order_id", "at") == [("1", moment)]


def exported(kept: Kept, name: str = "out.jsonl", contract: Contract = ORDERS) -> Path:
    rows, left = quarantine.export(kept.lake, kept.source, contract)
    assert left == 0
    path = kept.folder.parent / name
    with path.open("w", newline="") as out:
        corrections.write(rows, out, as_csv=name.endswith(".csv"))
    return path


def put_back(kept: Kept, path: Path, contract: Contract = ORDERS) -> ReplayReport:
    return quarantine.replay(kept.lake, kept.source, contract, file=path, run=new_run_id())


def test_exported_rows_are_mended_and_put_back_once(kept: Kept) -> None:
    (kept.folder / "a.jsonl").write_text(
        '{"order_id":"1","qty":"two","total":7.250,"tags":[1,2]}\ngarbage\n'
        '{"order_id":"3","qty":99}\n{"order_id":"4","qty":"x"}\n'
    )
    kept.ingest()
    path = exported(kept)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["_quarantine_file"], row["_quarantine_position"]) for row in rows] == [
        ("a.jsonl", 1), ("a.jsonl", 2), ("a.jsonl", 3), ("a.jsonl", 4)
    ]  # fmt: skip
    assert rows[0]["_quarantine_reason"] == 'qty: "two" is not of type int'
    assert (rows[0]["qty"], rows[0]["tags"]) == ("two", [1, 2])
    assert '"total":7.250' in path.read_text()
    assert (rows[1]["_quarantine_raw"], rows[1]["order_id"]) == ("garbage", None)
    # Nothing was mended: all are tried as they were written, and stay.
    assert put_back(kept, path).still_bad == 4
    assert kept.waiting()[1] == (2, ("not a JSON object",))

    rows[0]["qty"], rows[1]["order_id"], rows[3]["qty"] = 2, "2", 11
    rows[0]["_quarantine_id"] = rows[0]["_quarantine_id"][:12]  # as it is shown
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = put_back(kept, path), put_back(kept, path)
    assert (first.replayed, first.still_bad, first.already) == (2, 2, 0)
    assert (second.replayed, second.still_bad, second.already) == (0, 2, 2)
    assert [(a, b, str(c), d) for a, b, c, d in kept.rows("order_id", "qty", "total", "tags")] == [
        ("1", 2, "7.25", [1, 2]), ("2", None, "None", None)
    ]  # fmt: skip
    assert kept.waiting() == [(3, ("qty is not ≤ 10",)), (4, ("qty is not ≤ 10",))]


def test_a_csv_of_rows_is_mended_and_put_back(kept: Kept) -> None:
    (kept.folder / "a.csv").write_text('order_id,qty,total\n"a, ""b",x,1.50\nc\n,3,\nd,4,1,5\n')
    kept.ingest()
    path = exported(kept, "out.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["_quarantine_reason"] for row in rows] == [
        'qty: "x" is not of type int', "not 3 cells", "order_id is missing", "not 3 cells"
    ]  # fmt: skip
    assert rows[3]["_quarantine_raw"] == "d,4,1,5"
    rows[0]["qty"], rows[0]["tags"], rows[2]["order_id"], rows[1]["qty"] = "1", "[7]", "e", "2"
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, rows[0])
        out.writeheader()
        out.writerows(rows)
    done = put_back(kept, path)
    assert (done.replayed, done.still_bad) == (3, 1)
    assert kept.rows("order_id", "qty", "tags") == [
        ('a, "b', 1, [7]), ("c", 2, None), ("e", 3, None)
    ]  # fmt: skip
    assert put_back(kept, path).already == 3


NAMES = ("id", "reason", "reasons", "payload", "raw", "row", "file", "position", "_quarantine_id")


def test_no_column_collides_with_what_quarantine_says(kept: Kept) -> None:
    text = tuple(Column(name, Primitive("string")) for name in NAMES)
    contract = Contract("bronze.raw_orders", (*text, Column("n", Primitive("int"))))
    values = {name: f"a {name}" for name in NAMES}
    lines = [json.dumps({**values, "n": "x"}), json.dumps({**values, "n": "y"})]
    (kept.folder / "a.jsonl").write_text("\n".join(lines))
    kept.ingest(contract)
    for name, place in (("out.jsonl", 1), ("out.csv", 2)):
        path = exported(kept, name, contract)
        path.write_text(path.read_text().replace('"n":"x"', '"n":1').replace(",y", ",2"))
        assert put_back(kept, path, contract).replayed == 1
        assert len(kept.rows("n")) == place
    for row in kept.rows(*NAMES):
        assert row == tuple(values.values())


def test_the_beginning_of_an_id_is_enough_and_an_ambiguous_one_is_refused(kept: Kept) -> None:
    count = 40
    (kept.folder / "a.jsonl").write_text("".join('{"qty":1}\n' for _ in range(count)))
    kept.ingest()
    ids = sorted(row.id for row in quarantine.list_rows(kept.lake))
    assert len(ids) == count
    path = kept.folder.parent / "mended.jsonl"
    path.write_text(json.dumps({"id": ids[0][:12], "order_id": "1"}))
    assert put_back(kept, path).replayed == 1
    with pytest.raises(BadInput, match=r"More than one row in .* begins with") as refused:
        resolve_ids([""], ids, "quarantine.raw_orders")
    assert "Give more of the id" in refused.value.next_step
    assert kept.replay(ids=[ids[1][:12]]).still_bad == 1
    assert kept.replay(ids=[ids[0][:12]]).already == 1
    with pytest.raises(BadInput, match="Not in quarantine"):
        kept.replay(ids=["0" * 12])


def test_few_rows_land_and_come_back_without_a_jvm(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: SparkEngine) -> None:
        raise AssertionError("a JVM was asked for")

    monkeypatch.setattr(SparkEngine, "session", property(refuse))
    (tmp_path / "landing").mkdir()
    kept = Kept(lake, tmp_path / "landing", "auto")
    (kept.folder / "a.csv").write_text("order_id,qty\na,1\nb,x\n,3\n")
    rows = pa.table({"order_id": ["p", "q"], "qty": pa.array([99, 1], pa.int32())})
    pq.write_table(rows, kept.folder / "b.parquet")
    kept.ingest()
    assert [row.reasons for row in quarantine.list_rows(kept.lake)] == [
        ('qty: "x" is not of type int',), ("order_id is missing",), ("qty is not ≤ 10",)
    ]  # fmt: skip
    path = exported(kept)
    text = path.read_text().replace('"qty":"x"', '"qty":2').replace('"qty":99', '"qty":9')
    path.write_text(text)
    assert (put_back(kept, path).replayed, put_back(kept, path).already) == (2, 2)
    assert kept.rows("order_id", "qty") == [("a", 1), ("b", 2), ("p", 9), ("q", 1)]

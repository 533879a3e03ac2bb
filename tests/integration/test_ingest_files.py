"""Files into bronze on a real lake: formats, bad rows, drift, identity."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thermocline.contract.definition import Column, Contract, DriftMode, Rule
from thermocline.contract.types import Decimal, Field, List, Map, Primitive, Struct
from thermocline.errors import BadInput, CheckFailed
from thermocline.ingest import quarantine
from thermocline.ingest.files import FileIngestReport, ingest
from thermocline.ingest.source import Source, TextOptions
from thermocline.lake.naming import new_run_id

if TYPE_CHECKING:
    from thermocline.lake import Lake

ITEM = Struct(
    (
        Field("sku", Primitive("string"), required=True),
        Field("qty", Primitive("int")),
        Field("price", Decimal(12, 2)),
    )
)
ORDERS = Contract(
    "bronze.raw_orders",
    (
        Column("order_id", Primitive("string"), required=True),
        Column("qty", Primitive("int")),
        Column("total", Decimal(12, 2)),
        Column("at", Primitive("timestamptz")),
        Column("items", List(ITEM)),
    ),
    rules=(Rule("range", ("qty",), (("min", 0),)),),
)


class Landing:
    """A landing folder and the lake it feeds."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self.lake = lake
        self.folder = folder
        self.source = Source("orders", str(folder), "bronze.raw_orders", bad_share=1.0)
        self.contract = ORDERS

    def put(self, name: str, *lines: str) -> Path:
        return self.put_bytes(name, "".join(line + "\n" for line in lines).encode())

    def put_bytes(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def ingest(self, **options: Any) -> FileIngestReport:
        return ingest(self.lake, self.source, self.contract, run=new_run_id(), **options)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        names = columns or ("order_id",)
        table = self.lake.spark.session.table(f"lake.{self.contract.table}")
        rows = (
            table.orderBy("_source_file", "_position", "order_id")
            .select(*names)
            .toArrow()
            .to_pylist()
        )
        return [tuple(row.values()) for row in rows]

    def bad(self) -> list[tuple[str, int, tuple[str, ...]]]:
        return [(row.file, row.position, row.reasons) for row in quarantine.list_rows(self.lake)]


@pytest.fixture
def landing(lake: Lake, tmp_path: Path) -> Landing:
    folder = tmp_path / "landing"
    folder.mkdir()
    return Landing(lake, folder)


def test_json_lines_land_typed_with_provenance(landing: Landing) -> None:
    landing.put(
        "2026/a.jsonl",
        '{"order_id":"1","qty":2,"total":10.10,"at":"2026-11-14T18:00:00.123456+02:00",'
        '"items":[{"sku":"s1","qty":1,"price":9.99}]}',
        "",
        '{"order_id":"é\\n"}',
    )
    report = landing.ingest()
    assert (report.files, report.rows, report.quarantined, report.skipped) == (1, 2, 0, 0)
    assert report.snapshot == landing.lake.state("bronze.raw_orders").head()
    columns = ("order_id", "qty", "total", "at", "items", "_source", "_source_file", "_position")
    assert landing.rows(*columns) == [
        (
            "1", 2, Number("10.10"), datetime(2026, 11, 14, 16, 0, 0, 123456, UTC),
            [{"sku": "s1", "qty": 1, "price": Number("9.99")}], "orders", "2026/a.jsonl", 1,
        ),
        ("é\n", None, None, None, None, "orders", "2026/a.jsonl", 3),
    ]  # fmt: skip


def test_bad_rows_are_quarantined_with_reason_and_position(landing: Landing) -> None:
    landing.put_bytes(
        "a.jsonl",
        b'{"order_id":"1"}\n{"order_id":"2","qty":"many"}\n{"qty":1}\nnot json\n'
        b'{"order_id":"5"}{"order_id":"6"}\n{"order_id":"6","qty":-1}\n'
        b'{"order_id":"7","total":1.005}\n{"order_id":"\xff"}\n{"order_id":"9","items":[{"qty":1}]}\n'
        b'{"order_id":"10","items":7}\n{"order_id":"11","at":"yesterday"}\n[1]\n',
    )
    report = landing.ingest()
    assert (report.rows, report.quarantined) == (1, 11)
    assert landing.rows() == [("1",)]
    assert landing.bad() == [
        ("a.jsonl", 2, ('qty: "many" is not of type int',)),
        ("a.jsonl", 3, ("order_id is missing",)),
        ("a.jsonl", 4, ("not a JSON object",)),
        ("a.jsonl", 5, ("not a JSON object",)),
        ("a.jsonl", 6, ("qty is not ≥ 0",)),
        ("a.jsonl", 7, ('total: "1.005" is not of type decimal(12,2)',)),
        ("a.jsonl", 8, ("not valid text in its encoding",)),
        ("a.jsonl", 9, ("items.sku is missing",)),
        ("a.jsonl", 10, ('items: "7" is not a list',)),
        ("a.jsonl", 11, ('at: "yesterday" is not of type timestamptz',)),
        ("a.jsonl", 12, ("not a JSON object",)),
    ]
    raw = {row.position: row.raw for row in quarantine.list_rows(landing.lake, "bronze.raw_orders")}
    assert raw[5] == '{"order_id":"5"}{"order_id":"6"}'
    assert raw[8] == '{"order_id":"ÿ"}'


def test_a_file_lands_once_whatever_its_name_and_again_when_it_changed(landing: Landing) -> None:
    path = landing.put("a.jsonl", '{"order_id":"1"}')
    landing.put("copy.jsonl", '{"order_id":"1"}')
    assert (landing.ingest().rows, landing.rows()) == (1, [("1",)])
    landing.put("later/again.jsonl", '{"order_id":"1"}')
    again = landing.ingest()
    assert (again.files, again.rows, again.skipped, again.snapshot) == (0, 0, 3, None)
    path.write_text('{"order_id":"2"}\n')
    assert landing.ingest().rows == 1
    assert landing.rows("order_id", "_source_file") == [("1", "a.jsonl"), ("2", "a.jsonl")]


def test_after_a_rollback_what_was_landed_since_is_new_again(landing: Landing) -> None:
    landing.put("a.jsonl", '{"order_id":"1"}')
    first = landing.ingest().snapshot
    landing.put("b.jsonl", '{"order_id":"2"}')
    landing.ingest()
    landing.lake.spark.session.sql(
        f"call lake.system.rollback_to_snapshot('{landing.contract.table}', {first})"
    )
    assert (landing.ingest().rows, landing.rows()) == (1, [("1",), ("2",)])


def test_files_stay_known_when_their_snapshots_have_expired(landing: Landing) -> None:
    landing.put("a.jsonl", '{"order_id":"1"}')
    landing.ingest()
    landing.put("b.jsonl", '{"order_id":"2"}')
    landing.ingest()
    landing.lake.spark.session.sql(
        "call lake.system.expire_snapshots(table => 'bronze.raw_orders', retain_last => 1, "
        "older_than => timestamp '2100-01-01')"
    )
    assert len(landing.lake.state("bronze.raw_orders").snapshots) == 1
    landing.put("c.jsonl", '{"order_id":"3"}')
    assert (landing.ingest().rows, landing.rows()) == (1, [("1",), ("2",), ("3",)])


def test_empty_files_and_files_of_only_bad_rows_are_remembered(landing: Landing) -> None:
    landing.put_bytes("empty.jsonl", b"")
    landing.put_bytes("blank.jsonl", b"\n \r\n")
    landing.put("bad.jsonl", "nope")
    report = landing.ingest()
    assert (report.files, report.rows, report.quarantined) == (3, 0, 1)
    assert (landing.ingest().skipped, landing.rows()) == (3, [])


def test_too_many_bad_rows_refuse_the_batch(landing: Landing) -> None:
    landing.source = replace(landing.source, bad_share=0.5)
    landing.put("a.jsonl", '{"order_id":"1"}', "nope", "nope")
    with pytest.raises(CheckFailed, match=r"2 of 3 rows .* more than 50%: a.jsonl:2 not a JSON"):
        landing.ingest()
    assert landing.rows() == []
    assert not landing.lake.exists("quarantine.raw_orders")
    assert set(landing.lake.state("bronze.raw_orders").refs) == {"main"}
    landing.put("a.jsonl", '{"order_id":"1"}', '{"order_id":"2"}', "nope", "nope")
    assert landing.ingest().rows == 2  # half is not more than half


def test_small_batches_each_commit(landing: Landing) -> None:
    for number in range(3):
        landing.put(f"{number}.jsonl", f'{{"order_id":"{number}"}}')
    assert landing.ingest(batch_bytes=20).rows == 3
    state = landing.lake.state("bronze.raw_orders")
    commits = [s for s in state.ancestry(state.head()) if "thermocline.bookmark" in s.summary]
    assert len(commits) == 3


COMPRESSED = {
    "a.jsonl.gz": gzip.compress,
    "a.jsonl.bz2": bz2.compress,
    "a.jsonl.xz": lzma.compress,
    "a.jsonl.zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
    "gzip-by-content.jsonl": gzip.compress,
}


def test_compressed_files(landing: Landing) -> None:
    for number, (name, compress) in enumerate(COMPRESSED.items()):
        landing.put_bytes(name, compress(b'{"order_id":"%d"}\n{"order_id":"x"}\n' % number))
    assert landing.ingest().rows == 10
    assert landing.rows("order_id", "_source_file", "_position") == [
        row
        for number, name in sorted(enumerate(COMPRESSED), key=lambda pair: pair[1])
        for row in ((str(number), name, 1), ("x", name, 2))
    ]


def test_damaged_files_are_quarantined_as_files_and_the_others_land(landing: Landing) -> None:
    whole = gzip.compress(b'{"order_id":"1"}\n' * 1000)
    landing.put_bytes("cut.jsonl.gz", whole[:-20])
    landing.put_bytes("cut.jsonl.xz", lzma.compress(b'{"order_id":"1"}\n' * 1000)[:-20])
    zstd = pa.compress(os.urandom(300_000).hex().encode(), codec="zstd", asbytes=True)
    landing.put_bytes("cut.jsonl.zst", zstd[:-1000])
    landing.put_bytes("archive.jsonl.zip", b"PK\x03\x04 whatever")
    landing.put_bytes("cut.parquet", b"PAR1 and then nothing")
    table = pa.table({"order_id": [str(n) for n in range(20_000)]})
    pq.write_table(table, landing.folder / "torn.parquet", compression="none", use_dictionary=False)
    torn = bytearray((landing.folder / "torn.parquet").read_bytes())
    torn[:40] = b"\xff" * 40
    landing.put_bytes("torn.parquet", b"PAR1" + bytes(torn[4:]))
    landing.put("good.jsonl", '{"order_id":"good"}')
    report = landing.ingest()
    assert (report.rows, report.quarantined, landing.rows()) == (1, 6, [("good",)])
    found = {file: (position, reasons[0]) for file, position, reasons in landing.bad()}
    assert {position for position, _ in found.values()} == {0}
    for name in ("cut.jsonl.gz", "cut.jsonl.xz", "cut.jsonl.zst", "cut.parquet"):
        assert found[name][1].startswith("truncated or damaged: "), found[name]
    assert found["archive.jsonl.zip"][1] == "zip archives are not read; unpack it, or use gzip"
    assert found["torn.parquet"][1].startswith("damaged: don't know what type")
    assert landing.ingest().skipped == 7


def test_encodings(landing: Landing) -> None:
    line = '{"order_id":"Zoë €"}\n'
    landing.put_bytes("bom.jsonl", b"\xef\xbb\xbf" + line.encode())
    landing.put_bytes("utf16.jsonl", line.encode("utf-16"))
    assert landing.ingest().rows == 2
    landing.source = replace(landing.source, options=TextOptions(encoding="cp1252"), pattern="win*")
    landing.put_bytes("windows.jsonl", line.encode("cp1252") + b'{"order_id":"\x81"}\n')
    assert landing.ingest().quarantined == 1
    assert landing.rows() == [("Zoë €",)] * 3
    assert landing.bad() == [("windows.jsonl", 2, ("not valid text in its encoding",))]


def test_a_line_of_100_megabytes_is_one_bad_row(landing: Landing) -> None:
    with (landing.folder / "long.jsonl").open("w") as file:
        file.write('{"order_id":"1"}\n{"order_id":"')
        for _ in range(100):
            file.write("x" * 1_000_000)
        file.write('"}\n{"order_id":"3"}\n')
    assert landing.ingest().rows == 2
    assert landing.rows("order_id", "_position") == [("1", 1), ("3", 3)]
    assert landing.bad() == [("long.jsonl", 2, ("longer than maxLineBytes",))]
    (kept,) = quarantine.list_rows(landing.lake)
    assert kept.raw is not None
    assert kept.raw == '{"order_id":"' + "x" * (4096 - 13)
    assert not any((landing.lake.settings.project / ".thermocline" / "staging").iterdir())


def test_positions_are_right_across_blocks_and_files(landing: Landing) -> None:
    spark = landing.lake.spark.session
    for name, count in (("a", 200), ("b", 3), ("c", 57)):
        lines = [f'{{"order_id":"{name}{n}"}}' if n % 7 else "" for n in range(1, count + 1)]
        landing.put(f"{name}.jsonl", *lines)
    csv = [f"d{n},{n}" for n in range(1, 101)]
    landing.put("d.csv", "order_id,qty", *csv)
    pq.write_table(
        pa.table({"order_id": [f"e{n}" for n in range(1, 301)]}),
        landing.folder / "e.parquet",
        row_group_size=37,
    )
    spark.conf.set("spark.sql.files.maxPartitionBytes", "256")
    spark.conf.set("spark.sql.files.openCostInBytes", "64")
    try:
        landing.ingest()
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
        spark.conf.unset("spark.sql.files.openCostInBytes")
    rows = landing.rows("order_id", "_position")
    assert len(rows) == 200 - 28 + 3 + 57 - 8 + 100 + 300
    assert [(name, at) for name, at in rows if int(name[1:]) != at] == []


def test_csv(landing: Landing) -> None:
    landing.contract = replace(ORDERS, drift=DriftMode.RESCUE)
    landing.put_bytes(
        "a.csv",
        b"\xef\xbb\xbfqty,order_id,note,items\r\n"
        b'1,=1+1,"a, ""b""","[{""sku"":""s"",""qty"":2}]"\r\n'
        b'"",@SUM(A1),,\r\n'
        b"x,3,,\r\n"
        b"4,4\r\n"
        b'5,5,"open,\r\n',
    )
    assert landing.ingest().rows == 2
    assert landing.rows("order_id", "qty", "items", "_rescued", "_position") == [
        ("=1+1", 1, [{"sku": "s", "qty": 2, "price": None}], [("note", 'a, "b"')], 1),
        ("@SUM(A1)", None, None, [("note", None)], 2),
    ]
    assert landing.bad() == [
        ("a.csv", 3, ('qty: "x" is not of type int',)),
        ("a.csv", 4, ("not 4 cells",)),
        ("a.csv", 5, ("a quote that is not closed", "not 4 cells")),
    ]
    assert [row.raw for row in quarantine.list_rows(landing.lake)] == ["x,3,,", "4,4", '5,5,"open,']


def test_csv_options(landing: Landing) -> None:
    options = TextOptions(delimiter=";", quote="'", escape="\\", null="NA", multiline=True)
    landing.source = replace(landing.source, options=options)
    landing.put("a.csv", "order_id;qty;total", "'a\nb\\'c';NA;1.5", "'';7;2", "'open;1;1", "d;1;1")
    assert landing.ingest().rows == 3
    assert landing.rows("order_id", "qty", "total", "_position") == [
        ("a\nb'c", None, Number("1.50"), 1),
        ("", 7, Number("2.00"), 2),
        ("d", 1, Number("1.00"), 4),
    ]
    assert landing.bad() == [("a.csv", 3, ("a quote that is not closed", "not 3 cells"))]
    landing.source = replace(landing.source, options=TextOptions(header=False), pattern="b*")
    landing.put("b.csv", "e,1,2.50,2026-01-01,[]")
    assert landing.ingest().rows == 1
    assert landing.rows("order_id", "qty", "at", "_position")[-1] == (
        "e", 1, datetime(2026, 1, 1, tzinfo=UTC), 1,
    )  # fmt: skip


def test_a_file_that_cannot_fit_is_refused_and_tried_again(landing: Landing) -> None:
    landing.put("lacks.csv", "qty", "1")
    pq.write_table(
        pa.table({"order_id": ["1"], "at": pa.array([1], pa.int64())}),
        landing.folder / "misfit.parquet",
    )
    landing.put("twice.csv", "order_id,order_id", "1,2")
    report = landing.ingest()
    assert [str(refusal) for refusal in report.refused] == [
        "lacks.csv: lacks the required column order_id",
        "misfit.parquet: at: bigint cannot become timestamptz",
    ]
    assert landing.bad() == [
        ("twice.csv", 0, ("its header names a column twice or not at all: ['order_id']",))
    ]
    assert len(landing.ingest().refused) == 2
    assert landing.rows() == []


def test_parquet_types(landing: Landing) -> None:
    landing.contract = Contract(
        "bronze.raw_orders",
        (
            Column("order_id", Primitive("string"), required=True),
            Column("big", Primitive("long")),
            Column("small", Primitive("int")),
            Column("total", Decimal(12, 2)),
            Column("at", Primitive("timestamptz")),
            Column("plain", Primitive("timestamp")),
            Column("day", Primitive("date")),
            Column("data", Primitive("binary")),
            Column("items", List(ITEM)),
            Column("tags", Map(Primitive("string"), Primitive("long"))),
            Column("absent", Primitive("double")),
        ),
    )
    moment = datetime(2026, 11, 14, 18, 0, 0, 123456)
    item = pa.struct([("sku", pa.string()), ("price", pa.decimal128(10, 2))])
    table = pa.table(
        {
            "order_id": ["1", "2", None, "4"],
            "big": pa.array([1, 2, 3, 4], pa.int32()),
            "small": pa.array([1, 2**40, 3, 4], pa.int64()),
            "total": pa.array([Number("1.50")] * 3 + [Number("1.005")], pa.decimal128(12, 3)),
            "at": pa.array([moment] * 4, pa.timestamp("us", "UTC")),
            "plain": pa.array([moment] * 4, pa.timestamp("us")),
            "day": pa.array([date(2026, 11, 14)] * 4),
            "data": [b"\x00\xff"] * 4,
            "items": pa.array([[{"sku": "s", "price": Number("9.99")}]] * 4, pa.list_(item)),
            "tags": pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int32())),
        }
    )
    pq.write_table(table, landing.folder / "a.parquet")
    assert landing.ingest().rows == 1
    names = [column.name for column in landing.contract.columns]
    assert landing.rows(*names, "_position") == [
        (
            "1", 1, 1, Number("1.50"), moment.replace(tzinfo=UTC), moment, date(2026, 11, 14),
            b"\x00\xff", [{"sku": "s", "qty": None, "price": Number("9.99")}], [("a", 1)], None, 1,
        )
    ]  # fmt: skip
    assert landing.bad() == [
        ("a.parquet", 2, ('small: "1099511627776" is not of type int',)),
        ("a.parquet", 3, ("order_id is missing",)),
        ("a.parquet", 4, ('total: "1.005" is not of type decimal(12,2)',)),
    ]
    raw = json.loads(quarantine.list_rows(landing.lake)[0].raw or "")
    assert (raw["order_id"], raw["small"]) == ("2", 2**40)


def test_drift_refuse(landing: Landing) -> None:
    landing.put("a.jsonl", '{"order_id":"1"}', '{"order_id":"2","color":"red"}')
    landing.put("b.jsonl", '{"order_id":"3"}')
    landing.put("c.csv", "order_id,size", "4,L")
    landing.put("d.jsonl", '{"order_id":"5","items":[{"sku":"s","hue":1}]}')
    report = landing.ingest()
    assert (report.files, landing.rows()) == (1, [("3",)])
    said = "add it to the contract, or set drift to add or rescue"
    assert sorted(str(refusal) for refusal in report.refused) == [
        f"a.jsonl: has a field that bronze.raw_orders does not name: color; {said}",
        f"c.csv: has a field that bronze.raw_orders does not name: size; {said}",
        f"d.jsonl: has a field that bronze.raw_orders does not name: items.hue; {said}",
    ]
    landing.contract = replace(ORDERS, drift=DriftMode.RESCUE)
    assert landing.ingest().rows == 4
    assert landing.rows("order_id", "_rescued") == [
        ("1", None),
        ("2", [("color", "red")]),
        ("3", None),
        ("4", [("size", "L")]),
        ("5", [("items", '[{"sku":"s","hue":1}]')]),
    ]


def test_drift_add(landing: Landing) -> None:
    landing.contract = replace(ORDERS, drift=DriftMode.ADD)
    landing.put("a.jsonl", '{"order_id":"1","color":"red","bad name":1,"_x":2}')
    landing.put("b.csv", "order_id,size", "2,L")
    pq.write_table(
        pa.table({"order_id": ["3"], "weight": pa.array([1.5])}), landing.folder / "c.parquet"
    )
    assert landing.ingest().rows == 3
    names = ("order_id", "color", "size", "weight", "_rescued")
    assert landing.rows(*names) == [
        ("1", "red", None, None, [("bad name", "1"), ("_x", "2")]),
        ("2", None, "L", None, None),
        ("3", None, None, 1.5, None),
    ]
    landing.put("d.jsonl", '{"order_id":"4","color":"blue"}')
    assert landing.ingest().rows == 1
    assert landing.rows(*names)[-1] == ("4", "blue", None, None, None)


def test_numbers_keep_all_their_digits(landing: Landing) -> None:
    landing.contract = Contract(
        "bronze.raw_orders",
        (Column("order_id", Primitive("string")), Column("exact", Decimal(38, 18))),
    )
    digits = ("12345678901234567890.123456789012345678", '"0.000000000000000001"', "1e-3")
    landing.put("a.jsonl", *(f'{{"order_id":"1","exact":{number}}}' for number in digits))
    landing.ingest()
    assert landing.rows("exact") == [(Number(digit.strip('"')),) for digit in digits]


def test_links_that_lead_outside_are_refused(landing: Landing, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"order_id":"secret"}\n')
    landing.put("inside/a.jsonl", '{"order_id":"1"}')
    (landing.folder / "link.jsonl").symlink_to(secret)
    (landing.folder / "up").symlink_to(tmp_path)
    (landing.folder / "same.jsonl").symlink_to(landing.folder / "inside" / "a.jsonl")
    report = landing.ingest()
    assert [str(refusal) for refusal in report.refused] == [
        "link.jsonl: a link that leads outside the landing folder",
        "up: a link that leads outside the landing folder",
    ]
    assert landing.rows() == [("1",)]


def test_odd_names(landing: Landing) -> None:
    names = [
        "a [1]*?{x}.jsonl",
        "b%20c#d.jsonl",
        "é 日.jsonl",
        "back\\slash.jsonl",
        "it's.jsonl",
        "12:30:00.jsonl",
    ]
    for number, name in enumerate(names):
        landing.put(name, f'{{"order_id":"{number}"}}')
    for number, name in ((6, "p [1] é%.parquet"), (7, "q:1.parquet"), (8, "r.parquet")):
        pq.write_table(pa.table({"order_id": [str(number)]}), landing.folder / name)
    landing.ingest()
    assert dict(landing.rows("_source_file", "order_id")) == {
        **{name: str(number) for number, name in enumerate(names)},
        "p [1] é%.parquet": "6",
        "q:1.parquet": "7",
        "r.parquet": "8",
    }


def test_a_landing_folder_inside_the_warehouse_is_refused(landing: Landing) -> None:
    inside = Path(landing.lake.settings.warehouse) / "landing"
    inside.mkdir(parents=True)
    landing.source = replace(landing.source, path=str(inside))
    with pytest.raises(BadInput, match="overlap"):
        landing.ingest()

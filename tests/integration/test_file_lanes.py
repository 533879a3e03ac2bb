"""The Arrow lane and Spark land files identically: the same rows, quarantine and reasons."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.integration import lane_files
from tests.unit.ingest import json_records

from thermocline.contract.definition import (
    Column,
    Contract,
    DriftMode,
    PartitionField,
    Rule,
    SortField,
)
from thermocline.contract.types import Decimal, Primitive
from thermocline.engine.arrow import normalize
from thermocline.engine.spark import SparkEngine
from thermocline.errors import CheckFailed
from thermocline.ingest.arrow import ambiguous, parquet
from thermocline.ingest.arrow.reader import ArrowReader
from thermocline.ingest.files import FileIngestReport, ingest
from thermocline.ingest.source import Source, TextOptions
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.lake.naming import new_run_id

if TYPE_CHECKING:
    from thermocline.lake import Lake

VOLATILE = {"_ingested_at", "quarantined_at", "run", "target"}
# Each example takes Spark seconds; many records are in it. Nothing is shrunk: it would take hours.
FEW = settings(
    max_examples=3, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
_numbers = itertools.count()


@pytest.fixture
def declined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons why the Arrow lane declined batches."""
    said: list[str] = []
    real = ArrowReader.attempt

    def attempt(self: ArrowReader, *, last: bool) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def record_decline() -> Iterator[None]:
            try:
                with real(self, last=last):
                    yield
            except NeedsSpark as reason:
                said.append(str(reason))
                raise

        return record_decline()

    monkeypatch.setattr(ArrowReader, "attempt", attempt)
    return said


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any use of Spark fails."""

    def refuse(_: SparkEngine) -> None:
        raise AssertionError("a JVM was asked for")

    monkeypatch.setattr(SparkEngine, "session", property(refuse))


class Pair:
    """A landing folder, and a table for each lane."""

    def __init__(self, lake: Lake, folder: Path, contract: Contract, **source: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lake = lake
        self.folder = folder
        self.number = next(_numbers)
        self.contract = contract
        self.source = Source("landing", str(folder), "", **{"bad_share": 1.0, **source})

    def put(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            (self.folder / name).write_bytes(content)

    def ingest(self, lane: str, **options: Any) -> FileIngestReport:
        target = f"bronze.{lane}_{self.number}"
        return ingest(
            self.lake, replace(self.source, target=target, lane=lane),
            replace(self.contract, table=target), run=new_run_id(), **options,
        )  # fmt: skip

    def rows(self, lane: str, layer: str = "bronze") -> list[tuple[str, ...]]:
        """All rows of a lane's table, to the last detail, without what differs by nature."""
        table = f"{layer}.{lane}_{self.number}"
        if not self.lake.exists(table):
            return []
        found = normalize(self.lake.iceberg(table).scan().to_arrow())
        kept = [name for name in found.column_names if name not in VOLATILE]
        rows = found.select(kept).to_pylist()
        return sorted(tuple(repr(value) for value in row.values()) for row in rows)

    def compare(self) -> FileIngestReport:
        """Take the files in by both lanes, and find no difference."""
        ours, theirs = self.ingest("auto"), self.ingest("spark")
        told = [(r.files, r.rows, r.quarantined, r.skipped) for r in (ours, theirs)]
        assert told[0] == told[1]
        assert self._refusals(ours) == self._refusals(theirs)
        assert self.rows("auto") == self.rows("spark")
        assert self.rows("auto", "quarantine") == self.rows("spark", "quarantine")
        return ours

    @staticmethod
    def _refusals(report: FileIngestReport) -> list[tuple[str, str]]:
        """The files that were refused, and why, without the table's name."""
        return [(each.file, each.reason.replace(report.target, "")) for each in report.refused]


def text_files(lines: list[bytes], ends: bytes) -> dict[str, bytes]:
    """The same lines in several files, compressed and not, one of them delivered twice."""
    half = len(lines) // 2
    first, rest = ends.join(lines[:half]) + ends, ends.join(lines[half:])
    return {
        "a.jsonl": first,
        "again.jsonl": first,
        "b.jsonl": b"\xef\xbb\xbf" + rest,
        "c.jsonl.gz": gzip.compress(b"\n \r\n" + rest + b"\n"),
        "d.jsonl.xz": lzma.compress(b"\n".join(lines)),
        "e.jsonl.bz2": bz2.compress(b""),
    }


@FEW
@given(
    st.lists(json_records.payloads(), min_size=200, max_size=400),
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
)
def test_json_lines_land_alike(
    lake: Lake, tmp_path: Path, declined: list[str], payloads: list[bytes], ends: bytes
) -> None:
    rules = (Rule("range", ("i",), (("min", -5), ("max", 10**6))), Rule("missing", ("o.x",)))
    contract = json_records.contract(DriftMode.RESCUE, rules=rules)
    contract = replace(contract, messages=False)
    pair = Pair(lake, tmp_path / str(next(_numbers)), contract)
    pair.put(text_files(payloads, ends))
    pair.compare()
    assert declined == []


@FEW
@given(
    st.lists(lane_files.csv_lines(), min_size=100, max_size=200),
    st.sampled_from([b"\n", b"\r\n"]),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_csv_lands_alike(
    lake: Lake, tmp_path: Path, declined: list[str], lines: list[bytes], end: bytes, mark: bytes
) -> None:
    contract = Contract(
        "bronze.t", lane_files.CSV_COLUMNS, drift=DriftMode.RESCUE, rules=lane_files.RULES
    )
    pair = Pair(lake, tmp_path / str(next(_numbers)), contract)
    good = b"1,a,,1.00,1.0,true,1,2026-03-01,2026-03-01T12:00:00,2026-03-01 12:00:00.000Z,1.0000000"
    files = {"a.csv": lane_files.csv_file([good, *lines], end, mark), "header.csv": b"s,i"}
    pair.put(files)
    report = pair.compare()
    assert declined == []
    assert report.rows > 0


@FEW
@given(st.lists(lane_files.parquet_files(), min_size=2, max_size=5))
def test_parquet_lands_alike(
    lake: Lake, tmp_path: Path, declined: list[str], files: list[bytes]
) -> None:
    contract = Contract(
        "bronze.t",
        lane_files.PARQUET_COLUMNS,
        drift=DriftMode.RESCUE,
        rules=lane_files.PARQUET_RULES,
    )
    pair = Pair(lake, tmp_path / str(next(_numbers)), contract)
    pair.put({f"{n}.parquet": content for n, content in enumerate(files)})
    pair.compare()
    assert declined == []


ORDERS = Contract(
    "bronze.t",
    (
        Column("id", Primitive("string"), required=True),
        Column("qty", Primitive("int")),
        Column("day", Primitive("date")),
        Column("total", Decimal(12, 2)),
    ),
    rules=(Rule("range", ("qty",), (("min", 0),)),),
    partition=(PartitionField("day"),),
    sort=(SortField("id", descending=True),),
)


def order(number: int, **more: Any) -> bytes:
    record = {"id": f"o{number}", "qty": number, "day": f"2026-03-0{1 + number % 3}", **more}
    return json.dumps(record).encode()


def jsonl(*lines: bytes) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def test_a_drift_that_must_be_decided_goes_by_spark(
    lake: Lake, tmp_path: Path, declined: list[str]
) -> None:
    files = {
        "a.jsonl": jsonl(order(1), order(2, color="red")),
        "b.jsonl": jsonl(order(3), b"bad"),
        "c.csv": b"id,size\n4,L\n",
    }
    for drift in (DriftMode.REFUSE, DriftMode.ADD):
        pair = Pair(lake, tmp_path / drift, replace(ORDERS, drift=drift))
        pair.put(files)
        pair.compare()
    # Once refused or added, what is left of the batch is taken swiftly.
    assert declined == ["fields that the contract does not name"] * 2


def test_a_share_of_bad_rows_that_is_too_large_is_told_alike(
    lake: Lake, tmp_path: Path, declined: list[str]
) -> None:
    pair = Pair(lake, tmp_path / "landing", ORDERS, bad_share=0.5)
    pair.put({"a.jsonl": jsonl(order(1), b"nope", order(-2))})
    said = []
    for lane in ("auto", "spark"):
        with pytest.raises(CheckFailed) as caught:
            pair.ingest(lane)
        said.append(str(caught.value).replace(lane, "t"))
        assert pair.rows(lane) == []
        data = Path(pair.lake.settings.warehouse.removeprefix("file://"))
        assert not list(data.glob(f"bronze*/auto_{pair.number}/data/**/*.parquet"))
    assert said[0] == said[1]
    assert "2 of 3 rows for bronze.t" in said[0]
    assert declined == []


def test_too_many_odd_records_are_sparks(
    lake: Lake, tmp_path: Path, declined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ambiguous, "MAX_RECORDS", 2)
    pair = Pair(lake, tmp_path / "landing", ORDERS)
    pair.put({"a.jsonl": jsonl(*(order(n) for n in range(50)), b"x", b"y", b"z")})
    report = pair.compare()
    assert (report.rows, report.quarantined) == (50, 3)
    assert declined == ["too many ambiguous records"]
    orphans = {path.name for path in (Path(lake.settings.warehouse)).rglob("*.parquet")}
    named = {
        Path(task.file.file_path).name
        for lane in ("auto", "spark")
        for layer in ("bronze", "quarantine")
        for task in lake.iceberg(f"{layer}.{lane}_{pair.number}").scan().plan_files()
    }
    assert orphans == named  # what was written before the lane declined is gone


def test_plain_files_of_every_format_need_no_jvm(
    lake: Lake, tmp_path: Path, no_jvm: None, declined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_ROWS", 1)
    pair = Pair(lake, tmp_path / "landing", ORDERS)
    table = pa.table({"qty": pa.array([7, 8], pa.int16()), "id": ["p7", "p8"]})
    pq.write_table(table, pair.folder / "a.parquet")
    pair.put(
        {
            "b.jsonl.zst": pa.compress(jsonl(order(1), b"", order(2)), codec="zstd", asbytes=True),
            "c.csv": b'id,total,day\n"c,""1",1.5,2026-03-01\nc2,,\n',
            "d.jsonl": (jsonl(order(3)).decode()).encode("utf-16"),
            "cut.jsonl.gz": gzip.compress(b"{}\n" * 1000)[:-9],
            "empty.csv": b"",
        }
    )
    report = pair.ingest("auto")
    assert (report.files, report.rows, report.quarantined) == (6, 7, 1)
    names = ["_source_file", "_position", "id", "qty", "total", "_rescued"]
    found = lake.iceberg(f"bronze.auto_{pair.number}").scan().to_arrow().select(names)
    assert sorted(tuple(str(v) for v in row.values()) for row in found.to_pylist()) == [
        ("a.parquet", "1", "p7", "7", "None", "None"),
        ("a.parquet", "2", "p8", "8", "None", "None"),
        ("b.jsonl.zst", "1", "o1", "1", "None", "None"),
        ("b.jsonl.zst", "3", "o2", "2", "None", "None"),
        ("c.csv", "1", 'c,"1', "None", "1.50", "None"),
        ("c.csv", "2", "c2", "None", "None", "None"),
        ("d.jsonl", "1", "o3", "3", "None", "None"),
    ]
    assert pair.ingest("auto").skipped == 6
    assert declined == []


def test_files_of_a_batch_are_laid_out_as_by_spark(lake: Lake, tmp_path: Path) -> None:
    pair = Pair(lake, tmp_path / "landing", ORDERS)
    pair.put({f"{n}.jsonl": jsonl(*(order(m) for m in range(n, 60, 3))) for n in range(3)})
    pair.compare()
    layouts = []
    for lane in ("auto", "spark"):
        files = lake.iceberg(f"bronze.{lane}_{pair.number}").scan().plan_files()
        layouts.append(
            sorted(
                (str(f.file.partition), pq.read_table(f.file.file_path)["id"].to_pylist())
                for f in files
            )
        )
    assert layouts[0] == layouts[1]
    assert len(layouts[0]) == 3


def test_options_that_csv_may_have(lake: Lake, tmp_path: Path, declined: list[str]) -> None:
    text = b"id;qty;total\n'a;''b';7;2\n'';1;1\nx\\'y;2;2\n'z\\'';3;3\nq;4;'4.5'\n"
    options = TextOptions(delimiter=";", quote="'", escape="\\")
    for number, each in enumerate((options, replace(options, escape="'"))):
        pair = Pair(lake, tmp_path / str(number), ORDERS, options=each)
        pair.put({"a.csv": text})
        pair.compare()
    assert declined == []
    pair = Pair(lake, tmp_path / "null", ORDERS, options=TextOptions(null="NA"))
    pair.put({"a.csv": b'id,qty\nNA,1\n"NA",2\n,3\n"",4\nb,NA\n'})
    pair.compare()
    assert declined == ["an unusual form of a missing value"]

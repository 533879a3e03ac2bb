"""Bad input of every kind: a clear error in a line or two, nothing lost, main unchanged."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import thermocline as tc
from thermocline.api import Lakehouse
from thermocline.errors import CatalogUnavailable, ThermoclineError
from thermocline.lake import catalog

CONTRACTS = {
    "bronze/raw": """
        apiVersion: v3.1.0
        kind: DataContract
        id: t.bronze.raw
        version: 1.0.0
        status: active
        schema:
          - name: raw
            properties:
              - {name: id, physicalType: string, required: true}
              - {name: amount, physicalType: "decimal(12,2)"}
              - {name: day, physicalType: date}
        customProperties:
          - {property: write, value: append}
          - {property: drift, value: refuse}
        """,
    "silver/clean": """
        apiVersion: v3.1.0
        kind: DataContract
        id: t.silver.clean
        version: 1.0.0
        status: active
        schema:
          - name: clean
            properties:
              - {name: id, physicalType: string, required: true, primaryKey: true}
              - {name: amount, physicalType: "decimal(12,2)"}
              - {name: day, physicalType: date}
        customProperties:
          - {property: write, value: merge}
        """,
}
SOURCE = "name: raw\nkind: files\npath: landing\nformat: auto\ntarget: bronze.raw\nbadShare: 0.5\n"
MODEL = "select id, max(amount) as amount, max(day) as day from bronze.raw group by id"
GOOD = [{"id": f"k{n}", "amount": "1.50", "day": "2026-01-01"} for n in range(3)]


def write(project: Path, name: str, text: str) -> None:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())


def jsonl(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def house(project: Path) -> Lakehouse:
    """A project with three good rows all the way to silver."""
    for name, text in CONTRACTS.items():
        write(project, f"contracts/{name}.odcs.yaml", text)
    write(project, "sources/raw.yaml", SOURCE)
    write(project, "models/silver/clean.sql", MODEL)
    write(project, "landing/a.jsonl", jsonl(*GOOD).decode())
    opened = tc.open(project)
    opened.ingest()
    opened.run()
    return opened


def mains(house: Lakehouse) -> dict[str, int | None]:
    return {info.name: info.snapshot for info in house.tables(companions=True)}


def clean_ids(house: Lakehouse) -> list[str]:
    return [str(row[0]) for row in house.query("select id from silver.clean order by id").rows]


def said(error: ThermoclineError) -> str:
    """The error as a person sees it: no traceback, not many lines."""
    text = str(error)
    assert "Traceback" not in text
    assert error.cause
    assert error.next_step
    return text


def append_to(name: str, text: str) -> Callable[[Path], None]:
    return lambda project: (project / name).open("a").write(text) and None  # type: ignore[func-returns-value]


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(project: Path) -> None:
        path = project / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


CLEAN = "contracts/silver/clean.odcs.yaml"
PROJECT_FAULTS = {
    "broken YAML": (append_to(CLEAN, "\n  - {oops: [\n"), "clean.odcs.yaml:"),
    "unknown type": (replaced(CLEAN, "physicalType: date", "physicalType: dat"), "dat"),
    "decimal out of range": (replaced(CLEAN, "decimal(12,2)", "decimal(50,2)"), "38"),
    "narrowed type": (replaced(CLEAN, "decimal(12,2)", "decimal(10,2)"), "narrows"),
    "changed type": (replaced(CLEAN, "physicalType: date", "physicalType: long"), "another type"),
    "dropped column": (
        replaced(CLEAN, "      - {name: day, physicalType: date}\n", ""),
        "not in the contract",
    ),
    "tightened column": (
        replaced(CLEAN, "{name: day, physicalType: date}",
                 "{name: day, physicalType: date, required: true}"),
        "cannot become required",
    ),
    "merge without a key": (replaced(CLEAN, ", primaryKey: true", ""), "key"),
    "python object in YAML": (
        append_to(CLEAN, "\nauthoritativeDefinitions: !!python/object/apply:os.system ['true']\n"),
        "clean.odcs.yaml:",
    ),
    "broken SQL": (replaced("models/silver/clean.sql", "select id", "select id frm ((")
                   , "clean.sql:"),
    "two statements": (append_to("models/silver/clean.sql", "; drop table x"), "one SELECT"),
    "unknown table": (replaced("models/silver/clean.sql", "bronze.raw", "bronze.nothing"),
                      "bronze.nothing"),
    "model without a contract": (
        lambda project: write(project, "models/gold/x.sql", "select id from silver.clean"),
        "no contract",
    ),
    "a setting that does not exist": (
        append_to("thermocline.toml", "\n[lake.catalogue]\ntype = 'sqlite'\n"), "catalog"),
    "a setting of the wrong type": (
        replaced("thermocline.toml", "shuffle_partitions = 2", "shuffle_partitions = 'many'"),
        "shuffle_partitions"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PROJECT_FAULTS)
def test_a_faulty_project_is_refused_before_anything_is_written(
    house: Lakehouse, fault: str
) -> None:
    change, expected = PROJECT_FAULTS[fault]
    before = mains(house)
    change(house.settings.project)
    with pytest.raises(ThermoclineError) as caught:
        tc.open(house.settings.project).run()
    assert expected in said(caught.value)
    assert mains(house) == before


def test_models_in_a_circle(house: Lakehouse) -> None:
    other = CONTRACTS["silver/clean"].replace("clean", "other")
    write(house.settings.project, "contracts/silver/other.odcs.yaml", other)
    write(house.settings.project, "models/silver/other.sql", "select * from silver.clean")
    write(house.settings.project, "models/silver/clean.sql", "select * from silver.other")
    with pytest.raises(ThermoclineError, match="circle") as caught:
        tc.open(house.settings.project).plan()
    assert "silver.clean → silver.other → silver.clean" in said(caught.value)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id, amount from bronze.raw", "day"),
        ("select nothing as id, amount, day from bronze.raw", "nothing"),
        ("select id, cast('x' as decimal(12,2)) as amount, day from bronze.raw", "silver.clean"),
    ],
)
def test_a_model_that_cannot_be_computed(house: Lakehouse, sql: str, expected: str) -> None:
    write(house.settings.project, "models/silver/clean.sql", sql)
    before = mains(house)
    with pytest.raises(ThermoclineError) as caught:
        tc.open(house.settings.project).run()
    assert expected in said(caught.value)
    assert mains(house) == before
    assert clean_ids(house) == ["k0", "k1", "k2"]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


NEW = [{"id": f"n{n}", "amount": "2.00", "day": "2026-01-02"} for n in range(4)]
DAMAGED_FILES = {
    "truncated.parquet": parquet(NEW)[:-20],
    "not.parquet": b"PAR1 this is not a parquet file PAR1",
    "truncated.jsonl.gz": gzip.compress(jsonl(*NEW) * 200)[:-30],
    "archive.jsonl.zip": b"PK\x03\x04" + b"\x00" * 40,
}


def test_damaged_files_are_set_aside_whole_and_the_others_land(house: Lakehouse) -> None:
    landing = house.settings.project / "landing"
    for name, content in DAMAGED_FILES.items():
        (landing / name).write_bytes(content)
    (landing / "empty.jsonl").write_bytes(b"")
    (landing / "good.jsonl").write_bytes(jsonl(*NEW))
    [target] = house.ingest().targets
    assert target.rows == len(NEW)
    assert house.query("select count(*) from bronze.raw").rows == [(7,)]
    kept = {row.file: row.reasons for row in house.quarantine()}
    assert set(kept) == set(DAMAGED_FILES)
    assert all(reasons for reasons in kept.values())
    [again] = house.ingest().targets
    assert (again.files, again.rows) == (0, 0)


def test_rows_that_break_the_contract_are_set_aside_with_their_place(house: Lakehouse) -> None:
    lines = [
        b'{"id": "n1", "amount": "2.00", "day": "2026-01-02"}',
        b'{"id": "n2", "amount": "two", "day": "2026-01-02"}',
        b"{not json",
        b'{"amount": "2.00", "day": "2026-01-02"}',
        b'{"id": "n5", "amount": "2.00", "day": "2026-13-45"}',
        b"\xff\xfe\x00garbage",
        *(f'{{"id": "m{n}", "amount": "1.00"}}'.encode() for n in range(6)),
    ]
    (house.settings.project / "landing" / "mixed.jsonl").write_bytes(b"\n".join(lines))
    [target] = house.ingest().targets
    assert (target.rows, target.quarantined) == (7, 5)
    assert sorted(row.position for row in house.quarantine()) == [2, 3, 4, 5, 6]


def test_a_file_that_is_mostly_bad_lands_not_at_all(house: Lakehouse) -> None:
    before = mains(house)
    rows = [{"id": f"x{n}", "amount": "no number"} for n in range(9)]
    (house.settings.project / "landing" / "bad.jsonl").write_bytes(jsonl(*rows, GOOD[0]))
    with pytest.raises(ThermoclineError, match="9 of 10 rows") as caught:
        house.ingest()
    said(caught.value)
    assert mains(house) == before


def test_a_file_with_unknown_columns_is_refused_by_name(house: Lakehouse) -> None:
    before = house.lake.state("bronze.raw").head()
    row = {**NEW[0], "surprise": 1}
    (house.settings.project / "landing" / "drift.jsonl").write_bytes(jsonl(row))
    [target] = house.ingest().targets
    assert target.rows == 0
    assert "surprise" in " ".join(target.refused)
    assert house.lake.state("bronze.raw").head() == before


def test_a_line_of_a_hundred_megabytes(house: Lakehouse) -> None:
    path = house.settings.project / "landing" / "long.jsonl"
    with path.open("wb") as file:
        file.write(jsonl(NEW[0]))
        file.write(b'{"id": "' + b"x" * 100_000_000 + b'"}\n')
        file.write(jsonl(NEW[1], NEW[2]))
    [target] = house.ingest().targets
    assert (target.rows, target.quarantined) == (3, 1)
    [kept] = house.quarantine()
    assert kept.position == 2
    assert len(kept.raw) < 1_000_000


@pytest.mark.parametrize("lane", ["auto", "spark"])
def test_a_full_disk(house: Lakehouse, lane: str) -> None:
    """A file-size limit stands in for a disk with no room: the write of a data file fails."""
    project = house.settings.project
    write(project, "sources/raw.yaml", f"{SOURCE}lane: {lane}\n")
    before = mains(house)
    rows = ({"id": os.urandom(40).hex(), "amount": "1.00"} for _ in range(60_000))
    (project / "landing" / "large.jsonl").write_bytes(jsonl(*rows))
    child = textwrap.dedent(
        """
        import os, resource, sys
        import thermocline as tc
        from thermocline.errors import ThermoclineError
        house = tc.open(sys.argv[1])
        writer = os.getpid()
        if sys.argv[2] == "spark":  # the JVM's own files may be as large as they are
            from thermocline.engine import gateway
            assert house.lake.spark.session.version
            [process] = gateway._processes
            writer = process.pid
        resource.prlimit(writer, resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        try:
            house.ingest()
        except ThermoclineError as error:
            print(error.cause)
            sys.exit(3)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", child, str(project), lane],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "bronze.raw" in done.stdout
    assert mains(house) == before
    [target] = house.ingest().targets
    assert target.rows == 60_000


def test_a_catalog_that_is_locked(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "TIMEOUT", 1.0)
    before = mains(house)
    (house.settings.project / "landing" / "b.jsonl").write_bytes(jsonl(*NEW))
    holder = sqlite3.connect(house.settings.catalog.uri, isolation_level=None)
    holder.execute("begin exclusive")
    try:
        with pytest.raises(ThermoclineError) as caught:
            tc.open(house.settings.project).table("bronze.raw").tag("t")
        assert "locked" in said(caught.value)
        assert isinstance(caught.value, CatalogUnavailable)
    finally:
        holder.rollback()
        holder.close()
    assert mains(house) == before


def test_a_catalog_that_is_damaged_or_gone(project: Path) -> None:
    (project / "lake").mkdir()
    database = project / "lake" / "catalog.db"
    database.write_bytes(b"this is not a database" * 100)
    with pytest.raises(CatalogUnavailable) as caught:
        tc.open(project).tables()
    assert "not a database" in said(caught.value)
    assert database.read_bytes() == b"this is not a database" * 100
    database.unlink()
    database.mkdir()
    with pytest.raises(CatalogUnavailable) as caught:
        tc.open(project).tables()
    said(caught.value)


def test_a_metadata_file_that_is_missing(house: Lakehouse) -> None:
    state = house.lake.state("silver.clean")
    path = Path(state.metadata_location.removeprefix("file://"))
    shutil.move(path, path.with_suffix(".away"))
    with pytest.raises(ThermoclineError, match="which is not there") as caught:
        house.table("silver.clean").history()
    said(caught.value)
    shutil.move(path.with_suffix(".away"), path)
    assert clean_ids(house) == ["k0", "k1", "k2"]


@pytest.mark.parametrize(
    "sql",
    [
        "", "select", "drop table silver.clean", "select 1; select 2", "select * from nowhere",
        "select * from silver.nothing", "select nothing from silver.clean",
        "insert into silver.clean select * from silver.clean", "select * from '/etc/passwd'",
        "select * from read_csv('/etc/passwd')", "copy silver.clean to '/tmp/x.csv'",
        "select * from silver.clean\x00", "(" * 3000, "select getenv('HOME')",
        "attach '/tmp/x.db'", "select * from a.b.c.d", "from glob('/*')",
    ],
)  # fmt: skip
def test_queries_that_cannot_be_answered(house_once: Lakehouse, sql: str) -> None:
    before = mains(house_once)
    with pytest.raises(ThermoclineError) as caught:
        house_once.query(sql)
    said(caught.value)
    assert mains(house_once) == before


@pytest.mark.parametrize(
    "name",
    ["a'; drop table t--", "*.*", "../b", "b.\x00", "x" * 10_000, "silver.ｃlean", "a.b.c", ""],
)
def test_names_that_are_none(house_once: Lakehouse, name: str) -> None:
    with pytest.raises(ThermoclineError) as caught:
        house_once.table(name)
    assert len(said(caught.value)) < 300
    if name == "a.b.c":
        return  # no table's name, but a tag's or an environment's
    with pytest.raises(ThermoclineError):
        house_once.table("silver.clean").tag(name)
    with pytest.raises(ThermoclineError):
        house_once.run(env=name or "..")


@pytest.fixture(scope="module")
def house_once(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """One project for the tests that must not change anything."""
    from tests.conftest import SETTINGS

    project = tmp_path_factory.mktemp("once")
    write(project, "thermocline.toml", SETTINGS)
    for name, text in CONTRACTS.items():
        write(project, f"contracts/{name}.odcs.yaml", text)
    write(project, "sources/raw.yaml", SOURCE)
    write(project, "models/silver/clean.sql", MODEL)
    write(project, "landing/a.jsonl", jsonl(*GOOD).decode())
    opened = tc.open(project)
    opened.ingest()
    opened.run()
    return opened

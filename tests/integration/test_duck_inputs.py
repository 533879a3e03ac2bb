"""What a step on DuckDB reads, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from thermocline.config import load_settings
from thermocline.contract import Column, Contract
from thermocline.contract.definition import PartitionField
from thermocline.contract.types import Primitive
from thermocline.engine.duck import UnsupportedByDuckDB
from thermocline.errors import CheckFailed
from thermocline.lake import Lake, atomic_commit
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.session import Session
from thermocline.transform.duck.strategies import write
from thermocline.transform.inputs import SourceSpan

SOURCE = Contract("bronze.s", (Column("id", Primitive("long")), Column("n", Primitive("string"))))
TARGET = Contract(
    "silver.t",
    (Column("id", Primitive("long"), True), Column("n", Primitive("int"))),
    partition=(PartitionField("id", "bucket", 2),),
)


@pytest.fixture
def session(lake: Lake) -> Iterator[Session]:
    """A session over a source and a target."""
    lake.ensure(SOURCE)
    lake.ensure(TARGET)
    opened = Session(lake)
    yield opened
    opened.close()


def land(lake: Lake, *rows: tuple[int, str | None]) -> int:
    """Append rows to the source; the snapshot that made."""
    draft = lake.draft(f"r{len(lake.state(SOURCE.table).snapshots)}")
    ids, texts = zip(*rows, strict=True)
    table = pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array(texts, pa.string())})
    made = draft.append(SOURCE.table, table, bookmark=None, operation="ingest")
    draft.publish()
    return made


def test_what_was_appended_is_read_as_often_as_it_is_asked_for(
    lake: Lake, session: Session
) -> None:
    first = land(lake, (1, "1"))
    land(lake, (2, "2"), (3, None))
    last = land(lake, (4, "4"))
    reader = DuckReader(session)
    rows = reader.read_appended(SourceSpan(SOURCE.table, first, last))
    for _ in range(2):
        assert sorted(session.fetch(f"select id, n from ({rows})")) == [
            (2, "2"),
            (3, None),
            (4, "4"),
        ]
    assert session.fetch(reader.read_appended(SourceSpan(SOURCE.table, last, last))) == []
    assert len(session.fetch(reader.read_appended(SourceSpan(SOURCE.table, None, last)))) == 4


def test_values_that_do_not_fit_are_named_among_appended_rows_too(
    lake: Lake, session: Session
) -> None:
    first, last = land(lake, (1, "1")), land(lake, (2, "2.5"), (3, "x"))
    rows = DuckReader(session).read_appended(SourceSpan(SOURCE.table, first, last))
    with pytest.raises(CheckFailed, match=r"n: 2 values are no int, for example '2.5'"):
        write(session, rows, TARGET, lake.draft("w"), bookmark={})


def test_rows_are_computed_again_for_a_table_that_changed_its_shape_meanwhile(
    lake: Lake, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = land(lake, (1, "1")), land(lake, (2, "2"), (3, "3"))
    rows = DuckReader(session).read_appended(SourceSpan(SOURCE.table, first, last))
    real = atomic_commit.commit_all

    def evolved(*args: Any) -> None:
        monkeypatch.setattr(atomic_commit, "commit_all", real)
        with lake.iceberg(TARGET.table).update_schema() as update:
            update.add_column("more", StringType())
        real(*args)

    draft = lake.draft("w")
    draft.begin(TARGET.table)
    monkeypatch.setattr(atomic_commit, "commit_all", evolved)
    made = write(session, rows, TARGET, draft, bookmark={})
    assert lake.state(TARGET.table).snapshot(made).count("added-records") == 2


def test_what_spark_would_cast_otherwise_is_left_to_it(lake: Lake, session: Session) -> None:
    text = Contract("silver.t", (Column("n", Primitive("string")),))
    with pytest.raises(UnsupportedByDuckDB, match="n is a DOUBLE"):
        write(session, "select 1e20::double as n", text, lake.draft("a"), bookmark={})
    day = Contract("silver.t", (Column("n", Primitive("date")),))
    with pytest.raises(UnsupportedByDuckDB, match="n is a INTEGER"):
        write(session, "select 7 as n", day, lake.draft("b"), bookmark={})
    with pytest.raises(UnsupportedByDuckDB, match="no_such_function"):
        write(session, "select no_such_function(1) as n", day, lake.draft("c"), bookmark={})


def test_what_does_not_fit_in_memory_goes_to_a_folder_of_its_own(project: Path) -> None:
    (project / "thermocline.toml").write_text('[engine.duckdb]\nmemory_limit = "64MB"\nthreads = 1')
    sessions = [Session(Lake(load_settings(project, environ={}))) for _ in range(2)]
    wide = "select i, repeat(md5((i + {}) :: varchar), 4) as s from range(1000000) t(i)"
    kept = [session.materialize(wide.format(n)) for n, session in enumerate(sessions)]
    rooms = list((project / ".thermocline" / "duckdb").glob("p-*/*"))
    assert len(rooms) == 2 and all(any(room.iterdir()) for room in rooms)
    for n, (session, name) in enumerate(zip(sessions, kept, strict=True)):
        wrong = f"select count(*) from {name} where s <> repeat(md5((i + {n}) :: varchar), 4)"
        assert session.fetch(wrong) == [(0,)]
        session.close()
    assert not any(room.exists() for room in rooms)

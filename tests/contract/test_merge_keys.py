"""Files that DuckDB leaves out of a merge hold no key of it, whatever statistics they have."""

from __future__ import annotations

import random
import re
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from thermocline.contract import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.naming import new_run_id
from thermocline.transform.duck import key_filters
from thermocline.transform.duck.commits import DraftTable
from thermocline.transform.duck.session import Session

TABLE = "silver.t"
METRICS = ["none", "counts", "truncate(2)", "truncate(16)", "full"]
KINDS = {"int": pa.int32(), "long": pa.int64(), "date": pa.date32(), "string": pa.string()}

pytestmark = pytest.mark.parametrize("catalog_environ", ["sqlite"], indirect=True)


def values(kind: str, chance: random.Random, count: int) -> list[Any]:
    """Different keys, near each other and far apart."""
    if kind == "date":
        days = chance.sample(range(-400, 40_000), count)
        return [date(1970, 1, 1) + timedelta(days=day) for day in days]
    if kind == "string":
        made = {"", "'", "a" * 16, "a" * 17, "ﬀ" * 20, "\U0001f600" * 17, "\U0010ffff" * 18, "Ä"}
        while len(made) < count:
            letters = chance.choices("aab'\\ ﬀ\U0001f600%Z0\n", k=chance.randint(1, 24))
            made.add("".join(letters))
        return chance.sample(sorted(made), count)
    most = 2**31 - 1 if kind == "int" else 2**53
    return chance.sample([*range(-50, 50), *(most - n for n in range(100))], count)


def batch_of(session: Session, kind: str, wanted: list[Any]) -> str:
    rows = pa.table({"k": pa.array(wanted, KINDS[kind])})
    return session.materialize(f"SELECT k FROM {session.register(rows)}")


def found_by(session: Session, rows: str) -> list[Any]:
    return sorted(row[0] for row in session.fetch(f"SELECT k FROM ({rows})"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_no_row_with_a_key_of_the_batch_is_left_out(
    lake: Lake, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{kind} {seed}")
    columns = (Column("k", Primitive(kind), True), Column("n", Primitive("long")))
    contract = Contract(TABLE, columns, key=("k",))
    lake.ensure(contract)
    every = values(kind, chance, 60)
    left = sorted(every) if chance.random() < 0.5 else every
    while left:
        part, left = left[:9], left[9:]
        table = lake.iceberg(TABLE)
        with table.transaction() as transaction:
            metrics = chance.choice(METRICS)
            transaction.set_properties({"write.metadata.metrics.default": metrics})
        now = table.schema().find_type("k")
        type_ = pa.int64() if isinstance(now, LongType) else KINDS[kind]
        draft = lake.draft(new_run_id())
        rows = pa.table({"k": pa.array(part, type_), "n": pa.array(range(len(part)))})
        draft.append(TABLE, rows, bookmark=None, operation="ingest")
        draft.publish()
        if chance.random() < 0.3:
            with lake.iceberg(TABLE).update_spec() as update:
                transform = chance.choice([BucketTransform(3), IdentityTransform()])
                if not lake.iceberg(TABLE).spec().fields:
                    update.add_field("k", transform, "part")
        if kind == "int" and chance.random() < 0.4:
            with lake.iceberg(TABLE).update_schema() as schema:
                schema.update_column("k", LongType())
    is_long = isinstance(lake.iceberg(TABLE).schema().find_type("k"), LongType)
    stored = "long" if is_long else kind
    contract = Contract(TABLE, (Column("k", Primitive(stored), True), columns[1]), key=("k",))
    session, draft = Session(lake), lake.draft(new_run_id())
    draft.begin(TABLE)
    target = DraftTable(session, contract, draft, "")
    assert found_by(session, target.current_rows) == sorted(every)
    for count in (1, 3, 20, 60):
        wanted = chance.sample(every, count)
        batch = batch_of(session, stored, wanted)
        for most in (500, 2):
            monkeypatch.setattr(key_filters, "MAX_LITERALS", most)
            near = key_filters.build_key_filter(session, contract, ["k"], batch)
            assert (" IN (" in near) == (count <= most)
            found = found_by(session, target.rows_near(batch))
            assert set(wanted) <= set(found) <= set(every), (near, wanted)
            assert count > most or set(found) == set(wanted)
    session.clear()
    session.close()


def test_only_files_that_can_hold_a_key_are_opened(lake: Lake) -> None:
    columns = (Column("k", Primitive("long"), True), Column("at", Primitive("timestamptz")))
    contract = Contract(TABLE, columns, key=("k",))
    lake.ensure(contract)
    for first in range(0, 100, 10):
        rows = pa.table({"k": pa.array(range(first, first + 10), pa.int64())})
        draft = lake.draft(new_run_id())
        draft.append(TABLE, rows, bookmark=None, operation="ingest")
        draft.publish()
    session, draft = Session(lake), lake.draft(new_run_id())
    draft.begin(TABLE)
    target = DraftTable(session, contract, draft, "")

    def of(*wanted: int) -> str:
        near = key_filters.build_key_filter(
            session, contract, ["k"], batch_of(session, "long", list(wanted))
        )
        return f"SELECT * FROM ({target.current_rows}) WHERE {near}"

    def opened(rows: str) -> int:
        ((_, text),) = session.fetch(f"EXPLAIN ANALYZE SELECT sum(k) FROM ({rows})")
        return int(re.findall(r"Total Files Read: (\d+)", text)[0])

    assert opened(target.current_rows) == 10
    assert opened(of(5, 97)) == 2
    assert opened(of(1000)) == 0
    none = session.materialize("SELECT CAST(NULL AS BIGINT) AS k LIMIT 0")
    assert found_by(session, target.rows_near(none)) == []
    for unnamed in ("timestamptz", "double", "uuid", "decimal(9,2)", "boolean", "binary"):
        odd = Contract(TABLE, (Column("k", Primitive(unnamed)),), key=("k",))
        assert key_filters.build_key_filter(session, odd, ["k"], none) == "true"
    session.close()

"""Where a query is split, and how long the result of its older part stays valid."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.unit.serve.data_files import file, sums

from thermocline.serve.incremental_results import Boundary, find_boundary
from thermocline.serve.query_preparation import PreparedQuery, QueryPreparer
from thermocline.serve.values import HotCopy, LakeState, QueryRequest, TableHead

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
TODAY = datetime(2026, 11, 16)
SINCE = datetime(2026, 11, 9, tzinfo=UTC)
FILES = tuple(
    file(1000, 100_000, at, at + timedelta(hours=23), id=n)
    for n in range(12)
    for at in [datetime(2026, 11, 5 + n, tzinfo=UTC)]
)
HEAD = TableHead(
    "s.t", "u", 3, "m", NOW, {"at": "timestamptz", "n": "long"}, "at", (3, 2, 1), sums(*FILES), 1
)


def prepared(sql: str, dialect: str = "duckdb") -> PreparedQuery:
    return QueryPreparer()(QueryRequest(sql, dialect), {"s.t": HEAD}, NOW)


def found(
    sql: str = "select count(*) from s.t where at >= '2026-11-06'",
    *,
    dialect: str = "duckdb",
    head: TableHead = HEAD,
    held: HotCopy | None = None,
    worth: int = 1,
    now: datetime = NOW,
) -> Boundary | None:
    copies = {"n0": {"s.t": held or HotCopy(3, SINCE)}, "n1": {}}
    lake_state = LakeState(1, NOW, {"s.t": head}, copies)
    return find_boundary(prepared(sql, dialect), lake_state, {"n0": 2, "n1": 0}, now, worth)


def test_it_is_midnight_where_a_node_holds_the_rest() -> None:
    where = found()
    assert where is not None
    assert (where.table, where.node, where.at) == ("s.t", "n0", TODAY)


def test_it_is_where_the_copy_begins_when_that_is_later() -> None:
    where = found(held=HotCopy(3, NOW - timedelta(hours=2)))
    assert where is not None
    assert where.at == TODAY + timedelta(hours=10)


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from s.t",  # rows without a time count, too
        "select count(*) from s.t where at >= '2026-11-16'",  # all of it is new
        "select count(*) from s.t where at between '2026-11-06' and '2026-11-15'",  # nothing is
        "select count(*) from s.t a, s.t b where a.at > '2026-11-06' and b.n > 1",
    ],
)
def test_some_questions_have_no_two_sides(sql: str) -> None:
    assert found(sql) is None


def test_there_must_be_something_to_gain() -> None:
    # Ten files from the sixth on: a million rows before today.
    assert found(worth=1_000_000) is not None
    assert found(worth=1_000_001) is None


def test_only_the_newest_copy_will_do() -> None:
    assert found(held=HotCopy(2, SINCE)) is None
    assert found(head=replace(HEAD, time=None)) is None
    assert found(dialect="trino") is None


def test_the_older_part_is_the_same_while_its_files_are() -> None:
    before = found()
    newer = file(1, 1, NOW, NOW, id=90)
    late = file(1, 1, NOW - timedelta(days=2), NOW, id=91)
    unknown = file(1, 1, id=92)
    assert before is not None

    def version(**changed: object) -> object:
        where = found(head=replace(HEAD, snapshot=3, **changed))  # type: ignore[arg-type]
        assert where is not None
        return where.version

    assert version(files=sums(*FILES, newer)) == before.version
    assert version(files=sums(*reversed(FILES))) == before.version
    for changed in (
        {"files": sums(*FILES, late)},
        {"files": sums(*FILES, unknown)},
        {"files": sums(*FILES[1:])},
        {"deletes": 7},
        {"columns": {**HEAD.columns, "more": "int"}},
        {"uuid": "another"},
    ):
        assert version(**changed) != before.version, changed


def test_a_file_that_ends_today_but_began_before_is_older() -> None:
    edge = file(1, 1, TODAY.replace(tzinfo=UTC) - timedelta(microseconds=1), NOW, id=93)
    first = file(1, 1, TODAY.replace(tzinfo=UTC), NOW, id=94)
    before, with_edge, with_first = (
        found(head=replace(HEAD, files=sums(*FILES, *more))) for more in ((), (edge,), (first,))
    )
    assert before is not None and with_edge is not None and with_first is not None
    assert with_edge.version != before.version
    assert with_first.version == before.version

"""A catalog that is locked, gone or cut off while committing: three outcomes, and no loss.

The commit landed, or it did not, or nobody can say. Only looking decides, and whatever may still
be needed is left alone.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event, exc
from sqlalchemy.orm import Session

from thermocline.contract import Column, Contract, WriteMode
from thermocline.contract.types import Primitive
from thermocline.errors import CatalogUnavailable, CommitConflict, CommitUnknown
from thermocline.lake import Draft, Lake, refs
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import catalog as catalogs
from thermocline.lake.orphans import find_orphans, list_files, referenced_files

TABLES = ("silver.a", "silver.b")
LOCKER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
db.execute("begin immediate")
db.execute("update iceberg_tables set catalog_name = catalog_name")
print("locked", flush=True)
sys.stdin.read()
db.execute("rollback")
"""


@pytest.fixture
def impatient(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake of two tables that waits for a lock for a moment instead of a minute."""
    monkeypatch.setattr(catalogs, "TIMEOUT", 1.0)
    for table in TABLES:
        columns = (Column("id", Primitive("string"), True),)
        lake.ensure(Contract(table, columns, key=("id",), write=WriteMode.MERGE))
    return lake


@contextmanager
def locked(lake: Lake) -> Iterator[None]:
    """Another process holds the catalog: writers wait, readers do not."""
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCKER, lake.settings.catalog.uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    try:
        yield
    finally:
        holder.stdin.close()
        assert holder.wait(timeout=30) == 0
        holder.stdout.close()


def write_drafts(lake: Lake, run: str, id_: str) -> Draft:
    """A draft with one more row in both tables."""
    draft = lake.draft(run)
    frame = lake.spark.session.createDataFrame([(id_,)], "id string")
    for table in TABLES:
        draft.commit(
            table,
            lambda target: frame.writeTo(target).option("check-nullability", "false").append(),
            bookmark={"source": 1},
            operation="append",
        )
    return draft


def heads(lake: Lake) -> dict[str, int | None]:
    return {table: lake.state(table).head() for table in TABLES}


def ids(lake: Lake) -> dict[str, list[str]]:
    return {t: sorted(lake.iceberg(t).scan().to_arrow().to_pydict()["id"]) for t in TABLES}


def nothing_is_lost(lake: Lake) -> None:
    for table in TABLES:
        iceberg = lake.iceberg(table)
        assert referenced_files(iceberg) <= {path for path, _ in list_files(iceberg)}


def files(lake: Lake) -> set[Path]:
    return {
        p
        for p in Path(lake.settings.warehouse).rglob("*")
        if p.suffix in {".json", ".parquet", ".avro"}
    }


def test_a_locked_catalog_means_not_landed_and_nothing_is_deleted(impatient: Lake) -> None:
    """Writers are kept out, readers are not: the look-up says that it did not land."""
    lake = impatient
    draft = write_drafts(lake, "LOCKED", "x")
    before, there = heads(lake), files(lake)
    with locked(lake), pytest.raises(CatalogUnavailable, match="locked") as caught:
        draft.publish()
    assert type(caught.value) is CatalogUnavailable and caught.value.transient
    assert heads(lake) == before
    assert ids(lake) == {"silver.a": [], "silver.b": []}
    assert there <= files(lake)

    draft.publish()

    assert ids(lake) == {"silver.a": ["x"], "silver.b": ["x"]}
    assert [list(lake.state(table).refs) for table in TABLES] == [["main"], ["main"]]
    nothing_is_lost(lake)


def cut_off(
    monkeypatch: pytest.MonkeyPatch, *, landed: bool, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """The connection of the next transaction breaks just before or just after it commits."""
    commit = Session.commit

    def breaks(session: Session) -> None:
        monkeypatch.setattr(Session, "commit", commit)
        if landed:
            commit(session)
        else:
            session.rollback()
        meanwhile()
        raise exc.OperationalError("commit", {}, sqlite3.OperationalError("disk I/O error"))

    monkeypatch.setattr(Session, "commit", breaks)


def test_a_commit_that_landed_before_the_connection_broke_is_a_success(
    impatient: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = write_drafts(impatient, "CUT", "x")
    cut_off(monkeypatch, landed=True)
    published = draft.publish()
    assert {table: after for table, (_, after) in published.tables.items()} == heads(impatient)
    assert ids(impatient) == {"silver.a": ["x"], "silver.b": ["x"]}
    nothing_is_lost(impatient)


def test_a_commit_that_landed_is_found_below_the_commits_of_others(
    impatient: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both tables have moved on by the time we look; ours is in their history."""
    lake = impatient
    draft = write_drafts(lake, "CUT", "x")

    def others() -> None:
        other = Lake(lake.settings)
        other.commit([refs.new_ref(other.state(t), "theirs", None, tag=True) for t in TABLES])

    cut_off(monkeypatch, landed=True, meanwhile=others)
    draft.publish()
    assert ids(lake) == {"silver.a": ["x"], "silver.b": ["x"]}
    assert [sorted(lake.state(t).refs) for t in TABLES] == [["main", "theirs"]] * 2
    nothing_is_lost(lake)
    assert find_orphans(lake.iceberg("silver.a")) == []


def test_a_commit_that_broke_off_before_it_landed_can_be_done_again(
    impatient: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = impatient
    draft = write_drafts(lake, "CUT", "x")
    before = heads(lake)
    cut_off(monkeypatch, landed=False)
    with pytest.raises(CatalogUnavailable, match="disk I/O error"):
        draft.publish()
    assert heads(lake) == before
    # What was staged stays: a server that lost us may yet finish the commit. It is known for it.
    left = [path for table in TABLES for path, _ in find_orphans(lake.iceberg(table))]
    assert len(left) == 2 and all(path.endswith(".metadata.json") for path in left)
    draft.publish()
    assert ids(lake) == {"silver.a": ["x"], "silver.b": ["x"]}
    nothing_is_lost(lake)


@pytest.mark.parametrize("landed", [True, False])
def test_a_catalog_that_is_gone_means_unknown_and_nothing_is_deleted(
    impatient: Lake, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """The connection breaks and nobody answers the look-up. When it is back, main says which."""
    lake = impatient
    draft = write_drafts(lake, "GONE", "x")
    before, there = heads(lake), files(lake)
    engine = lake.catalog.engine  # type: ignore[attr-defined]
    gone = []

    def refuse(*_: object) -> None:
        if gone:
            raise sqlite3.OperationalError("unable to open database file")

    event.listen(engine, "before_cursor_execute", refuse)
    cut_off(monkeypatch, landed=landed, meanwhile=lambda: gone.append(True))
    with pytest.raises(CommitUnknown, match="not known whether") as caught:
        draft.publish()
    assert sorted(caught.value.details["tables"]) == list(TABLES)
    gone.clear()

    assert there <= files(lake)
    assert (heads(lake) != before) == landed
    expected = ["x"] if landed else []
    assert ids(lake) == {"silver.a": expected, "silver.b": expected}
    nothing_is_lost(lake)
    if not landed:
        draft.publish()
        assert ids(lake) == {"silver.a": ["x"], "silver.b": ["x"]}


def test_a_write_whose_commit_cannot_be_looked_up_is_unknown(
    impatient: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark wrote, and then nobody can open the catalog: the branch is left as it is."""
    lake = impatient
    frame = lake.spark.session.createDataFrame([("x",)], "id string")
    draft = lake.draft("BLIND")

    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    def write(target: str) -> None:
        frame.writeTo(target).option("check-nullability", "false").append()
        monkeypatch.setattr(sqlite3, "connect", refuse)

    with pytest.raises(CommitUnknown, match=r"the commit to silver\.a landed") as caught:
        draft.commit("silver.a", write, bookmark={"source": 1}, operation="append")
    monkeypatch.undo()
    found = bookmarks.find_commit(lake.state("silver.a"), caught.value.details["commit"])
    assert found is not None and found.id == lake.state("silver.a").head(draft.branch)
    assert ids(lake)["silver.a"] == []


def test_a_conflict_in_the_second_table_takes_back_what_was_staged_for_the_first(
    impatient: Lake,
) -> None:
    lake = impatient
    changes = [refs.new_ref(lake.state(table), "mine", None, tag=True) for table in TABLES]
    lake.commit(changes[1:])
    with pytest.raises(CommitConflict, match=r"silver\.b was changed by another process"):
        lake.commit(changes)
    assert "mine" not in lake.state("silver.a").refs
    assert [find_orphans(lake.iceberg(table)) for table in TABLES] == [[], []]

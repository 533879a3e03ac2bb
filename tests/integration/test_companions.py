"""A table and its companions are one unit: whatever moves one between versions moves all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.integration.odcs import HEAD
from tests.integration.table_histories import BRONZE, CONTRACTS, EVENTS, MODELS, SOURCE, TARGET

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.errors import BadInput, NotFound
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import companions, refs
from thermocline.lake.changes import read_rows
from thermocline.lake.metadata import location_path

QUARANTINE = "quarantine.events"
TOMBSTONES = companions.tombstones_of(TARGET)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Unit:
    """A project with a bronze table, its quarantine, and a table with tombstones."""

    def __init__(self, project: Path, write: str, engine: str) -> None:
        self.project = project
        files = {
            "thermocline.toml": f'{SETTINGS}[transform]\nengine = "{engine}"\n',
            "contracts/bronze/events.odcs.yaml": HEAD.format(name="events") + BRONZE,
            "contracts/silver/t.odcs.yaml": HEAD.format(name="t") + CONTRACTS[write],
            "models/silver/t.sql": MODELS[write].format(factor=1),
            "sources/events.yaml": SOURCE,
        }
        for name, text in files.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        (project / "landing").mkdir()
        self.house = Lakehouse(load_settings(project, environ=clean_environment()))

    def deliver(self, name: str, *events: tuple[int, int, Any, str]) -> None:
        """Ingest a file of events: id, hour, amount, operation; `seq` is the hour."""
        said = [
            {
                "id": i,
                "at": (START + timedelta(hours=h)).isoformat(),
                "seq": h,
                "amount": a,
                "op": o,
            }
            for i, h, a, o in events
        ]
        (self.project / "landing" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, said)))
        self.house.ingest()

    def head(self, table: str, ref: str = "main") -> int:
        head = self.house.lake.state(table).head(ref)
        assert head is not None
        return head

    def rows(self, table: str, *columns: str, ref: str = "main") -> list[tuple[Any, ...]]:
        found = read_rows(self.house.lake.iceberg(table), self.head(table, ref)).select(columns)
        made = [tuple(row.values()) for row in found.to_pylist()]
        return sorted(made, key=lambda row: tuple((value is not None, value) for value in row))


@pytest.fixture(params=["duckdb", "spark"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def merge(project: Path, engine: str) -> Iterator[Unit]:
    unit = Unit(project, "merge", engine)
    yield unit
    unit.house.lake.duck.stop()


@pytest.fixture
def scd2(project: Path, engine: str) -> Iterator[Unit]:
    unit = Unit(project, "scd2", engine)
    yield unit
    unit.house.lake.duck.stop()


@pytest.fixture
def bronze(project: Path) -> Iterator[Unit]:
    unit = Unit(project, "merge", "spark")
    yield unit
    unit.house.lake.duck.stop()


def hour(number: int) -> datetime:
    return START + timedelta(hours=number)


def test_a_delete_that_was_rolled_back_buries_nothing(merge: Unit) -> None:
    merge.deliver("one", (1, 1, 10, "u"))
    merge.house.run()
    before = merge.head(TARGET)
    merge.deliver("two", (1, 5, 0, "d"))
    merge.house.run()
    assert merge.rows(TARGET, "id") == []
    bronze_before = merge.house.table(EVENTS).history()[1].snapshot
    done = merge.house.table(TARGET).rollback(before)
    assert set(done.tables) == {TARGET, TOMBSTONES}
    assert merge.rows(TOMBSTONES, "id") == []
    merge.house.table(EVENTS).rollback(bronze_before)
    (merge.project / "landing" / "two.jsonl").unlink()
    merge.deliver("three", (1, 3, 30, "u"))
    merge.house.run()
    assert merge.rows(TARGET, "id", "amount") == [(1, 30)]


def test_the_same_events_again_make_the_same_versions(scd2: Unit) -> None:
    scd2.deliver("one", (1, 1, 10, "u"))
    scd2.house.run()
    before = scd2.head(TARGET)
    scd2.deliver("two", (1, 2, 10, "u"), (1, 3, 11, "u"), (1, 4, 0, "d"), (1, 5, 12, "u"))
    scd2.house.run()
    columns = ("id", "_valid_from", "_valid_to", "_is_current")
    expected = [
        (1, hour(1), hour(3), False), (1, hour(3), hour(4), False), (1, hour(5), None, True)
    ]  # fmt: skip
    assert scd2.rows(TARGET, *columns) == expected
    kept = scd2.rows(TOMBSTONES, "id", "at", "_kind")
    scd2.house.table(TARGET).rollback(before)
    assert scd2.rows(TOMBSTONES, "id") == []
    assert [step.table for step in scd2.house.plan().steps] == [TARGET]
    scd2.house.run()
    assert scd2.rows(TARGET, *columns) == expected
    assert scd2.rows(TOMBSTONES, "id", "at", "_kind") == kept


def test_tags_and_branches_name_the_companion_as_well(merge: Unit) -> None:
    merge.deliver("one", (1, 1, 10, "u"), (2, 1, 20, "d"))
    merge.house.run()
    first = merge.head(TARGET)
    merge.deliver("two", (1, 5, 0, "d"))
    merge.house.run()
    table = merge.house.table(TARGET)
    table.tag("then", at=first)
    table.branch("side", at=first)
    for name in ("then", "side"):
        assert merge.rows(TOMBSTONES, "id", ref=name) == [(2,)]
        assert merge.rows(TARGET, "id", ref=name) == [(1,)]
    table.rollback("then")
    assert merge.rows(TOMBSTONES, "id") == [(2,)]
    table.drop_ref("side")
    assert "side" not in merge.house.lake.state(TOMBSTONES).refs
    assert "then" in merge.house.lake.state(TOMBSTONES).refs


def test_doctor_finds_a_companion_that_was_left_behind(merge: Unit) -> None:
    merge.deliver("one", (1, 1, 10, "u"))
    merge.house.run()
    first = merge.head(TARGET)
    merge.deliver("two", (1, 5, 0, "d"))
    merge.house.run()
    lake = merge.house.lake

    def found() -> list[tuple[str, str]]:
        return [(f.detail, f.next_step) for f in merge.house.doctor() if f.what == "companions"]

    assert found() == []
    lake.commit([refs.rollback(lake.state(TARGET), first)])  # as an earlier version did it
    assert found() == [
        (f"{TOMBSTONES} does not match the current snapshot of {TARGET}",
         f"Roll it back with its table: thermo rollback {TARGET} --to {first}."),
    ]  # fmt: skip
    merge.house.table(TARGET).rollback(first)
    assert found() == []
    assert merge.rows(TOMBSTONES, "id") == []


def test_a_companion_is_not_moved_alone(merge: Unit) -> None:
    merge.deliver("one", (1, 1, 10, "d"))
    merge.house.run()
    head = merge.head(TOMBSTONES)
    companion = merge.house.table(TOMBSTONES)
    for act in (
        lambda: companion.rollback(head),
        lambda: companion.tag("x"),
        lambda: companion.branch("x"),
        lambda: companion.drop_ref("x"),
    ):
        with pytest.raises(BadInput, match=f"is a part of {TARGET} and always moves with it"):
            act()


def test_an_environment_begins_beside_its_table(merge: Unit) -> None:
    merge.deliver("one", (1, 1, 10, "u"))
    merge.house.run()
    merge.house.table(TARGET).branch("env-dev")
    # As an earlier version left it: only the table has the branch.
    merge.house.lake.commit(
        [c for c in _dropped(merge, "env-dev") if c.table == TOMBSTONES]
    )  # fmt: skip
    merge.deliver("two", (1, 9, 0, "d"))
    merge.house.run()
    merge.house.table(EVENTS).rollback(merge.house.table(EVENTS).history()[1].snapshot)
    (merge.project / "landing" / "two.jsonl").unlink()
    merge.deliver("three", (1, 3, 30, "u"))
    merge.house.run(env="dev")
    assert merge.rows(TARGET, "id", "amount", ref="env-dev") == [(1, 30)]
    assert merge.rows(TOMBSTONES, "id", ref="env-dev") == []


def _dropped(unit: Unit, name: str) -> list[Any]:
    return companions.load_unit(unit.house.lake, TARGET).remove_ref(name)


def test_an_environment_keeps_a_companion_that_nothing_was_written_to(merge: Unit) -> None:
    merge.deliver("one", (1, 1, 10, "u"))
    merge.house.run()
    merge.deliver("two", (1, 2, 20, "u"))
    merge.house.run(env="dev")
    merge.deliver("three", (1, 9, 0, "d"))
    merge.house.run()
    assert merge.rows(TOMBSTONES, "id") == [(1,)]
    assert merge.rows(TOMBSTONES, "id", ref="env-dev") == []


def test_commits_without_the_mark_belong_together_by_their_run(merge: Unit) -> None:
    merge.deliver("one", (1, 1, 10, "u"), (2, 1, 20, "d"))
    merge.house.run()
    first = merge.head(TARGET)
    merge.deliver("two", (1, 5, 0, "d"))
    (merge.project / "landing" / "bad.parquet").write_text("no parquet")
    merge.house.ingest()
    merge.house.run()
    ingested = merge.house.table(EVENTS).history()
    for table in (TARGET, TOMBSTONES, EVENTS, QUARANTINE):
        _forget_marks(merge, table)
    merge.house.table(TARGET).rollback(first)
    assert merge.rows(TOMBSTONES, "id") == [(2,)]
    merge.house.table(EVENTS).rollback(ingested[1].snapshot)
    assert merge.rows(QUARANTINE, "file") == []
    merge.house.table(EVENTS).rollback(ingested[0].snapshot)
    assert merge.rows(QUARANTINE, "file") == [("bad.parquet",)]


def _forget_marks(unit: Unit, table: str) -> None:
    """Make the metadata what an earlier version would have written."""
    path = location_path(unit.house.lake.state(table).metadata_location)
    said = json.loads(path.read_text())
    said["properties"].pop(companions.PROPERTY, None)
    for snapshot in said["snapshots"]:
        snapshot["summary"].pop(bookmarks.UNIT, None)
    path.write_text(json.dumps(said))


def test_bronze_and_quarantine_go_back_together(bronze: Unit) -> None:
    bronze.deliver("one", (1, 1, 10, "u"))
    first = bronze.head(EVENTS)
    bronze.deliver("two", (2, 2, "many", "u"), (3, 3, 30, "u"))
    (row,) = bronze.house.quarantine()
    mended = bronze.project / "mended.jsonl"
    mended.write_text(json.dumps({"id": row.id, "row": {"amount": 20}}))
    second = bronze.head(EVENTS)

    bronze.house.table(EVENTS).rollback(first)
    assert bronze.house.quarantine() == []
    bronze.house.ingest()
    assert [each.id for each in bronze.house.quarantine()] == [row.id]
    assert bronze.house.replay("events", mended).replayed == 1
    replayed = bronze.head(EVENTS)
    assert bronze.rows(EVENTS, "id", "amount") == [(1, 10), (2, 20), (3, 30)]

    bronze.house.table(EVENTS).rollback(second)
    assert [each.id for each in bronze.house.quarantine()] == [row.id]
    again = bronze.house.replay("events", mended)
    assert (again.replayed, again.already) == (1, 0)
    assert bronze.rows(EVENTS, "id", "amount") == [(1, 10), (2, 20), (3, 30)]
    bronze.house.table(EVENTS).rollback(replayed)
    assert bronze.house.quarantine() == []
    assert bronze.rows(EVENTS, "id", "amount") == [(1, 10), (2, 20), (3, 30)]


def test_a_replay_that_lands_nothing_is_a_version_too(bronze: Unit) -> None:
    bronze.deliver("one", (1, 1, "many", "u"), (2, 2, 20, "u"))
    before = bronze.head(EVENTS)
    report = bronze.house.replay("events")
    assert (report.replayed, report.still_bad) == (0, 1)
    assert bronze.head(EVENTS) != before
    bronze.house.table(EVENTS).rollback(before)
    assert len(bronze.house.quarantine()) == 1


def test_a_compacted_companion_stays_compacted(bronze: Unit) -> None:
    for number in (1, 2, 3):
        bronze.deliver(f"f{number}", (number, number, 0, "d"))
        bronze.house.run()
    spark = bronze.house.lake.spark.session
    spark.sql(
        f"call lake.system.rewrite_data_files(table => '{TOMBSTONES}', "
        "options => map('rewrite-all', 'true'))"
    )
    compacted = bronze.head(TOMBSTONES)
    assert bronze.house.lake.state(TOMBSTONES).snapshot(compacted).operation == "replace"
    unit = companions.load_unit(bronze.house.lake, TARGET)
    assert unit.snapshots_at(bronze.head(TARGET))[TOMBSTONES] == compacted
    bronze.house.table(TARGET).branch("env-dev")
    bronze.house.publish("dev")
    assert bronze.head(TOMBSTONES) == compacted


def test_what_expired_is_refused_with_a_next_step(bronze: Unit) -> None:
    bronze.deliver("one", (1, 1, 10, "u"))
    bronze.house.run()
    first = bronze.head(TARGET)
    bronze.deliver("two", (1, 5, 0, "d"))
    bronze.house.run()
    spark = bronze.house.lake.spark.session
    spark.sql(
        f"call lake.system.expire_snapshots(table => '{TOMBSTONES}', retain_last => 1, "
        "older_than => timestamp '2100-01-01 00:00:00')"
    )
    before = {table: bronze.head(table) for table in (TARGET, TOMBSTONES)}
    with pytest.raises(BadInput, match=f"{TOMBSTONES} at snapshot {first} has expired"):
        bronze.house.table(TARGET).rollback(first)
    assert {table: bronze.head(table) for table in (TARGET, TOMBSTONES)} == before
    with pytest.raises(NotFound):
        bronze.house.table(TARGET).rollback(12345678901)

"""`thermo torture` itself: a short seeded trial on a broker and a database that crash, too."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers import kafka, postgres
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.servers.trial import SECRET, crashes, name_servers

import thermocline as tc
from thermocline.cli.main import run
from thermocline.errors import BadInput
from thermocline.ingest.postgres.source import PostgresSource as Database
from thermocline.lake import bookmark as bookmarks
from thermocline.torture import TrialOptions, expected, torture
from thermocline.torture import trial_project as projects
from thermocline.torture.chaos_plan import ChaosAction
from thermocline.torture.lanes import FilesLane, PostgresLane
from thermocline.torture.verdict import verify_lane
from thermocline.torture.workload import Workload


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Kafka]:
    """A broker of this test's own: it is killed, and other tests need theirs."""
    (tmp_path / "broker").mkdir()
    with kafka.serve(tmp_path / "broker") as server:
        yield server


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """A database of this test's own, for the same reason."""
    with postgres.serve() as server:
        monkeypatch.setenv(SECRET, server.password)
        yield server


def test_kafka_and_postgres_survive_and_nothing_of_the_trial_stays(
    project: Path, broker: Kafka, database: Postgres
) -> None:
    name_servers(project, broker, database)
    # This seed kills while the files of a first batch are written, then crashes the database under
    # the stream, then compacts bronze under it.
    order = TrialOptions(
        minutes=5, seed=136_937, kills=3, events=4_000, lanes=("kafka", "postgres"),
        restarts=crashes(broker, database),
    )  # fmt: skip
    verdict = torture(tc.open(project), order)

    assert verdict.warnings == ()
    assert verdict.passed, verdict
    assert verdict.actions == {
        str(ChaosAction.CRASH): 1,
        str(ChaosAction.RESTART): 1,
        str(ChaosAction.COMPACT): 1,
    }
    by_topic, by_table = verdict.lanes
    assert (by_topic.lane, by_topic.sent) == ("kafka", 4_000)
    assert by_topic.landed + by_topic.quarantined == 4_000
    assert 0 < by_topic.quarantined < 30
    assert (by_table.lane, by_table.sent, by_table.quarantined) == ("postgres", 4_000, 0)
    assert by_table.landed > 2_000  # the first ones are in the first state, newest of a key only
    assert not [t for t in broker.admin().list_topics(timeout=10).topics if "torture" in t]
    assert left_in(database) == []
    assert list((project / ".thermocline" / "torture").iterdir()) == []


def left_in(database: Postgres) -> list[str]:
    """Tables, publications and slots that a trial made."""
    found = sql(
        database,
        "select relname from pg_class where relname like '%torture%' "
        "union all select pubname from pg_publication "
        "union all select slot_name from pg_replication_slots",
    )
    return [name for (name,) in found]


def sql(database: Postgres, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, and give the last one's rows."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_what_is_sent_to_a_crashing_database_is_done_once(
    tmp_path: Path, database: Postgres
) -> None:
    """The judge takes the sender at its word; a trigger in the database does not."""
    reach = Database("127.0.0.1", "postgres", database.user, ("public.mine",), database.port,
                     {"secret": SECRET})  # fmt: skip
    lane = PostgresLane(Workload(5, 15_000).readable(), "torture_x", reach)
    lane.set_up(tmp_path)
    sql(
        database,
        "create table told (nr bigserial, event bigint, op text, key text, value bigint)",
        "create function tell() returns trigger language plpgsql as $$ declare r record; begin "
        "r := coalesce(new, old); insert into told (event, op, key, value) values "
        "(r.event, case tg_op when 'INSERT' then 'c' when 'UPDATE' then 'u' else 'd' end, r.key, "
        "r.value); return null; end $$",
        "create trigger tell after insert or update or delete on torture_x for each row "
        "execute function tell()",
    )
    sending = threading.Thread(target=lane.send, args=(lane.workload.between(0, 15_000),))
    sending.start()
    crashes = 0
    while sending.is_alive() and crashes < 4:
        time.sleep(0.15)
        database.crash()
        database.start()
        crashes += 1
    sending.join()
    events = lane.workload.between(0, 15_000)
    lane.send(events.part(14_000, 15_000))  # as if the answer to the last commits had been lost
    rows = sql(database, "select event, op from told order by nr")
    told = pa.table({"event": [row[0] for row in rows], "op": [row[1] for row in rows]})
    steps = expected.read_steps(told, changes=True)
    assert crashes > 1
    assert steps.tolist() == sorted(expected.expect_changes(events, told).steps.tolist())
    assert lane.read_state() == expected.expect_state(events)
    lane.tear_down(keep=False)
    assert left_in(database) == []


def test_a_lake_that_loses_and_repeats_is_found_out(project: Path) -> None:
    """The verdict can fail: rows are taken away, doubled and swapped behind the pipeline's back."""
    house = tc.open(project)
    lane = FilesLane(Workload(1, 400))
    scratch = projects.write(house.settings, project / "trial", "t", [lane])
    lane.set_up(scratch.folder)
    lane.send(lane.workload.between(0, 400))
    trial = tc.open(scratch.folder)
    trial.ingest()
    trial.run([scratch.silver(lane)])
    assert verify_lane(trial.lake, scratch, lane, 400).passed

    spark = trial.lake.spark.session
    table = f"lake.{scratch.bronze(lane)}"
    spark.sql(f"delete from {table} where event in (10, 11)")
    spark.sql(f"insert into {table} select * from {table} where event = 12")
    spark.sql(f"update {table} set value = value + 1 where event = 13")
    spark.sql(f"delete from lake.{scratch.silver(lane)} where event > 390")
    found = verify_lane(trial.lake, scratch, lane, 400)
    assert (found.lost, found.duplicated, found.altered) == (2, 1, 1)
    assert found.state_differs > 0
    assert not found.passed
    assert bookmarks.read(trial.lake.state(scratch.bronze(lane)))  # still what it says it read
    trial.lake.duck.stop()


def test_a_lane_that_the_project_has_not_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match="There is no lane kafka here"):
        torture(tc.open(project), TrialOptions(lanes=("kafka",)))
    assert run(["--project", str(project), "torture", "--lane", "kafka"]) == 2
    assert "There are: files." in capsys.readouterr().err

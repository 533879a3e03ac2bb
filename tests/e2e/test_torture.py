"""`thermo torture` itself: a short seeded trial on files and a broker that is restarted, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import kafka
from tests.servers.kafka import Kafka

import thermocline as tc
from thermocline.cli.main import run
from thermocline.errors import BadInput
from thermocline.lake import bookmark as bookmarks
from thermocline.torture import Order, torture
from thermocline.torture import project as projects
from thermocline.torture.lanes import FilesLane
from thermocline.torture.verdict import judge
from thermocline.torture.workload import Workload


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Kafka]:
    """A broker of this test's own: it is killed, and other tests need theirs."""
    (tmp_path / "broker").mkdir()
    with kafka.serve(tmp_path / "broker") as server:
        yield server


def test_files_and_kafka_survive_and_nothing_of_the_trial_stays(
    project: Path, broker: Kafka
) -> None:
    (project / "sources").mkdir()
    source = {"kind": "kafka", "target": "bronze.mine", "servers": broker.servers}
    (project / "sources" / "mine.yaml").write_text(json.dumps({**source, "topic": "mine"}))

    def restart() -> None:
        broker.kill()
        broker.start()

    # This seed kills right behind the swap of a first batch, then restarts the broker.
    order = Order(minutes=3, seed=75, kills=2, events=4_000, restarts=(restart,))
    verdict = torture(tc.open(project), order)

    assert verdict.surprises == ()
    assert verdict.passed, verdict
    assert (verdict.kills, verdict.in_vain) == (2, 0)
    for lane in verdict.lanes:
        assert lane.sent == 4_000
        assert lane.landed + lane.quarantined == 4_000
        assert 0 < lane.quarantined < 30
        assert lane.disturbed > 0
    assert {lane.lane for lane in verdict.lanes} == {"files", "kafka"}
    assert not [t for t in broker.admin().list_topics(timeout=10).topics if "torture" in t]
    assert list((project / ".thermocline" / "torture").iterdir()) == []


def test_a_lake_that_loses_and_repeats_is_found_out(project: Path) -> None:
    """The verdict can fail: rows are taken away, doubled and swapped behind the pipeline's back."""
    house = tc.open(project)
    lane = FilesLane(Workload(1, 400))
    scratch = projects.write(house.settings, project / "trial", "t", [lane])
    lane.begin(scratch.folder)
    lane.send(lane.workload.between(0, 400))
    trial = tc.open(scratch.folder)
    trial.ingest()
    trial.run([scratch.silver(lane)])
    assert judge(trial.lake, scratch, lane, 400).passed

    spark = trial.lake.spark.session
    table = f"lake.{scratch.bronze(lane)}"
    spark.sql(f"delete from {table} where event in (10, 11)")
    spark.sql(f"insert into {table} select * from {table} where event = 12")
    spark.sql(f"update {table} set value = value + 1 where event = 13")
    spark.sql(f"delete from lake.{scratch.silver(lane)} where event > 390")
    found = judge(trial.lake, scratch, lane, 400)
    assert (found.lost, found.duplicated, found.altered) == (2, 1, 1)
    assert found.state_differs > 0
    assert not found.passed
    assert bookmarks.read(trial.lake.state(scratch.bronze(lane)))  # still what it says it read
    trial.lake.duck.stop()


def test_a_lane_that_the_project_has_not_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match="There is no lane kafka here"):
        torture(tc.open(project), Order(lanes=("kafka",)))
    assert run(["--project", str(project), "torture", "--lane", "kafka"]) == 2
    assert "There are: files." in capsys.readouterr().err

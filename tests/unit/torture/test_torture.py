"""The parts of a trial that decide and judge; the trial itself is in tests/e2e."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import thermocline
from thermocline.errors import ConfigError
from thermocline.ingest.postgres.source import PostgresSource, Tls
from thermocline.torture import expected, verdict
from thermocline.torture.chaos_plan import POINTS, ChaosAction, plan_rounds
from thermocline.torture.lanes import FilesLane, PostgresLane
from thermocline.torture.lanes.kafka import producer_options
from thermocline.torture.workload import Events, Workload


def test_the_same_seed_decides_the_same() -> None:
    possible = {"lockable": True, "servers": 2, "reader": True}
    one = plan_rounds(7, 100, 10_000, **possible)
    assert one == plan_rounds(7, 100, 10_000, **possible)
    assert one != plan_rounds(8, 100, 10_000, **possible)
    assert {each.action for each in one} == set(ChaosAction)
    assert sum(each.events for each in one) <= 10_000
    assert all(each.point in POINTS for each in one if each.action is ChaosAction.CRASH)


def test_what_cannot_be_done_is_not_planned() -> None:
    actions = {
        each.action for each in plan_rounds(7, 200, 10, lockable=False, servers=0, reader=False)
    }
    assert actions == set(ChaosAction) - {
        ChaosAction.LOCK,
        ChaosAction.RESTART,
        ChaosAction.KILL_READER,
    }


def test_every_named_point_exists() -> None:
    source = Path(thermocline.__file__).parent
    named = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r'crash_(?:point|when_written)\(\s*"([^"]+)"', path.read_text())
    }
    assert set(POINTS) <= named


def test_every_event_is_known_by_its_number() -> None:
    work = Workload(3, 5_000)
    whole, part = work.between(0, 5_000), work.between(1_000, 1_010)
    assert part.value.tolist() == whole.value[1_000:1_010].tolist()
    assert len(set(whole.key.tolist())) > 200
    assert 0 < np.count_nonzero(whole.spoiled) < 50
    assert 50 < np.count_nonzero(whole.deletes) < 250
    key, text = list(part.messages())[4]
    said = json.loads(text)
    assert (said["event"], said["key"], f"k{part.key[4]}") == (1_004, key, key)
    assert Workload(4, 5_000).between(0, 9).value.tolist() != whole.value[:9].tolist()


def test_files_appear_whole_and_some_twice(tmp_path: Path) -> None:
    lane = FilesLane(Workload(1, 5_000))
    lane.set_up(tmp_path)
    lane.send(lane.workload.between(0, 3_000))
    lane.send(lane.workload.between(3_000, 5_000))
    files = sorted((tmp_path / "landing").iterdir())
    assert [file.name for file in files] == [
        "part-00000000-again.jsonl", "part-00000000.jsonl", "part-00000001.jsonl",
        "part-00000002.jsonl",
    ]  # fmt: skip
    lines = [line for file in files[1:] for line in file.read_text().splitlines()]
    assert [json.loads(line)["event"] for line in lines] == list(range(5_000))


def rows(events: Events, told: list[tuple[int, str]]) -> pa.Table:
    """A bronze table of these events and operations, landed in this order, one commit each."""
    numbers = [number for number, _ in told]
    return pa.table(
        {
            "event": numbers,
            "key": [f"k{events.key[n]}" for n in numbers],
            "value": [int(events.value[n]) for n in numbers],
            "op": [op for _, op in told],
            "_ingested_at": list(range(len(numbers))),
            "_source_file": ["f"] * len(numbers),
            "_position": [1] * len(numbers),
        }
    )


def test_lost_and_repeated_events_are_counted() -> None:
    wanted = np.arange(10)
    assert verdict._compare_numbers(np.arange(10), wanted) == (0, 0)
    assert verdict._compare_numbers(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8]), wanted) == (1, 0)
    assert verdict._compare_numbers(np.array([*range(10), 3, 3]), wanted) == (0, 2)
    assert verdict._compare_numbers(np.array([*range(9), 77]), wanted) == (1, 1)


def counted(events: Events, bronze: pa.Table, *, changes: bool) -> tuple[int, int, int, int]:
    """What a judge finds in bronze: lost, duplicated, altered, reordered."""
    wanted = (
        expected.expect_changes(events, bronze) if changes else expected.expect_messages(events)
    )
    landed = expected.read_steps(bronze, changes=changes)
    return (
        *verdict._compare_numbers(landed, wanted.steps),
        verdict._count_altered(bronze, landed, events, wanted),
        verdict._count_reordered(bronze, landed),
    )


def test_altered_and_reordered_messages_are_counted() -> None:
    work = Workload(1, 40)
    events = work.between(0, 40)
    assert work.keys == 2
    told = [(n, "d" if events.deletes[n] else "u") for n in range(40)]
    good = rows(events, told)
    assert counted(events, good, changes=False) == (0, 0, 0, 0)
    bent = good.set_column(2, "value", pa.array([0, *good["value"].to_pylist()[1:]]))
    assert counted(events, bent, changes=False) == (0, 0, 1, 0)
    other = next(n for n in range(1, 40) if events.key[n] == events.key[0])
    told[0], told[other] = told[other], told[0]
    assert counted(events, rows(events, told), changes=False)[3] > 0


# Six events on two keys: k0 is made, changed, deleted and made again; k1 is made and changed.
CHANGED = Events(
    number=np.arange(6),
    key=np.array([0, 1, 0, 0, 0, 1]),
    value=np.array([10, 11, 12, 13, 14, 15]),
    deletes=np.array([False, False, False, True, False, False]),
    spoiled=np.zeros(6, dtype=bool),
)
FROM_THE_START = [(0, "c"), (1, "c"), (2, "u"), (3, "u"), (3, "d"), (4, "c"), (5, "u")]
# A process that came after event 2 sees of the first three only the rows they left.
AFTER_A_FIRST_STATE = [(1, "r"), (2, "r"), *FROM_THE_START[3:]]


@pytest.mark.parametrize("told", [FROM_THE_START, AFTER_A_FIRST_STATE])
def test_changes_of_a_table_are_judged_one_by_one(told: list[tuple[int, str]]) -> None:
    def judged(told: list[tuple[int, str]]) -> tuple[int, int, int, int]:
        return counted(CHANGED, rows(CHANGED, told), changes=True)

    assert judged(told) == (0, 0, 0, 0)
    deleted, last = told.index((3, "d")), len(told) - 1
    without_delete = [each for each in told if each != (3, "d")]
    assert judged(without_delete) == (1, 0, 0, 0)
    assert judged([*told, told[last]]) == (0, 1, 0, 0)
    assert judged([*told, (3, "d")])[1:] == (1, 0, 1)  # twice, and behind what came after it
    swapped = [*told]
    swapped[deleted - 1], swapped[deleted] = told[deleted], told[deleted - 1]
    assert judged(swapped) == (0, 0, 0, 1)
    assert judged([*told[:last], (5, "c")]) == (0, 0, 1, 0)  # an update told as an insert


def test_changes_lost_behind_the_first_state_are_found() -> None:
    """Where the changes begin is read from bronze itself; a gap there must not hide."""
    told = [(0, "r"), (1, "r"), *FROM_THE_START[4:]]  # events 2 and 3, but for the delete
    lost, duplicated, _, _ = counted(CHANGED, rows(CHANGED, told), changes=True)
    assert lost > 0
    assert duplicated > 0
    none = counted(CHANGED, rows(CHANGED, []), changes=True)
    assert none[0] == 2  # no row at all: both keys are missing


def test_silver_is_held_against_the_events_and_the_source() -> None:
    model = expected.expect_state(CHANGED)
    assert model == {"k0": (4, 14), "k1": (5, 15)}
    silver = pa.table({"key": ["k0", "k1"], "event": [4, 5], "value": [14, 15]})
    assert verdict._count_state_differences(silver, model, None) == 0
    assert verdict._count_state_differences(silver, model, dict(model)) == 0
    assert verdict._count_state_differences(silver, model, {"k0": (4, 14)}) == 1
    assert (
        verdict._count_state_differences(silver, model, {**model, "k1": (5, 16), "k2": (9, 9)}) == 2
    )
    assert verdict._count_state_differences(silver.slice(0, 1), model, model) == 1
    assert verdict._count_state_differences(pa.concat_tables([silver, silver]), model, model) == 2


def test_a_postgres_lane_reaches_the_database_as_the_project_does() -> None:
    reach = PostgresSource(
        "db", "shop", "lake", ("sales.orders",), 5433, {"secret": "PW"}, Tls("require", "ca.pem")
    )
    lane = PostgresLane(Workload(1, 5_000).readable(), "torture_x", reach)
    assert lane.source() == {
        "kind": "postgres", "host": "db", "port": 5433, "database": "shop", "user": "lake",
        "password": {"secret": "PW"}, "tls": {"mode": "require", "rootCert": "ca.pem"},
        "tables": ["sales.torture_x"],
    }  # fmt: skip
    events = lane.workload.between(0, 5_000)
    assert not events.spoiled.any()
    parts = list(lane._transactions(events))
    assert [n for part in parts for n in part.number.tolist()] == list(range(5_000))
    sizes = [len(part) for part in parts]
    assert min(sizes) < 10 and max(sizes) > 500
    assert sizes == [len(part) for part in lane._transactions(events)]


def test_the_options_of_a_java_client_are_translated() -> None:
    jaas = 'org.apache.kafka…PlainLoginModule required username="me" password="hush";'
    assert producer_options({"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}) == {
        "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "hush",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location"):
        producer_options({"ssl.truststore.location": "x.jks"})


def lane_verdict(**found: int) -> verdict.LaneVerdict:
    counts = dict.fromkeys(("lost", "duplicated", "altered", "reordered", "state_differs"), 0)
    given = {"sent": 10, "landed": 10, "quarantined": 0, "commits": 2, "landed_during_chaos": 5}
    return verdict.LaneVerdict(**{"lane": "files", **given, **counts, **found})  # type: ignore[arg-type]


def test_a_trial_passes_only_when_it_was_one() -> None:
    def trial(actions: dict[str, int], **found: int) -> verdict.Verdict:
        return verdict.Verdict(1, 1.0, actions, 2, 0, (lane_verdict(**found),))

    done = {str(ChaosAction.KILL): 2}
    assert trial(done).passed
    for flaw in ("lost", "duplicated", "altered", "reordered", "state_differs"):
        assert not trial(done, **{flaw: 1}).passed
    assert not trial({}).passed  # nothing was done to it
    assert not trial(done, landed_during_chaos=0).passed  # nothing moved while it was done

"""The parts of a trial that decide and judge; the trial itself is in tests/e2e."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import thermocline
from thermocline.errors import ConfigError
from thermocline.torture import verdict
from thermocline.torture.lanes import FilesLane, producer_options
from thermocline.torture.plan import POINTS, Deed, plan
from thermocline.torture.workload import Workload


def test_the_same_seed_decides_the_same() -> None:
    one = plan(7, 50, 10_000, lockable=True, servers=2)
    assert one == plan(7, 50, 10_000, lockable=True, servers=2)
    assert one != plan(8, 50, 10_000, lockable=True, servers=2)
    assert {each.deed for each in one} == set(Deed)
    assert sum(each.events for each in one) <= 10_000
    assert all(each.point in POINTS for each in one if each.deed is Deed.CRASH)


def test_what_cannot_be_done_is_not_planned() -> None:
    deeds = {each.deed for each in plan(7, 200, 10, lockable=False, servers=0)}
    assert deeds.isdisjoint({Deed.LOCK, Deed.RESTART})


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
    lane.begin(tmp_path)
    lane.send(lane.workload.between(0, 3_000))
    lane.send(lane.workload.between(3_000, 5_000))
    files = sorted((tmp_path / "landing").iterdir())
    assert [file.name for file in files] == [
        "part-00000000-again.jsonl", "part-00000000.jsonl", "part-00000001.jsonl",
        "part-00000002.jsonl",
    ]  # fmt: skip
    lines = [line for file in files[1:] for line in file.read_text().splitlines()]
    assert [json.loads(line)["event"] for line in lines] == list(range(5_000))


def rows(work: Workload, numbers: list[int]) -> pa.Table:
    """A bronze table that holds these events, landed in this order, one commit each."""
    events = work.between(0, work.events)
    return pa.table(
        {
            "event": numbers,
            "key": [f"k{events.key[n]}" for n in numbers],
            "value": [int(events.value[n]) for n in numbers],
            "_ingested_at": list(range(len(numbers))),
            "_source_file": ["f"] * len(numbers),
            "_position": [1] * len(numbers),
        }
    )


def test_lost_and_repeated_events_are_counted() -> None:
    wanted = np.arange(10)
    assert verdict._missing(np.arange(10), wanted) == (0, 0)
    assert verdict._missing(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8]), wanted) == (1, 0)
    assert verdict._missing(np.array([*range(10), 3, 3]), wanted) == (0, 2)
    assert verdict._missing(np.array([*range(9), 77]), wanted) == (1, 1)


def test_altered_and_reordered_rows_are_counted() -> None:
    work = replace(Workload(1, 40))
    events = work.between(0, 40)
    assert work.keys == 2
    good = rows(work, list(range(40)))
    assert (verdict._altered(good, events), verdict._reordered(good)) == (0, 0)
    bent = good.set_column(2, "value", pa.array([0, *good["value"].to_pylist()[1:]]))
    assert verdict._altered(bent, events) == 1
    same_key = [n for n in range(40) if events.key[n] == events.key[0]]
    swapped = [same_key[1], same_key[0], *same_key[2:]]
    assert verdict._reordered(rows(work, swapped)) == 1


def test_the_options_of_a_java_client_are_translated() -> None:
    jaas = 'org.apache.kafka…PlainLoginModule required username="me" password="hush";'
    assert producer_options({"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}) == {
        "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "hush",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location"):
        producer_options({"ssl.truststore.location": "x.jks"})


def lane_verdict(**found: int) -> verdict.LaneVerdict:
    counts = dict.fromkeys(("lost", "duplicated", "altered", "reordered", "state_differs"), 0)
    given = {"sent": 10, "landed": 10, "quarantined": 0, "commits": 2, "disturbed": 5}
    return verdict.LaneVerdict(**{"lane": "files", **given, **counts, **found})  # type: ignore[arg-type]


def test_a_trial_passes_only_when_it_was_one() -> None:
    def trial(deeds: dict[str, int], **found: int) -> verdict.Verdict:
        return verdict.Verdict(1, 1.0, deeds, 2, 0, (lane_verdict(**found),))

    done = {str(Deed.KILL): 2}
    assert trial(done).passed
    for flaw in ("lost", "duplicated", "altered", "reordered", "state_differs"):
        assert not trial(done, **{flaw: 1}).passed
    assert not trial({}).passed  # nothing was done to it
    assert not trial(done, disturbed=0).passed  # nothing moved while it was done

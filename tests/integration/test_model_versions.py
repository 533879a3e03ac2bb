"""What computed a partition is known per partition: no mixture of two models is called fresh."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import clean_environment
from tests.integration.worker_project import content, land, make, many, row

from thermocline.api import Lakehouse
from thermocline.config import load_settings
from thermocline.lake import bookmark as bookmarks
from thermocline.transform.model_versions import RANGES_KEY, PartitionRange

TABLE = "silver.clean"
DAYS = [f"2026-01-{day:02}" for day in range(1, 11)]
MODEL = "models/silver/clean.sql"


class Project:
    """Ten days of rows, and a model that is edited."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.house = make(folder)
        self.original = (folder / MODEL).read_text()
        land(self.house, many(range(10)))
        self.house.run(select=[TABLE])

    def edit(self, factor: int) -> None:
        """Have the model multiply the amounts; 1 is as it was."""
        amount = f"cast(amount * {factor} as decimal(12,2)) as amount" if factor > 1 else "amount"
        text = self.original.replace("kind, amount from (", f"kind, {amount} from (")
        assert (text == self.original) == (factor == 1)
        (self.folder / MODEL).write_text(text)
        self.reopen()

    def reopen(self) -> None:
        self.house.close()
        self.house = Lakehouse(load_settings(self.folder, environ=clean_environment()))

    def stale(self) -> list[str]:
        states = self.house.partitions(TABLE).partitions
        return [each.name for each in states if str(each.status) != "fresh"]

    def run(self) -> list[tuple[str, str]]:
        return [(step.refresh_mode, step.detail) for step in self.house.run(select=[TABLE]).steps]

    def expected(self) -> list[tuple[Any, ...]]:
        """What a full refresh of the model as it is now gives."""
        found = content(self.house, TABLE)
        self.house.run(select=[TABLE], full_refresh=True)
        fresh = content(self.house, TABLE)
        head = self.house.table(TABLE).history()[1].snapshot
        self.house.table(TABLE).rollback(head)
        assert content(self.house, TABLE) == found
        return fresh

    def marked(self) -> list[Any]:
        found: list[Any] = bookmarks.read(self.house.lake.state(TABLE)).get(RANGES_KEY, [])
        return found


@pytest.fixture
def project_(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("THERMOCLINE_TRANSFORM__ENGINE", "duckdb")
    settings = project / "thermocline.toml"
    settings.write_text(settings.read_text() + '[transform]\nengine = "duckdb"\n')
    made = Project(project)
    yield made
    made.house.close()


def test_days_of_another_model_are_computed_again(project_: Project) -> None:
    project_.edit(2)
    project_.house.backfill(TABLE, DAYS[2], DAYS[4])
    project_.edit(1)
    (step,) = project_.house.plan([TABLE]).steps
    assert (str(step.refresh_mode), step.why) == (
        "touched", (f"{DAYS[2]}–{DAYS[4]} was computed by another version of the model",)
    )  # fmt: skip
    assert project_.stale() == DAYS[2:5]
    expected = project_.expected()
    assert project_.run() == [("touched", "3 partitions touched")]
    assert content(project_.house, TABLE) == expected
    assert project_.stale() == [] and not project_.marked()
    assert not project_.house.plan([TABLE]).steps


def test_an_edit_that_is_kept_reaches_all_other_days(project_: Project) -> None:
    project_.edit(2)
    project_.house.backfill(TABLE, DAYS[0], DAYS[7])
    assert project_.stale() == DAYS[8:]
    expected = project_.expected()
    assert project_.run() == [("touched", "2 partitions touched")]
    assert content(project_.house, TABLE) == expected
    assert not project_.house.plan([TABLE]).steps


def test_several_edits_and_new_rows(project_: Project) -> None:
    project_.edit(2)
    project_.house.backfill(TABLE, DAYS[1], DAYS[3])
    project_.edit(3)
    project_.house.backfill(TABLE, DAYS[3], DAYS[5])
    project_.edit(1)
    project_.house.backfill(TABLE, DAYS[2], DAYS[2])
    land(project_.house, [row(900, 8, "late"), row(901, 11, "late")])
    assert project_.stale() == sorted([DAYS[1], *DAYS[3:6], DAYS[8], "2026-01-12"])
    expected = project_.expected()
    assert project_.run() == [("touched", "6 partitions touched")]
    assert content(project_.house, TABLE) == expected


def test_the_same_model_leaves_nothing_to_do(project_: Project) -> None:
    project_.house.backfill(TABLE, DAYS[1], DAYS[3])
    assert not project_.marked() and project_.stale() == []
    project_.edit(2)
    project_.house.backfill(TABLE, DAYS[1], DAYS[3])
    project_.edit(1)
    project_.house.backfill(TABLE, DAYS[0], DAYS[5])
    assert not project_.marked() and project_.stale() == []
    assert not project_.house.plan([TABLE]).steps
    project_.edit(2)
    project_.house.backfill(TABLE)
    assert not project_.house.plan([TABLE]).steps


def test_a_rollback_takes_the_knowledge_back(project_: Project) -> None:
    before = project_.house.lake.state(TABLE).head() or 0
    expected = content(project_.house, TABLE)
    project_.edit(2)
    project_.house.backfill(TABLE, DAYS[1], DAYS[3])
    after = project_.house.lake.state(TABLE).head() or 0
    project_.edit(1)
    project_.house.table(TABLE).rollback(before)
    assert project_.stale() == [] and not project_.house.plan([TABLE]).steps
    assert content(project_.house, TABLE) == expected
    project_.house.table(TABLE).rollback(after)
    assert project_.stale() == DAYS[1:4]
    project_.run()
    assert content(project_.house, TABLE) == expected


def test_days_from_rows_that_were_rolled_back_are_stale(project_: Project) -> None:
    expected = content(project_.house, TABLE)
    before = project_.house.lake.state("bronze.raw").head() or 0
    land(project_.house, [row(900, 2, "late"), row(901, 6, "late")])
    project_.house.backfill(TABLE, DAYS[1], DAYS[3])
    project_.house.table("bronze.raw").rollback(before)
    assert project_.stale() == DAYS[1:4]
    assert project_.run() == [("touched", "3 partitions touched")]
    assert content(project_.house, TABLE) == expected


def test_days_from_fewer_rows_than_the_bookmark_says_are_stale(project_: Project) -> None:
    before = project_.house.lake.state("bronze.raw").head() or 0
    land(project_.house, [row(900, 2, "late")])
    now = project_.house.lake.state("bronze.raw").head() or 0
    project_.run()
    expected = content(project_.house, TABLE)
    project_.house.table("bronze.raw").rollback(before)
    project_.house.backfill(TABLE, DAYS[1], DAYS[3])
    project_.house.table("bronze.raw").rollback(now)
    assert project_.stale() == DAYS[1:4]
    project_.run()
    assert content(project_.house, TABLE) == expected


@pytest.mark.parametrize("point", ["backfill.checked", "publish.before", "publish.after"])
def test_a_backfill_of_an_edited_model_that_died(project_: Project, point: str) -> None:
    project_.edit(2)
    command = [
        sys.executable, "-m", "thermocline.cli.main", "-C", str(project_.folder), "--json",
        "backfill", TABLE, "--from", DAYS[1], "--to", DAYS[3],
    ]  # fmt: skip
    environ = {**clean_environment(), "THERMOCLINE_CRASH_AT": point}
    died = subprocess.run(command, env=environ, capture_output=True, timeout=240, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    if point != "publish.after":
        again = subprocess.run(
            command, env=clean_environment(), capture_output=True, timeout=240, check=True
        )
        assert json.loads(again.stdout)["resumed"]
    project_.edit(1)
    assert [name for name in project_.stale() if name in DAYS] == DAYS[1:4]
    expected = project_.expected()
    project_.run()
    assert content(project_.house, TABLE) == expected


def test_a_run_while_a_backfill_of_an_edited_model_is_under_way(project_: Project) -> None:
    other = Lakehouse(load_settings(project_.folder, environ=clean_environment()))
    assert other.models[TABLE].text == project_.original
    project_.edit(2)
    begun = project_.house._prepare_backfill(TABLE, DAYS[1], DAYS[3], None, _silent())
    begun.begin()
    begun.compute()
    land(other, [row(900, 2, "late"), row(901, 8, "late")])
    other.run(select=[TABLE])
    begun.finish()
    begun.close()
    other.close()
    project_.edit(1)
    assert project_.stale() == DAYS[1:4]
    expected = project_.expected()
    project_.run()
    assert content(project_.house, TABLE) == expected


def test_a_run_that_was_planned_before_a_backfill_was_published(project_: Project) -> None:
    from thermocline.transform import runner

    land(project_.house, [row(900, 8, "late")])
    house = project_.house
    plan = house.plan([TABLE])
    models = house.models
    project_.edit(2)
    project_.house.backfill(TABLE, DAYS[1], DAYS[3])
    runner.run(project_.house.lake, models, plan, run_id="01PLANNEDBEFORE")
    project_.edit(1)
    assert content(project_.house, TABLE) == project_.expected()
    assert project_.stale() == []


def test_ranges_hold_and_cover_what_they_say() -> None:
    assert PartitionRange(1, 3).contains((2,)) and not PartitionRange(1, 3).contains((4,))
    assert PartitionRange(None, 3).contains((-9,)) and not PartitionRange(None, 3).contains((None,))
    assert PartitionRange().contains((None,))
    assert PartitionRange().covers(PartitionRange(1, 3)) and PartitionRange(1, 3).covers(
        PartitionRange(2, 3)
    )
    assert not PartitionRange(1, 3).covers(PartitionRange(2, 4)) and not PartitionRange(
        1, 3
    ).covers(PartitionRange(None, 3))
    assert not PartitionRange(1, None).covers(PartitionRange())


def _silent() -> Any:
    from thermocline.telemetry import SILENT

    return SILENT

"""Workers: the same rows by partition, by model and in one process; backfills that go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.worker_project import content, land, make, many, row

from thermocline.api import Lakehouse
from thermocline.errors import BadInput, CheckFailed, ThermoclineError
from thermocline.transform.workers.work_unit import WorkUnit

TABLES = ("silver.clean", "gold.daily", "gold.kinds")


@pytest.fixture
def house(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lakehouse]:
    """A small lake of ten days, and two workers that take three partitions at a time."""
    monkeypatch.setenv("THERMOCLINE_WORKERS__COUNT", "2")
    monkeypatch.setenv("THERMOCLINE_WORKERS__BATCH", "3")
    made = make(project)
    land(made, many(range(10)))
    yield made
    made.lake.duck.stop()


def thermo(
    house: Lakehouse, *words: str, crash: str | None = None, once: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command in a process of its own."""
    env = {**os.environ, **({"THERMOCLINE_CRASH_AT": crash} if crash else {})}
    env |= {"THERMOCLINE_CRASH_ONCE": str(once)} if once else {}
    command = [sys.executable, "-m", "thermocline.cli.main", "-C", str(house.settings.project)]
    return subprocess.run(
        [*command, "--json", *words], env=env, text=True, capture_output=True, timeout=120
    )


def test_every_way_of_working_gives_the_same_rows(house: Lakehouse) -> None:
    house.run(workers="dag")
    expected = {table: content(house, table) for table in TABLES}
    assert len(expected["silver.clean"]) == 200
    for workers in ("model", "partition"):
        report = house.run(workers=workers, full_refresh=True)
        assert {table: content(house, table) for table in TABLES} == expected
        assert all(step.engine == "duckdb" for step in report.steps)
    said = {step.table: step.detail for step in report.steps}
    assert said["silver.clean"] == "all rows, by 2 workers"
    assert said["gold.kinds"] == "all rows, by a worker"  # it is no table of partitions


def test_a_late_row_makes_only_its_day_stale(house: Lakehouse) -> None:
    house.run(workers="partition")
    assert not house.run().steps
    land(house, [row(9999, 4, "late", "3.25", 5)])
    found = {p.name: p.status for p in house.partitions("silver.clean").partitions}
    assert [name for name, how in found.items() if how != "fresh"] == ["2026-01-05"]
    report = house.run(workers="partition")
    steps = {step.table: step for step in report.steps}
    assert steps["silver.clean"].detail == "1 partitions touched"  # not worth another process
    assert (steps["silver.clean"].added, steps["silver.clean"].removed) == (21, 20)
    assert steps["gold.daily"].detail == "1 partitions touched"
    before = {table: content(house, table) for table in TABLES}
    house.run(workers="dag", full_refresh=True)
    assert {table: content(house, table) for table in TABLES} == before


def test_a_partition_without_rows_is_emptied(house: Lakehouse) -> None:
    house.run(workers="partition")
    model = house.settings.project / "models/silver/clean.sql"
    model.write_text(model.read_text().replace("kind <> 'bad'", "kind <> 'bad' and id >= 40"))
    again = type(house)(house.settings)
    again.run(workers="partition")
    assert min(at.day for _, at, *_ in content(again, "silver.clean")) == 3
    assert len(content(again, "gold.daily")) == 8
    assert not again.run().steps


def test_the_plan_says_who_works_and_remembers_what_was_too_much(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {step.table: step for step in house.plan(workers="partition").steps}
    assert steps["silver.clean"].choice.worker_mode == "partition"
    assert steps["gold.kinds"].choice.worker_mode == "model"
    assert "duckdb workers by partition" in steps["silver.clean"].summary
    monkeypatch.setenv("THERMOCLINE_TRANSFORM__DUCKDB_BYTES", "1kB")
    from thermocline.api import open as opened

    large = {step.table: step.choice for step in opened(house.settings.project).plan().steps}
    assert large["silver.clean"].executor_key == "duckdb partition"
    assert large["gold.kinds"].engine == "spark"
    monkeypatch.setenv("THERMOCLINE_ENGINE__SPARK__MASTER", "spark://elsewhere:7077")
    large = {step.table: step.choice for step in opened(house.settings.project).plan().steps}
    assert large["silver.clean"].engine == "spark"


def test_a_backfill_computes_its_range_and_moves_no_bookmark(house: Lakehouse) -> None:
    house.run(workers="dag")
    expected = {table: content(house, table) for table in TABLES}
    before = house.lake.state("silver.clean").head()
    report = house.backfill("silver.clean", "2026-01-02", "2026-01-04", workers=2, batch=1)
    assert (report.partitions, report.computed, report.rows) == (3, 3, 60)
    assert house.lake.state("silver.clean").head() != before
    assert {table: content(house, table) for table in TABLES} == expected
    assert [step.table for step in house.run().steps] == ["gold.daily", "gold.kinds"]
    assert {table: content(house, table) for table in TABLES} == expected


def test_a_backfill_of_everything_is_as_good_as_a_run(house: Lakehouse) -> None:
    report = house.backfill("silver.clean")
    assert (report.partitions, report.rows) == (10, 200)
    assert "silver.clean" in house.plan().fresh


@pytest.mark.parametrize(
    "point",
    ["draft.begun", "backfill.begun", "backfill.checked", "publish.before", "publish.after"],
)
def test_a_backfill_that_died_goes_on(house: Lakehouse, point: str) -> None:
    house.run(workers="dag", select=["silver.clean"])
    expected = content(house, "silver.clean")
    words = ("backfill", "silver.clean", "--from", "2026-01-01", "--batch", "5")
    died = thermo(house, *words, crash=point)
    assert died.returncode == -signal.SIGKILL
    assert content(house, "silver.clean") == expected
    again = thermo(house, *words)
    assert again.returncode == 0, again.stderr
    # Before its first note nobody can know what a branch was for.
    assert json.loads(again.stdout)["resumed"] is (point not in {"draft.begun", "publish.after"})
    assert content(house, "silver.clean") == expected
    left = [ref for ref in house.lake.state("silver.clean").refs if ref.startswith("run-")]
    assert len(left) == (1 if point == "draft.begun" else 0)


@pytest.mark.parametrize(
    "point", ["worker.begun", "worker.written", "groupcommit.leased", "worker.landed"]
)
def test_a_backfill_survives_its_workers(house: Lakehouse, point: str, tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.touch()
    words = ("backfill", "silver.clean", "--batch", "5", "--workers", "1")
    done = thermo(house, *words, crash=point, once=once)
    assert done.returncode == 0, done.stderr
    assert not once.exists()
    assert json.loads(done.stdout)["computed"] == 10
    assert len(content(house, "silver.clean")) == 200


def test_a_backfill_that_died_after_main_had_moved(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops before it publishes, main moves in one of its days, and it dies catching up."""
    house.run(workers="dag", select=["silver.clean"])
    words = ("backfill", "silver.clean", "--from", "2026-01-01", "--to", "2026-01-03")
    with monkeypatch.context() as env:
        env.setenv("THERMOCLINE_FREEZE_AT", "backfill.checked")
        env.setenv("THERMOCLINE_CRASH_AT", "backfill.rebased")
        command = [sys.executable, "-m", "thermocline.cli.main", "-C", str(house.settings.project)]
        process = subprocess.Popen([*command, *words], stderr=subprocess.DEVNULL)
    try:
        stopped, deadline = Path(f"/proc/{process.pid}/stat"), time.monotonic() + 120
        while stopped.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        land(house, [row(501, 1, "late"), row(502, 7, "late")])
        house.run(workers="dag", select=["silver.clean"])
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=120) == -signal.SIGKILL
    finally:
        process.kill()
    again = json.loads(thermo(house, *words).stdout)
    assert again["resumed"] and again["computed"] == 1  # the day that both had touched
    rows = content(house, "silver.clean")
    assert len(rows) == 202
    house.run(workers="dag", select=["silver.clean"], full_refresh=True)
    assert content(house, "silver.clean") == rows


def test_what_is_done_is_not_done_again(house: Lakehouse) -> None:
    died = thermo(house, "backfill", "silver.clean", "--batch", "2", crash="backfill.checked")
    assert died.returncode == -signal.SIGKILL
    found = house.partitions("silver.clean")
    assert found.counts == {"done": 10}
    [kept] = json.loads(thermo(house, "clean").stdout)["runs"]
    assert (kept["status"], kept["dropped"]) == ("resumable", False)
    report = house.backfill("silver.clean")
    assert report.resumed and (report.partitions, report.computed) == (10, 0)
    assert len(content(house, "silver.clean")) == 200


def test_a_load_and_a_backfill_of_one_table_at_once(house: Lakehouse) -> None:
    """Both touch the third of January, and each a day that the other does not."""
    house.run(workers="dag")
    made = house._prepare_backfill("silver.clean", "2026-01-01", "2026-01-03", None, _silent())
    made.begin()
    made.compute(batch=1)
    land(house, [row(501, 2, "late"), row(502, 8, "late")])
    house.run(workers="dag")
    made.finish()
    made.close()
    rows = content(house, "silver.clean")
    assert [r[0] for r in rows if r[2] == "late"] == [501, 502]
    assert len(rows) == 202
    house.run(workers="dag", full_refresh=True)
    assert content(house, "silver.clean") == rows
    made = house._prepare_backfill("silver.clean", "2026-01-01", "2026-01-02", None, _silent())
    made.begin()
    made.compute()
    land(house, [row(503, 9, "late")])
    house.run(workers="dag")
    made.finish()  # nothing in common: nothing is computed again
    assert len(made.executor.reports["silver.clean"].outcomes) == 1
    made.close()
    assert len(content(house, "silver.clean")) == 203


def test_two_backfills_of_one_table_at_once(house: Lakehouse) -> None:
    house.run(workers="dag", select=["silver.clean"])
    expected = content(house, "silver.clean")
    failures: list[BaseException] = []

    def fill(first: str, last: str) -> None:
        try:
            type(house)(house.settings).backfill("silver.clean", first, last, workers=1)
        except BaseException as error:
            failures.append(error)

    both = [threading.Thread(target=fill, args=days)
            for days in (("2026-01-01", "2026-01-06"), ("2026-01-05", "2026-01-10"))]  # fmt: skip
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert not failures
    assert content(house, "silver.clean") == expected


def test_partitions_that_fail_are_named_and_the_others_kept(house: Lakehouse) -> None:
    land(house, [{**row(1, 3), "id": None}])
    with pytest.raises(ThermoclineError) as told:
        house.backfill("silver.clean", batch=1)
    assert set(told.value.details["partitions"]) == {"2026-01-04"}
    assert "id" in told.value.cause
    assert content(house, "silver.clean") == []
    found = house.partitions("silver.clean")
    assert found.counts == {"done": 9, "failed": 1}
    model = house.settings.project / "models/silver/clean.sql"
    model.write_text(model.read_text().replace("kind <> 'bad'", "kind <> 'bad' and id >= 0"))
    report = type(house)(house.settings).backfill("silver.clean", batch=1)
    assert not report.resumed  # another model: what the old one computed does not count
    assert len(content(house, "silver.clean")) == 200


def test_a_broken_rule_publishes_nothing(house: Lakehouse) -> None:
    land(house, [row(777, 2, "a", "-1.00")])
    with pytest.raises(CheckFailed):
        house.backfill("silver.clean")
    assert content(house, "silver.clean") == []
    [left] = house.clean(plan=True).runs
    assert left.status == "resumable"
    assert json.loads(thermo(house, "clean", left.run).stdout)["runs"][0]["dropped"]
    assert house.partitions("silver.clean").counts == {"missing": 10}


def test_what_a_failed_run_left_is_dropped_by_one_command(house: Lakehouse) -> None:
    land(house, [row(777, 2, "a", "-1.00")])
    with pytest.raises(CheckFailed):
        house.run(workers="dag")
    tables = json.loads(thermo(house, "tables").stdout)
    assert {tuple(table["branches"]) for table in tables} == {("main",)}
    [left] = house.clean(plan=True).runs
    assert left.tables == ("gold.daily", "gold.kinds", "silver.clean")
    done = json.loads(thermo(house, "clean").stdout)
    assert [(run["run"], run["dropped"]) for run in done["runs"]] == [(left.run, True)]
    assert house.clean().runs == ()


def test_pieces_can_be_done_elsewhere(house: Lakehouse) -> None:
    handed = thermo(house, "backfill", "silver.clean", "--hand-out", "--batch", "4")
    pieces = json.loads(handed.stdout)
    assert [len(piece["parts"]["values"]) for piece in pieces] == [4, 4, 2]
    for piece in [*pieces, pieces[0]]:  # one of them twice
        done = thermo(house, "work", "--piece", json.dumps(piece))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["snapshot"]
    assert content(house, "silver.clean") == []
    finished = json.loads(thermo(house, "backfill", "silver.clean").stdout)
    assert finished["resumed"] and finished["computed"] == 0
    assert len(content(house, "silver.clean")) == 200


def test_one_partition_for_an_orchestrator(house: Lakehouse) -> None:
    done = thermo(house, "work", "silver.clean", "--partition", "2026-01-03")
    assert json.loads(done.stdout)["rows"] == 20
    assert {at.day for _, at, *_ in content(house, "silver.clean")} == {3}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("backfill", "gold.kinds"), "cannot be computed partition by partition"),
        (("backfill", "gold.nothing"), "no model"),
        (("backfill", "silver.clean", "--from", "yesterday"), "is not a date"),
        (("work", "--piece", "{}"), "not a work unit"),
        (("work", "--piece", "{"), "line of JSON"),
        (("work", "silver.clean"), "must be used together"),
        (("partitions", "gold.nothing"), "no model"),
    ],
)
def test_wrong_input_is_told_and_changes_nothing(
    house: Lakehouse, words: tuple[str, ...], said: str
) -> None:
    before = {t: house.lake.state(t).metadata_location for t in house.lake.tables()}
    wrong = thermo(house, *words)
    assert wrong.returncode == 2
    assert said in json.loads(wrong.stdout or wrong.stderr)["error"]["cause"]
    assert {t: house.lake.state(t).metadata_location for t in house.lake.tables()} == before


def test_a_piece_that_is_no_piece(house: Lakehouse) -> None:
    piece = house.hand_out("silver.clean", batch=10)[0]
    assert WorkUnit.from_dict(json.loads(json.dumps(piece.as_dict()))) == piece
    for wrong in ({"table": "a'; drop table t--"}, {"branch": "../x"}, {"version": 2}):
        with pytest.raises(BadInput):
            WorkUnit.from_dict({**piece.as_dict(), **wrong})


def test_a_piece_that_is_too_large_is_done_alone(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day needs 2 GB at once, for which there is room only when all memory goes to one."""
    from thermocline.api import open as opened
    from thermocline.transform.workers import pool

    monkeypatch.setenv("THERMOCLINE_WORKERS__MEMORY", "1GB")
    monkeypatch.setenv("THERMOCLINE_TRANSFORM__ENGINE", "duckdb")
    model = house.settings.project / "models/silver/clean.sql"
    large = (
        "and case when id = 40 then length(repeat(repeat(kind, 1000), 1200000)) else 1 end > 0\n"
    )
    model.write_text(model.read_text() + large)
    crews: list[tuple[int, int]] = []
    begun = pool._ProcessGroup.__init__

    def watched(self: object, settings: object, memory: int, threads: int) -> None:
        crews.append((memory, threads))
        begun(self, settings, memory, threads)  # type: ignore[arg-type]

    monkeypatch.setattr(pool._ProcessGroup, "__init__", watched)
    report = opened(house.settings.project).backfill("silver.clean", batch=1)
    assert crews == [(10**9, 1), (2 * 10**9, 2)]
    assert (report.partitions, report.computed, report.on_spark) == (10, 10, 0)
    assert len(content(house, "silver.clean")) == 200


def test_what_no_worker_has_room_for_is_sparks_and_the_plan_remembers_it(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every worker dies of its first piece, as one does that the system ends for its memory."""
    from thermocline.transform.workers import pool

    monkeypatch.setattr(pool, "MAX_DEATHS", 1)
    monkeypatch.setenv("THERMOCLINE_CRASH_AT", "worker.begun")
    report = house.run(["silver.clean"], workers="partition")
    assert [(step.refresh_mode, step.engine) for step in report.steps] == [("full", "duckdb")]
    assert len(content(house, "silver.clean")) == 200
    land(house, [row(7, 1, "late")])
    (step,) = house.plan(["silver.clean"]).steps
    assert step.choice.engine == "spark"
    assert "exceeded DuckDB's memory before" in step.choice.why
    (asked,) = house.plan(["silver.clean"], workers="partition").steps
    assert asked.choice.executor_key == "duckdb partition"
    iter_filled = house.backfill("silver.clean", "2026-01-02", "2026-01-04", batch=1)
    assert (iter_filled.computed, iter_filled.on_spark) == (3, 3)
    assert len(content(house, "silver.clean")) == 201


def test_a_table_that_was_cut_otherwise_before(house: Lakehouse) -> None:
    """Its old files lie in no partition of today: a full refresh takes all of them out."""
    house.run(["silver.clean"], workers="partition")
    contract = house.settings.project / "contracts/silver/clean.odcs.yaml"
    contract.write_text(contract.read_text().replace("value: day}", "value: month}"))
    house = type(house)(house.settings)
    house.run(["silver.clean"], workers="partition")
    contract.write_text(contract.read_text().replace("value: month}", "value: day}"))
    house = type(house)(house.settings)
    expected = content(house, "silver.clean")
    report = house.run(["silver.clean"], workers="partition", full_refresh=True)
    assert report.steps[0].engine == "duckdb"
    assert content(house, "silver.clean") == expected
    assert len(expected) == 200


def test_joins_that_compare_all_rows_are_left_to_spark(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thermocline.engine.duck import UnsupportedByDuckDB
    from thermocline.transform.duck import session

    opened = session.Session(house.lake)
    head = house.lake.state("bronze.raw").head()
    assert head is not None
    rows = opened.scan("bronze.raw", head)
    joined = f"SELECT * FROM ({rows}) AS a LEFT JOIN ({rows}) AS b ON a.id = b.id AND "
    monkeypatch.setattr(session, "MAX_PAIRS", 220 * 220 - 1)
    opened.require_fast_joins(joined + "a.at < coalesce(b.at, TIMESTAMPTZ '9999-01-01')")
    with pytest.raises(UnsupportedByDuckDB, match="pairs of rows"):
        opened.require_fast_joins(joined + "(b.at IS NULL OR a.at < b.at)")
    monkeypatch.setattr(session, "MAX_PAIRS", 220 * 220)
    opened.require_fast_joins(joined + "(b.at IS NULL OR a.at < b.at)")
    opened.close()


POLARS = """
import polars as pl
from thermocline.transform import changes, model

@model(reads={"rows": changes("bronze.raw")}, engine="polars")
def kinds(rows):
    new = rows.filter((pl.col("_change") == "insert") & (pl.col("kind") != "bad"))
    return new.select("id", "at", pl.col("kind").str.to_uppercase(), "amount")
"""


def test_a_python_model_on_polars(house: Lakehouse) -> None:
    """No Java is started: polars computes it, from new rows alone the second time."""
    project = house.settings.project
    clean = project / "contracts/silver/clean.odcs.yaml"
    text = clean.read_text().replace("write, value: partitions", "write, value: append")
    (project / "contracts/silver/upper.odcs.yaml").write_text(text.replace("clean", "upper"))
    (project / "models/silver/upper.py").write_text(POLARS)
    house = type(house)(house.settings)
    land(house, [row(1, 0, "a", "2.00")])
    for workers, detail in (("dag", "all rows"), ("model", "new rows, by a worker")):
        report = house.run(["silver.upper"], workers=workers)
        assert [(s.engine, s.detail) for s in report.steps] == [("polars", detail)]
        land(house, [row(2, 0, "b", "2.00")])
    rows = content(house, "silver.upper")
    assert len(rows) == 212
    assert {kind for *_, kind, _ in rows} == {"A", "B", "C"}


def _silent():  # type: ignore[no-untyped-def]
    from thermocline.telemetry import SILENT

    return SILENT

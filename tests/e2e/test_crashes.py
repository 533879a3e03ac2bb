"""Kill the work with SIGKILL at every named point, do it again, and find nothing amiss.

Each case starts from the same saved stage. After the death main must show whole units only: a
source's batch, or a whole run, as it was or as it shall be. After doing it again every table must
equal the one that was never disturbed, every file that any snapshot needs must be there, and what
the lake calls an orphan must be deletable without a reader noticing.

Most processes work in this test's JVM, which outlives them: that saves its start and leaves more
behind than a death of both. Where Spark itself is to die, they have a JVM of their own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from tests.e2e.crash_project import COMMANDS, Picture, Scene, deliver, picture, rows

import thermocline
from thermocline.api import Lakehouse
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.orphans import list_files, referenced_files

Found = TypeVar("Found")


ELSEWHERE = (
    "integration/dbt/test_jaffle_shop.py",
    "integration/test_workers.py",
    "contract/test_group_commit_concurrency.py",
    "contract/test_relocate.py",
    "integration/test_maintain.py",
    "integration/test_expire.py",
    "integration/test_remove_commands.py",
    "integration/test_rest_expiry.py",
    "integration/test_rewrite_manifests.py",
)
"""Other suites that kill at points of their own."""


@dataclass(frozen=True)
class Case:
    """Where a process dies, and what it must have published and left behind by then."""

    stage: str
    point: str
    published: tuple[str, ...] = ()
    branch: bool = False
    orphans: bool = False
    own_jvm: bool = False
    command: str = "load"
    engine: str = "spark"
    lane: str = "auto"

    def __str__(self) -> str:
        by = "" if self.lane == "auto" else f"-by-{self.lane}"
        on = "" if self.engine == "spark" else f"-on-{self.engine}"
        return f"{self.stage}-{self.point}{by}{on}{'-with-its-jvm' if self.own_jvm else ''}"


# Units are what becomes visible together: the batch of one source, or all tables of a run.
CUSTOMERS, ORDERS, MODELS, MENDED = "customers", "orders", "models", "mended"
CASES = [
    # Nothing is there: tables are made, then filled.
    Case("empty", "ingest.listed"),
    Case("empty", "table.created:2", published=(CUSTOMERS,)),
    Case("empty", "table.created:5", published=(CUSTOMERS, ORDERS)),
    # A second delivery waits. Each source is a unit of its own; Spark takes part only where a
    # row is bad, and in everything where it is told to.
    Case("delivered", "ingest.read"),
    Case("delivered", "ingest.read", lane="spark"),
    Case("delivered", "draft.begun:3", published=(CUSTOMERS,), branch=True, lane="spark"),
    Case("delivered", "commit.files-written", orphans=True),
    Case("delivered", "commit.files-written", branch=True, own_jvm=True, lane="spark"),
    Case("delivered", "ingest.committed-bronze:2", published=(CUSTOMERS,), orphans=True),
    Case(
        "delivered", "ingest.committed-bronze:2", published=(CUSTOMERS,), branch=True, lane="spark"
    ),
    Case("delivered", "ingest.committed-quarantine:2", published=(CUSTOMERS,), orphans=True),
    Case("delivered", "ingest.published", published=(CUSTOMERS,)),
    # It has been taken in. A run brings five tables up to date and publishes them together.
    Case("ingested", "run.planned"),
    Case("ingested", "run.ensured"),
    Case("ingested", "draft.begun", branch=True),
    Case("ingested", "step.before:2", branch=True),
    Case("ingested", "commit.before:2", branch=True),
    Case("ingested", "commit.files-written:2", branch=True, own_jvm=True),
    Case("ingested", "commit.after:3", branch=True),
    Case("ingested", "step.after:3", branch=True),
    Case("ingested", "run.checked", branch=True),
    Case("ingested", "publish.before", branch=True),
    Case("ingested", "publish.staging:7", branch=True, orphans=True),
    Case("ingested", "publish.staged:2", branch=True, orphans=True),
    Case("ingested", "publish.swapping:2", branch=True, orphans=True, own_jvm=True),
    Case("ingested", "publish.swapped:2", published=(MODELS,)),
    Case("ingested", "publish.after", published=(MODELS,)),
    # The same with merge and partitions on DuckDB; what only Spark understands stays there.
    Case("ingested", "commit.files-written:2", branch=True, engine="auto"),
    Case("ingested", "commit.after:4", branch=True, engine="auto"),
    Case("ingested", "step.after:3", branch=True, engine="auto"),
    Case("ingested", "publish.swapping:2", branch=True, orphans=True, engine="auto"),
    # Rows from quarantine are mended and put through again.
    Case("published", "replay.committed-bronze", branch=True, command="replay"),
    Case("published", "replay.committed-quarantine", branch=True, command="replay"),
    Case("published", "replay.published", published=(MENDED,), command="replay"),
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Every stage, reached once without any disturbance."""
    made = Scene(tmp_path_factory.mktemp("crash"))
    deliver(made.project, 1)
    house = made.open()
    house.lake.catalog.list_namespaces()  # the catalog's own tables are there, no table is
    made.save("empty")
    house.ingest(["customers"])
    made.save("empty/customers")
    house.ingest(["orders"])
    made.save("empty/orders")
    house.run()
    made.save("empty/models")
    deliver(made.project, 2)
    made.save("delivered")
    house.ingest(["customers"])
    made.save("delivered/customers")
    house.ingest(["orders"])
    made.save("ingested")
    house.run()
    made.save("published")
    mended = [{"id": row.id, "day": "2026-01-02", "amount": "1.00"} for row in house.quarantine()]
    (made.project / "mended.jsonl").write_text("\n".join(json.dumps(line) for line in mended))
    COMMANDS["replay"](house)
    made.save("mended")
    yield made
    house.lake.duck.stop()


# What main shows when these units of a stage have been published, and when all of them have.
SHOWN = {
    "empty": {(): "empty", (CUSTOMERS,): "empty/customers", (CUSTOMERS, ORDERS): "empty/orders"},
    "delivered": {(): "delivered", (CUSTOMERS,): "delivered/customers"},
    "ingested": {(): "ingested", (MODELS,): "published"},
    "published": {(): "published", (MENDED,): "mended"},
}
LAST = {"empty": "empty/models", "delivered": "published", "ingested": "published",
        "published": "mended"}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_work_that_was_killed_is_done_again_as_if_nothing_had_been(
    scene: Scene, case: Case
) -> None:
    scene.restore(case.stage)
    scene.choose(case.lane)
    spark = None if case.own_jvm else scene.open().lake.spark.session
    scene.kill(case.command, case.point, spark, case.engine)

    house = scene.open()
    before = scene.pictures[case.stage]
    whole_units_only(house, before, scene.pictures[SHOWN[case.stage][case.published]])
    assert bool(left_branches(house)) == case.branch
    # Whatever dies before it writes, or after its publish, leaves no file for nobody.
    if not case.branch and not case.orphans:
        assert sum(len(house.orphans(table)) for table in house.lake.tables()) == 0
    if "files-written" in case.point:
        # Whether Spark still came to its commit before it died too is a matter of milliseconds.
        assert data_files(scene.lake) > data_files(scene.saved / case.stage / "lake")
    if case.orphans:
        assert sum(len(house.orphans(table)) for table in house.lake.tables()) > 0
    doctor_names_what_is_left(house)

    COMMANDS[case.command](house)

    same_as_undisturbed(house, scene.pictures[LAST[case.stage]])
    every_file_landed_once(house)
    bookmarks_name_what_was_read(house, stale=case.command == "replay")
    no_file_is_lost(house)
    if case.own_jvm:
        iceberg_agrees_on_the_orphans(house)
    history_needs_no_orphan(house, before)
    house.lake.duck.stop()


@pytest.mark.parametrize(
    "case",
    [
        Case("delivered", "ingest.committed-bronze:2", published=(CUSTOMERS,)),
        Case("delivered", "ingest.published", published=(CUSTOMERS,)),
        Case("ingested", "publish.swapping:2"),
        Case("ingested", "publish.after", published=(MODELS,)),
        Case("published", "replay.committed-quarantine", command="replay"),
    ],
    ids=str,
)
def test_nothing_is_forgotten_though_every_commit_lets_go_what_it_may(
    scene: Scene, case: Case
) -> None:
    scene.restore(case.stage)
    scene.choose(case.lane)
    with scene.expiring():
        scene.kill(case.command, case.point, scene.open().lake.spark.session, case.engine)

        house = scene.open()
        before = scene.pictures[case.stage]
        whole_units_only(house, before, scene.pictures[SHOWN[case.stage][case.published]])
        for _ in range(2):  # the second time there is nothing left to do
            COMMANDS[case.command](house)
            same_as_undisturbed(house, scene.pictures[LAST[case.stage]])
            every_file_landed_once(house)
        bookmarks_name_what_was_read(house, stale=case.command == "replay")
        no_file_is_lost(house)
        history_needs_no_orphan(house, before)
        house.lake.duck.stop()


def test_a_jvm_that_outlives_its_process_disturbs_nobody(scene: Scene) -> None:
    """Python dies while Spark writes; Spark goes on and commits, beside those who do it again."""
    scene.restore("ingested")
    house = scene.open()
    spark = house.lake.spark.session
    scene.kill("load", "commit.files-written:1", spark)

    [branch] = _await(lambda: list(left_branches(house)))
    COMMANDS["load"](house)
    same_as_undisturbed(house, scene.pictures["published"])
    _await(lambda: any(_committed(house, table, branch) for table in house.lake.tables()))

    same_as_undisturbed(house, scene.pictures["published"])
    no_file_is_lost(house)
    history_needs_no_orphan(house, scene.pictures["ingested"])
    house.lake.duck.stop()


def test_dying_again_and_again_changes_nothing(scene: Scene) -> None:
    scene.restore("delivered")
    spark = scene.open().lake.spark.session
    for point in ("ingest.committed-bronze", "commit.after:3", "publish.swapping:3"):
        scene.kill("load", point, spark)
    house = scene.open()
    assert len(left_branches(house)) == 1  # the run: batches leave files, and no branch
    COMMANDS["load"](house)
    same_as_undisturbed(house, scene.pictures["published"])
    every_file_landed_once(house)
    no_file_is_lost(house)
    house.lake.duck.stop()


def test_every_point_is_died_at() -> None:
    source = Path(thermocline.__file__).parent
    named = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r'crash_(?:point|when_written)\(\s*"([^"]+)"', path.read_text())
    }
    died = {case.point.partition(":")[0] for case in CASES}
    for suite in ELSEWHERE:
        text = (Path(__file__).parents[1] / suite).read_text()
        died |= {name for name in named if re.search(f'"{re.escape(name)}[":]', text)}
    assert named == died


def whole_units_only(house: Lakehouse, before: Picture, expected: Picture) -> None:
    """Main is exactly what the published units make it: the rest has not moved at all."""
    now = picture(house)
    changed = {table for table, head in expected.heads.items() if before.heads.get(table) != head}
    assert {t for t, head in now.heads.items() if before.heads.get(t) != head} == changed
    for table, found in now.rows.items():
        assert found == expected.rows.get(table, []), table


def data_files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.parquet")}


def left_branches(house: Lakehouse) -> dict[str, list[str]]:
    """The branches of runs that were never published, with the tables that have them."""
    found: dict[str, list[str]] = {}
    for table in house.lake.tables():
        for ref in house.lake.state(table).refs:
            if ref.startswith("run-"):
                found.setdefault(ref, []).append(table)
    return found


def doctor_names_what_is_left(house: Lakehouse) -> None:
    findings = house.doctor()
    said = {f.detail for f in findings if f.what == "unpublished run"}
    assert said == {f"{branch} in {', '.join(t)}" for branch, t in left_branches(house).items()}
    files = sum(len(house.orphans(table)) for table in house.lake.tables())
    [orphans] = [f.detail for f in findings if f.what == "orphans"]
    assert orphans.startswith(f"{files} files, " if files else "none")


def same_as_undisturbed(house: Lakehouse, expected: Picture) -> None:
    assert house.lake.tables() == sorted(expected.rows)
    for table, wanted in expected.rows.items():
        assert rows(house, table) == wanted, table


def every_file_landed_once(house: Lakehouse) -> None:
    """The rows beside main name every file of the landing folder exactly once."""
    rows = house.lake.consumption_store
    assert rows is not None
    for source in house.sources.values():
        state = house.lake.state(source.target)
        there = sorted(path.name for path in Path(source.path).iterdir())
        ancestry = (snapshot.id for snapshot in state.ancestry(state.head()))
        main = rows.expand_ancestry(state.uuid, ancestry)
        found = rows.find_files_by_name(state.uuid, there)
        assert sorted(file.name for file, snapshot in found if snapshot in main) == there


def bookmarks_name_what_was_read(house: Lakehouse, *, stale: bool) -> None:
    """Every model has consumed its sources to their ends, so there is nothing to do."""
    if stale:
        assert house.run().steps  # what was mended goes on its way
    assert house.plan().steps == ()
    for table, model in house.models.items():
        marked = bookmarks.read(house.lake.state(table))
        read = {source: marked[source] for source in model.sources}
        assert read == {source: house.lake.state(source).head() for source in model.sources}


def no_file_is_lost(house: Lakehouse) -> None:
    for table in house.lake.tables():
        iceberg = house.lake.iceberg(table)
        there = {path for path, _ in list_files(iceberg)}
        assert referenced_files(iceberg) <= there, table
        assert {path for path, _ in house.orphans(table)} == there - referenced_files(iceberg), (
            table
        )


def iceberg_agrees_on_the_orphans(house: Lakehouse) -> None:
    """Iceberg's own metadata tables, read by Spark, name the same files as needed."""
    for table in house.lake.tables():
        needed = house.lake.spark.session.sql(
            f"select file_path from lake.{table}.all_files "
            f"union select path from lake.{table}.all_manifests "
            f"union select manifest_list from lake.{table}.snapshots "
            f"union select file from lake.{table}.metadata_log_entries"
        )
        paths = {re.sub("^file:/+", "/", row[0]) for row in needed.collect()}
        there = {path for path, _ in list_files(house.lake.iceberg(table))}
        assert {path for path, _ in house.orphans(table)} == there - paths, table


def history_needs_no_orphan(house: Lakehouse, before: Picture) -> None:
    """With every orphan deleted, each snapshot that is left reads as it did."""
    names = house.lake.tables()
    snapshots = [(table, id_) for table in names for id_ in house.lake.state(table).snapshots]
    known = {each: rows(house, *each) for each in snapshots}
    for table in names:
        for path, _ in house.orphans(table):
            Path(path).unlink()
        assert house.orphans(table) == []
    assert {each: rows(house, *each) for each in snapshots} == known
    for each in known.keys() & before.heads.items():
        assert known[each] == before.rows[each[0]]


def _committed(house: Lakehouse, table: str, branch: str) -> bool:
    """Whether something was written to a branch since it was made."""
    state = house.lake.state(table)
    head = state.head(branch)
    return head is not None and state.snapshot(head).summary.get(bookmarks.RUN) == (
        branch.removeprefix("run-")
    )


def _await(look: Callable[[], Found], seconds: float = 60.0) -> Found:
    """What a look finds as soon as it finds something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found

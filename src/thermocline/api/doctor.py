"""`thermo doctor`: is everything that a project needs in place, and what did dead runs leave?"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.api.file_errors import suggest_recovery
from thermocline.engine import class_archive, jars, java
from thermocline.engine.spark import uses_s3
from thermocline.errors import BadInput, EngineUnavailable, ThermoclineError
from thermocline.lake.commit_failures import disk_error
from thermocline.lake.commit_times import TOLERANCE, ahead_ms, backward_ms
from thermocline.lake.companions import is_companion, load_unit
from thermocline.lake.missing_files import find_missing_files
from thermocline.lake.partition_cardinality import partition_warnings
from thermocline.lake.run_branches import find_unpublished_runs
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from thermocline.api.lakehouse import Lakehouse

LOW_DISK = 2 << 30


@dataclass(frozen=True)
class Finding:
    """Result of one check. `status` is ok, warn or fail."""

    status: str
    what: str
    detail: str
    next_step: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return dict(vars(self))


def diagnose(lakehouse: Lakehouse, progress: Progress = SILENT) -> list[Finding]:
    """Check the machine, the project and the lake; change nothing."""
    found: list[Finding] = [Finding("ok", "python", sys.version.split()[0])]
    checks: dict[str, Iterator[Finding]] = {
        "java": _check_java(),
        "jars": _check_jars(lakehouse),
        "project": _check_project(lakehouse),
        "disk": _check_disk(lakehouse),
        "catalog": _check_catalog(lakehouse),
        "files": _check_files(lakehouse, progress),
        "times": _check_commit_times(lakehouse),
        "companions": _check_companions(lakehouse),
        "partitions": _check_partitions(lakehouse, progress),
        "leftovers": _check_leftovers(lakehouse, progress),
    }
    for name, findings in checks.items():
        try:
            found.extend(findings)
        except (ThermoclineError, OSError) as error:
            if not any(each.what == "missing file" for each in found):
                known = error if isinstance(error, ThermoclineError) else disk_error(error)
                if known is None:
                    raise
                # One cause can stop several checks; report it once.
                if all(known.cause != each.detail for each in found):
                    found.append(Finding("fail", name, known.cause, known.next_step))
    return found


def _check_java() -> Iterator[Finding]:
    yield Finding("ok", "java", str(java.find_java().version))


def _check_jars(lakehouse: Lakehouse) -> Iterator[Finding]:
    settings = lakehouse.settings
    packages = (*jars.BASE, *(jars.S3 if uses_s3(settings) else ()), *settings.spark.packages)
    yield Finding("ok", "jars", f"{len(jars.resolve(packages))} jars, cached")


def _check_project(lakehouse: Lakehouse) -> Iterator[Finding]:
    contracts, models, sources = lakehouse.contracts, lakehouse.models, lakehouse.sources
    counts = f"{len(contracts)} contracts, {len(models)} models, {len(sources)} sources"
    yield Finding("ok", "project", counts)
    for warning in lakehouse.settings.warnings:
        yield Finding("warn", "settings", str(warning))


def _check_disk(lakehouse: Lakehouse) -> Iterator[Finding]:
    if "://" in lakehouse.settings.warehouse:
        return
    folder = Path(lakehouse.settings.warehouse)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / (1 << 30):.1f} GB free"
    low = free < LOW_DISK
    yield Finding("warn" if low else "ok", "disk", detail, "Free some space." if low else "")


def _check_catalog(lakehouse: Lakehouse) -> Iterator[Finding]:
    tables = lakehouse.lake.tables()
    yield Finding("ok", "catalog", f"{lakehouse.settings.catalog.type}, {len(tables)} tables")


def _check_files(lakehouse: Lakehouse, progress: Progress) -> Iterator[Finding]:
    """Find files that tables need and that are missing. Lists folders and opens no data file."""
    lake, gone = lakehouse.lake, 0
    tables = lake.tables()
    progress.step("find missing files", total=len(tables))
    for table in tables:
        progress.advance(0, table)
        found = list(find_missing_files(lake, table))
        gone += len(found)
        if found:
            more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
            yield Finding(
                "fail", "missing file", f"{found[0]}{more}", suggest_recovery(lake, found[0])
            )
        progress.advance()
    progress.done(f"{len(tables):,} tables")
    if not gone:
        yield Finding("ok", "files", "every file that a table needs exists")


def _check_commit_times(lakehouse: Lakehouse) -> Iterator[Finding]:
    """Find commit times that Spark refuses: out of order, or ahead of the clock."""
    repair = "Repair its metadata; the snapshots stay: thermo doctor --fix."
    found = False
    for table, state in lakehouse.lake.states().items():
        back, ahead = backward_ms(state.raw), ahead_ms(state.raw)
        found = found or bool(back) or ahead > TOLERANCE
        if back:
            what = f"{table}: commit times go back by {back / 1000:,.0f} s"
            refused = ", and Spark cannot read it" if back > TOLERANCE else ""
            yield Finding("fail" if refused else "warn", "commit times", what + refused, repair)
        elif ahead > TOLERANCE:
            what = f"{table}: its last commit is {ahead / 60_000:,.0f} minutes ahead of the clock"
            yield Finding("fail", "commit times", f"{what}, and Spark cannot commit to it", repair)
    if not found:
        yield Finding("ok", "commit times", "in order")


def _check_companions(lakehouse: Lakehouse) -> Iterator[Finding]:
    """Find companions that did not move when their table was moved."""
    lake = lakehouse.lake
    for table, state in lake.states().items():
        head = None if is_companion(table) else state.head()
        if head is None:
            continue
        try:
            moves = load_unit(lake, table).plan_moves(head)
        except BadInput:
            continue  # the snapshots that would show it have expired
        for companion, (at, beside) in moves.items():
            if at != beside:
                yield Finding(
                    "warn",
                    "companions",
                    f"{companion} does not match the current snapshot of {table}",
                    f"Roll it back with its table: thermo rollback {table} --to {head}.",
                )


def fix(lakehouse: Lakehouse) -> list[Finding]:
    """Repair what can be repaired without losing anything, and prepare Spark for a fast start."""
    lake, done = lakehouse.lake, []
    with suppress(EngineUnavailable):  # reported by the check of Java
        if class_archive.create_in_child():
            done.append(Finding("ok", "prepared", "Spark starts in about half the time"))
    for table, state in lake.states().items():
        back, ahead = backward_ms(state.raw), ahead_ms(state.raw)
        if back or ahead > TOLERANCE:
            lake.repair_commit_times(table)
            done.append(Finding("ok", "repaired", f"{table}: commit times are in order"))
    return done


def _check_partitions(lakehouse: Lakehouse, progress: Progress) -> Iterator[Finding]:
    states = lakehouse.lake.states(lakehouse.contracts)
    progress.step("check partitions", total=len(states))
    for table, state in states.items():
        progress.advance(0, table)
        head = state.head()
        if head is not None:
            for warning in partition_warnings(lakehouse.lake, lakehouse.contracts[table], head):
                yield Finding("warn", "partitions", f"{table}: {warning.what}", warning.hint)
        progress.advance()
    progress.done(f"{len(states):,} tables")


def _check_leftovers(lakehouse: Lakehouse, progress: Progress) -> Iterator[Finding]:
    """Find branches and files that no published state needs, left by failed or killed runs."""
    orphans = size = 0
    incomplete: list[str] = []
    states = lakehouse.lake.states()
    progress.step("find unused files", total=len(states))
    for table in states:
        progress.advance(0, table)
        try:
            for _, bytes_ in lakehouse.orphans(table):
                orphans += 1
                size += bytes_
        except FileNotFoundError:
            incomplete.append(table)
        progress.advance()
    progress.done(f"{len(states):,} tables")
    if incomplete:
        yield Finding(
            "warn",
            "orphans",
            f"{', '.join(incomplete)}: older snapshots lack files, so unused ones cannot be found",
            "Restore them from a backup, or ignore it: only time travel to those snapshots fails.",
        )
    for run in find_unpublished_runs(lakehouse.lake, states):
        if run.working:
            continue
        yield Finding(
            "warn",
            "unpublished run",
            f"{run.branch} in {', '.join(run.tables)}",
            f"Query it with --at {run.branch}, or drop it: thermo clean {run.run}",
        )
    if orphans:
        detail = f"{orphans:,} files, {size / (1 << 20):.1f} MB, that no snapshot uses"
        yield Finding("warn", "orphans", detail, "They do no harm; `thermo maintain` removes them.")
    else:
        yield Finding("ok", "orphans", "none")

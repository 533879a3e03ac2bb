"""Whether everything a project needs is in place, and what is left over from runs that died."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.api.missing import way_back
from thermocline.engine import jars, java
from thermocline.engine.spark import uses_s3
from thermocline.errors import BadInput, ThermoclineError
from thermocline.lake.commit_times import TOLERANCE, ahead_ms, backward_ms
from thermocline.lake.companions import is_companion, load_unit
from thermocline.lake.leftovers import unpublished
from thermocline.lake.missing import missing_files
from thermocline.lake.outcomes import of_disk
from thermocline.lake.partitions import too_fine
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from thermocline.api.lakehouse import Lakehouse

LOW_DISK = 2 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `status` is ok, warn or fail."""

    status: str
    what: str
    detail: str
    next_step: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return dict(vars(self))


def examine(lakehouse: Lakehouse, progress: Progress = SILENT) -> list[Finding]:
    """Look at the machine, the project and the lake; change nothing."""
    found: list[Finding] = [Finding("ok", "python", sys.version.split()[0])]
    looks: dict[str, Iterator[Finding]] = {
        "java": _java(),
        "jars": _jars(lakehouse),
        "project": _project(lakehouse),
        "disk": _disk(lakehouse),
        "catalog": _catalog(lakehouse),
        "files": _missing(lakehouse, progress),
        "times": _times(lakehouse),
        "companions": _companions(lakehouse),
        "partitions": _partitions(lakehouse, progress),
        "leftovers": _leftovers(lakehouse, progress),
    }
    for name, look in looks.items():
        try:
            found.extend(look)
        except (ThermoclineError, OSError) as error:
            if not any(each.what == "missing file" for each in found):
                known = error if isinstance(error, ThermoclineError) else of_disk(error)
                if known is None:
                    raise
                # One cause stops several looks.
                if all(known.cause != each.detail for each in found):
                    found.append(Finding("fail", name, known.cause, known.next_step))
    return found


def _java() -> Iterator[Finding]:
    yield Finding("ok", "java", str(java.find().version))


def _jars(lakehouse: Lakehouse) -> Iterator[Finding]:
    settings = lakehouse.settings
    packages = (*jars.BASE, *(jars.S3 if uses_s3(settings) else ()), *settings.spark.packages)
    yield Finding("ok", "jars", f"{len(jars.resolve(packages))} jars, cached")


def _project(lakehouse: Lakehouse) -> Iterator[Finding]:
    contracts, models, sources = lakehouse.contracts, lakehouse.models, lakehouse.sources
    counts = f"{len(contracts)} contracts, {len(models)} models, {len(sources)} sources"
    yield Finding("ok", "project", counts)
    for warning in lakehouse.settings.warnings:
        yield Finding("warn", "settings", str(warning))


def _disk(lakehouse: Lakehouse) -> Iterator[Finding]:
    if "://" in lakehouse.settings.warehouse:
        return
    folder = Path(lakehouse.settings.warehouse)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / (1 << 30):.1f} GB free"
    low = free < LOW_DISK
    yield Finding("warn" if low else "ok", "disk", detail, "Free some space." if low else "")


def _catalog(lakehouse: Lakehouse) -> Iterator[Finding]:
    tables = lakehouse.lake.tables()
    yield Finding("ok", "catalog", f"{lakehouse.settings.catalog.type}, {len(tables)} tables")


def _missing(lakehouse: Lakehouse, progress: Progress) -> Iterator[Finding]:
    """Files that tables need and that are not there. Folders are listed; no data file is opened."""
    lake, gone = lakehouse.lake, 0
    tables = lake.tables()
    progress.step("look for missing files", total=len(tables))
    for table in tables:
        progress.advance(0, table)
        found = list(missing_files(lake, table))
        gone += len(found)
        if found:
            more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
            yield Finding("fail", "missing file", f"{found[0]}{more}", way_back(lake, found[0]))
        progress.advance()
    progress.done(f"{len(tables):,} tables")
    if not gone:
        yield Finding("ok", "files", "all are there that tables need")


def _times(lakehouse: Lakehouse) -> Iterator[Finding]:
    """Commit times that Spark refuses: out of order, or ahead of the clock."""
    mend = "Mend its metadata, the snapshots stay: thermo doctor --fix."
    found = False
    for table, state in lakehouse.lake.states().items():
        back, ahead = backward_ms(state.raw), ahead_ms(state.raw)
        found = found or bool(back) or ahead > TOLERANCE
        if back:
            what = f"{table}: commit times go back by {back / 1000:,.0f} s"
            refused = ", and Spark cannot read it" if back > TOLERANCE else ""
            yield Finding("fail" if refused else "warn", "commit times", what + refused, mend)
        elif ahead > TOLERANCE:
            what = f"{table}: its last commit is {ahead / 60_000:,.0f} minutes ahead of the clock"
            yield Finding("fail", "commit times", f"{what}, and Spark cannot commit to it", mend)
    if not found:
        yield Finding("ok", "commit times", "in order")


def _companions(lakehouse: Lakehouse) -> Iterator[Finding]:
    """Companions that were left where they were when their table was moved."""
    lake = lakehouse.lake
    for table, state in lake.states().items():
        head = None if is_companion(table) else state.head()
        if head is None:
            continue
        try:
            moves = load_unit(lake, table).moves(head)
        except BadInput:
            continue  # the snapshots that would tell have expired
        for companion, (at, beside) in moves.items():
            if at != beside:
                yield Finding(
                    "warn",
                    "companions",
                    f"{companion} is not as it was when {table} was written",
                    f"Bring it beside its table: thermo rollback {table} --to {head}.",
                )


def fix(lakehouse: Lakehouse) -> list[Finding]:
    """Mend what can be mended without losing anything: the order of commit times."""
    lake, done = lakehouse.lake, []
    for table, state in lake.states().items():
        back, ahead = backward_ms(state.raw), ahead_ms(state.raw)
        if back or ahead > TOLERANCE:
            lake.mend_times(table)
            done.append(Finding("ok", "mended", f"{table}: commit times are in order"))
    return done


def _partitions(lakehouse: Lakehouse, progress: Progress) -> Iterator[Finding]:
    states = lakehouse.lake.states(lakehouse.contracts)
    progress.step("look at partitions", total=len(states))
    for table, state in states.items():
        progress.advance(0, table)
        head = state.head()
        if head is not None:
            for warning in too_fine(lakehouse.lake, lakehouse.contracts[table], head):
                yield Finding("warn", "partitions", f"{table}: {warning.what}", warning.hint)
        progress.advance()
    progress.done(f"{len(states):,} tables")


def _leftovers(lakehouse: Lakehouse, progress: Progress) -> Iterator[Finding]:
    """Branches and files that no published state needs: of failed runs, and of ones that died."""
    orphans = size = 0
    untold: list[str] = []
    states = lakehouse.lake.states()
    progress.step("look for unused files", total=len(states))
    for table in states:
        progress.advance(0, table)
        try:
            for _, bytes_ in lakehouse.orphans(table):
                orphans += 1
                size += bytes_
        except FileNotFoundError:
            untold.append(table)
        progress.advance()
    progress.done(f"{len(states):,} tables")
    if untold:
        yield Finding(
            "warn",
            "orphans",
            f"{', '.join(untold)}: older snapshots lack files, so unused ones cannot be found",
            "Restore them from a backup, or leave it: only time travel to those snapshots fails.",
        )
    for run in unpublished(lakehouse.lake, states):
        if run.working:
            continue
        yield Finding(
            "warn",
            "unpublished run",
            f"{run.branch} in {', '.join(run.tables)}",
            f"Look at it with --at {run.branch}, or drop it: thermo clean {run.run}",
        )
    if orphans:
        detail = f"{orphans:,} files, {size / (1 << 20):.1f} MB, that no snapshot uses"
        yield Finding(
            "warn", "orphans", detail, "They are safe to leave; maintenance removes them."
        )
    else:
        yield Finding("ok", "orphans", "none")

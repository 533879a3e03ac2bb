"""Whether everything a project needs is in place, and what is left over from runs that died."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.engine import jars, java
from thermocline.engine.spark import uses_s3
from thermocline.errors import BadInput, ThermoclineError
from thermocline.lake.commit_times import TOLERANCE, ahead_ms, backward_ms
from thermocline.lake.companions import is_companion, load_unit
from thermocline.lake.names import RUN_PREFIX
from thermocline.lake.partitions import too_fine

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


def examine(lakehouse: Lakehouse) -> list[Finding]:
    """Look at the machine, the project and the lake; change nothing."""
    found: list[Finding] = [Finding("ok", "python", sys.version.split()[0])]
    for look in (
        _java,
        _jars,
        _project,
        _disk,
        _catalog,
        _times,
        _companions,
        _partitions,
        _leftovers,
    ):
        try:
            found.extend(look(lakehouse))
        except ThermoclineError as error:
            found.append(Finding("fail", look.__name__.strip("_"), error.cause, error.next_step))
    return found


def _java(lakehouse: Lakehouse) -> Iterator[Finding]:
    del lakehouse
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


def _times(lakehouse: Lakehouse) -> Iterator[Finding]:
    """Commit times that Spark refuses: out of order, or ahead of the clock."""
    mend = "Mend its metadata, the snapshots stay: thermo doctor --fix."
    found = False
    for table in lakehouse.lake.tables():
        raw = lakehouse.lake.state(table).raw
        back, ahead = backward_ms(raw), ahead_ms(raw)
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
    for table in lake.tables():
        head = None if is_companion(table) else lake.state(table).head()
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
    for table in lake.tables():
        raw = lake.state(table).raw
        back, ahead = backward_ms(raw), ahead_ms(raw)
        if back or ahead > TOLERANCE:
            lake.mend_times(table)
            done.append(Finding("ok", "mended", f"{table}: commit times are in order"))
    return done


def _partitions(lakehouse: Lakehouse) -> Iterator[Finding]:
    there = set(lakehouse.lake.tables())
    for table, contract in lakehouse.contracts.items():
        head = lakehouse.lake.state(table).head() if table in there else None
        if head is not None:
            for warning in too_fine(lakehouse.lake, contract, head):
                yield Finding("warn", "partitions", f"{table}: {warning.what}", warning.hint)


def _leftovers(lakehouse: Lakehouse) -> Iterator[Finding]:
    """Branches and files that no published state needs: of failed runs, and of ones that died."""
    branches: dict[str, list[str]] = {}
    orphans = 0
    size = 0
    for table in lakehouse.lake.tables():
        for ref in lakehouse.lake.state(table).refs:
            if ref.startswith(RUN_PREFIX):
                branches.setdefault(ref, []).append(table)
        for _, bytes_ in lakehouse.orphans(table):
            orphans += 1
            size += bytes_
    for branch, tables in branches.items():
        first = min(tables, key=is_companion)  # a companion is dropped with its table alone
        yield Finding(
            "warn",
            "unpublished run",
            f"{branch} in {', '.join(tables)}",
            f"Look at it with --at {branch}, or drop it: thermo branch {first} {branch} --drop",
        )
    if orphans:
        detail = f"{orphans:,} files, {size / (1 << 20):.1f} MB, that no snapshot uses"
        yield Finding(
            "warn", "orphans", detail, "They are safe to leave; maintenance removes them."
        )
    else:
        yield Finding("ok", "orphans", "none")

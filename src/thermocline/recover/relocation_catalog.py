"""The catalog of a relocated lake: check its ownership, copy it, and lock the relocation."""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.config import private_files
from thermocline.errors import BadInput, Transient
from thermocline.lake.catalog import TIMEOUT, catalog_errors
from thermocline.lake.crash_points import crash_point
from thermocline.lake.locations import Warehouse, normalize_location
from thermocline.lake.sql_reader import SqlReader

if TYPE_CHECKING:
    from thermocline.config import Settings

_CATALOG_FILE = "catalog.db"
"""The file name of a warehouse's own catalog."""


def require_own_catalog(settings: Settings) -> None:
    """Raise BadInput for a catalog that other projects may use."""
    folders = (str(settings.project), settings.warehouse)
    if settings.catalog.type == "sqlite" and any(
        Warehouse(each).holds(settings.catalog.uri) for each in folders
    ):
        return
    raise BadInput(
        f"Other projects may use this {settings.catalog.type} catalog, and theirs would move too.",
        "Give a copy a catalog of its own (lake.catalog), or move all: thermo relocate --shared.",
    )


@contextmanager
def lock_relocation(settings: Settings) -> Iterator[None]:
    """Lock the project against concurrent relocations during the block."""
    with private_files.ensure_file(settings.project, "relocate.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Transient(
                "This project is being relocated by another process.", "Wait until it is done."
            ) from error
        yield


def copy_catalog(settings: Settings, old: str) -> None:
    """Copy the catalog of an old warehouse, if it has one and the lake has no tables."""
    source = Path(normalize_location(old)) / _CATALOG_FILE
    if settings.catalog.type != "sqlite" or not source.is_file() or SqlReader(settings).locations():
        return
    target = Path(settings.catalog.uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    # Opening the original would create files beside it. Its log has recent commits.
    for end in ("", "-wal"):
        part.with_name(part.name + end).unlink(missing_ok=True)
        log = source.with_name(source.name + end)
        if log.exists():
            shutil.copyfile(log, part.with_name(part.name + end))
    with catalog_errors("sqlite"), closing(sqlite3.connect(part, timeout=TIMEOUT)) as db:
        [whole] = db.execute("PRAGMA quick_check(1)").fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if whole != "ok":
        raise BadInput(
            f"The copy of {source} is damaged.", "Copy it while no process writes to it."
        )
    crash_point("relocate.catalog")
    part.replace(target)

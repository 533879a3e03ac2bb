"""What is done around the process: to its catalog, its servers, and its tables."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.engine.spark import CATALOG
from thermocline.errors import BadInput, Transient
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from thermocline.lake import Lake

LARGE_FILE = 32 << 20
"""Files of this size are left alone, so that the work follows what is new and not the table."""


@contextlib.contextmanager
def locked(catalog: Path) -> Iterator[None]:
    """Nobody reads or writes a SQLite catalog for the time of the block."""
    with contextlib.closing(sqlite3.connect(catalog, timeout=30, isolation_level=None)) as held:
        held.execute("begin exclusive")
        try:
            yield
        finally:
            held.execute("rollback")


def restart(command: str | Callable[[], None]) -> None:
    """Restart a server, by a command of the user's or a function of the caller's."""
    if callable(command):
        command()
        return
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)  # noqa: S602  the user's own command
    if done.returncode:
        raise BadInput(
            f"The restart command ended with {done.returncode}: {one_line(done.stderr)[:300]}",
            "Try it by hand first.",
        )


def compact(lake: Lake, tables: Sequence[str]) -> bool:
    """Join the small files of tables, as maintenance does while others write; whether any were."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    options = f"map('min-input-files', '2', 'target-file-size-bytes', '{LARGE_FILE}')"
    rewritten = 0
    for table in filter(lake.exists, tables):
        which = f"table => '{table}', options => {options}"
        try:
            [done] = lake.spark.sql(f"CALL {CATALOG}.system.rewrite_data_files({which})").collect()
        except (PySparkException, Py4JError) as error:
            said = redact(one_line(str(error).partition("\n")[0]))[:300]
            raise Transient(f"{table} could not be compacted: {said}", "Try again.") from error
        rewritten += done["rewritten_data_files_count"]
    return rewritten > 0

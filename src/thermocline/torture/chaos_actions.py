"""Chaos actions on the environment of the process: its catalog, servers and tables."""

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
"""Files of this size are not compacted, so that the work follows the new files only."""


@contextlib.contextmanager
def lock_catalog(catalog: Path) -> Iterator[None]:
    """Block all reads and writes of a SQLite catalog during the block."""
    with contextlib.closing(sqlite3.connect(catalog, timeout=30, isolation_level=None)) as lock:
        lock.execute("begin exclusive")
        try:
            yield
        finally:
            lock.execute("rollback")


def restart(command: str | Callable[[], None]) -> None:
    """Restart a server, by the user's shell command or the caller's function."""
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
    """Compact the small files of tables, as maintenance does; return whether there were any."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    options = f"map('min-input-files', '2', 'target-file-size-bytes', '{LARGE_FILE}')"
    rewritten = 0
    for table in filter(lake.exists, tables):
        which = f"table => '{table}', options => {options}"
        try:
            [done] = lake.spark.sql(f"CALL {CATALOG}.system.rewrite_data_files({which})").collect()
        except (PySparkException, Py4JError) as error:
            reason = redact(one_line(str(error).partition("\n")[0]))[:300]
            raise Transient(f"{table} could not be compacted: {reason}", "Try again.") from error
        rewritten += done["rewritten_data_files_count"]
    return rewritten > 0

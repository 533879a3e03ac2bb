"""Named points at which a test can kill or freeze the process.

A process with THERMOCLINE_CRASH_AT=<point>[:<n>] kills itself with SIGKILL when it reaches that
point for the n-th time; with THERMOCLINE_FREEZE_AT it stops there until it gets SIGCONT. If
THERMOCLINE_CRASH_ONCE names a file, only the process that removes the file crashes, and not those
that repeat its work. Without these variables a point costs two dictionary lookups.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

_CRASH_VARIABLE = "THERMOCLINE_CRASH_AT"
_SIGNALS = {_CRASH_VARIABLE: signal.SIGKILL, "THERMOCLINE_FREEZE_AT": signal.SIGSTOP}
_reached: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Kill or freeze this process here, if an environment variable names this point."""
    for variable, act in _SIGNALS.items():
        setting = os.environ.get(variable)
        if not setting:
            continue
        point, _, nth = setting.partition(":")
        if point == name:
            _reached[variable] += 1
            if _reached[variable] == int(nth or 1) and _claim_crash():
                os.kill(os.getpid(), act)


def _claim_crash() -> bool:
    once = os.environ.get("THERMOCLINE_CRASH_ONCE")
    if not once:
        return True
    try:
        Path(once).unlink()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def crash_when_written(name: str, location: str) -> Iterator[None]:
    """Kill this process as soon as a data file appears in a table's folder, before its commit."""
    point = os.environ.get(_CRASH_VARIABLE, "").partition(":")[0]
    if point != name:
        yield
        return
    folder = Path(unquote(urlsplit(location).path)) / "data"
    before = set(folder.rglob("*.parquet"))
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            if any(p.stat().st_size for p in folder.rglob("*.parquet") if p not in before):
                crash_point(name)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()

"""Named points at which a test may end the process the hard way.

Exactly-once is only worth what it survives. A process that is started with
THERMOCLINE_CRASH_AT=<point>[:<n>] kills itself with SIGKILL when it reaches that point for the
n-th time; with THERMOCLINE_FREEZE_AT it stops there until it gets SIGCONT. Where
THERMOCLINE_CRASH_ONCE names a file, only the process that takes it away is hit, and not those that
do its work again. Otherwise a point costs two look-ups in a dictionary.
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
    """End or freeze this process here if it was asked to."""
    for variable, act in _SIGNALS.items():
        wanted = os.environ.get(variable)
        if not wanted:
            continue
        point, _, nth = wanted.partition(":")
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
    """End this process as soon as a data file appears in a table's folder, before its commit."""
    wanted = os.environ.get(_CRASH_VARIABLE, "").partition(":")
    if wanted[0] != name:
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

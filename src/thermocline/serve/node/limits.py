"""What a node process may do to the machine, whatever the SQL inside it tries.

DuckDB's own limits are the first wall; these are the operating system's. They are set before
anything is loaded that could want more, and cannot be raised again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import threading
from collections.abc import Mapping
from pathlib import Path

from thermocline.errors import ConfigError

ENVIRONMENT = frozenset(
    {
        "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH",
        "PYTHONHOME", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH",
        "__CF_USER_TEXT_ENCODING",
    }
)  # fmt: skip
"""All that a node may know of its environment: none of these is a secret."""

LARGEST_FILE = 16 << 20
OPEN_FILES = 512
RESERVED_BYTES = 512 << 20
"""Memory beyond the budget that is reserved rather than used: stacks, what allocators keep."""
HEADROOM = 128 << 20
"""With less than this left to reserve, threads can no longer be started."""

BULK_NICE = 4
"""How much less of the processor bulk work gets than queries, in the words of `nice`."""

_RESIDENT, _DATA = 1, 5  # columns of /proc/self/statm
_SET_DUMPABLE = 4
_SET_NO_NEW_PRIVILEGES = 38


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse to start where a query could find something to tell: names only, never values."""
    others = sorted(set(environment) - ENVIRONMENT)
    if others:
        raise ConfigError(
            f"A node's environment may hold no {', '.join(others)[:300]}.",
            f"Start it with nothing but {', '.join(sorted(ENVIRONMENT))}.",
        )


def confine(memory: int) -> None:
    """Limit this process for good: memory, files, no core dump, no new privileges."""
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_FSIZE, LARGEST_FILE)
    _set_limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _set_limit(resource.RLIMIT_DATA, _read_statm(_DATA) + memory + RESERVED_BYTES)
    _set_limit(resource.RLIMIT_AS, 2 * memory + (8 << 30))
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        system = ctypes.CDLL(None)
        # Not dumpable: others of the same user can neither trace it nor read its memory.
        system.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        system.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def lower_priority() -> None:
    """Have the thread that calls this run after all others of this machine that want to run."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only: elsewhere it is a process'
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + BULK_NICE)


class MemoryPressure:
    """Whether memory is short: really, or as far as the operating system lets us reserve it.

    Allocators give pages back but keep the addresses, which count as reserved: a query that
    reserves all there is can leave the process with nothing to reserve, though it uses little.
    """

    def __init__(self, memory: int) -> None:
        self._high = max(memory, _read_statm(_RESIDENT) + memory // 2 + HEADROOM)
        self._most = resource.getrlimit(resource.RLIMIT_DATA)[0] - HEADROOM

    def __call__(self) -> bool:
        """Whether it is short now."""
        return _read_statm(_RESIDENT) > self._high or _read_statm(_DATA) > self._most


def _set_limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def _read_statm(which: int) -> int:
    """What this process has of one kind of memory, in bytes; 0 where that is not told."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[which])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0

"""Limits of the operating system for a node process.

DuckDB's own limits are the first barrier, these are the second. They are set before anything large
is loaded, and cannot be raised again.
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
"""The environment variables that a node may have: none of these is a secret."""

LARGEST_FILE = 16 << 20
OPEN_FILES = 512
RESERVED_BYTES = 512 << 20
"""Memory above the budget that is reserved but not used: stacks, free pages of allocators."""
HEADROOM = 128 << 20
"""With less than this left, threads can no longer be started."""

BULK_NICE = 4
"""The nice value of bulk work, relative to queries."""

_RESIDENT, _DATA = 1, 5  # columns of /proc/self/statm
_SET_DUMPABLE = 4
_SET_NO_NEW_PRIVILEGES = 38


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse to start with other variables, which a query could reveal.

    Report names, not values.
    """
    others = sorted(set(environment) - ENVIRONMENT)
    if others:
        raise ConfigError(
            f"A node's environment must not have {', '.join(others)[:300]}.",
            f"Start it with nothing but {', '.join(sorted(ENVIRONMENT))}.",
        )


def confine(memory: int) -> None:
    """Limit this process permanently: memory, files, no core dump, no new privileges."""
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_FSIZE, LARGEST_FILE)
    _set_limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _set_limit(resource.RLIMIT_DATA, _read_statm(_DATA) + memory + RESERVED_BYTES)
    _set_limit(resource.RLIMIT_AS, 2 * memory + (8 << 30))
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        system = ctypes.CDLL(None)
        # Not dumpable: other processes of the user can neither trace it nor read its memory.
        system.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        system.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def lower_priority() -> None:
    """Lower the priority of the calling thread."""
    with contextlib.suppress(
        OSError, AttributeError
    ):  # Linux only: elsewhere the nice value is per process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + BULK_NICE)


class MemoryPressure:
    """Whether memory is short: resident memory, or what the operating system lets us reserve.

    Allocators return pages but keep the addresses, which count as reserved: after a query that
    reserved everything, the process may be unable to reserve more, though it uses little.
    """

    def __init__(self, memory: int) -> None:
        self._high = max(memory, _read_statm(_RESIDENT) + memory // 2 + HEADROOM)
        self._max_data = resource.getrlimit(resource.RLIMIT_DATA)[0] - HEADROOM

    def __call__(self) -> bool:
        """Return whether it is short now."""
        return _read_statm(_RESIDENT) > self._high or _read_statm(_DATA) > self._max_data


def _set_limit(what: int, limit: int) -> None:
    _, hard = resource.getrlimit(what)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(what, (limit, limit))


def _read_statm(which: int) -> int:
    """Return one field of this process's memory in bytes; 0 where the system has no such file."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[which])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0

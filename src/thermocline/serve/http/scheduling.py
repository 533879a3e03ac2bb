"""Short time slices for the router, so that it need not wait for the long ones of nodes.

Linux lets a running thread continue for some milliseconds before the next one, but a thread with a
shorter time slice preempts it at once. A cached result takes less than a millisecond to return:
beside busy nodes it would mostly wait. Unlike a nice value, this changes no share of the processor.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, for which Python has no name."""
ATTRIBUTES = "=IIQiIQQQ"
"""Its argument: size, policy, flags, nice, priority, nanoseconds of a slice, two unused fields."""
RESET_ON_FORK = 1
SLICE_NANOSECONDS = 100_000
"""The shortest time slice that Linux has."""


def shorten_time_slices() -> None:
    """Request short time slices for this thread, not for threads and processes that it starts.

    Has no effect on systems other than Linux 6.12 and later, or without permission.
    """
    number = SCHED_SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return
    size, nice = struct.calcsize(ATTRIBUTES), os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack(
        ATTRIBUTES, size, os.SCHED_OTHER, RESET_ON_FORK, nice, 0, SLICE_NANOSECONDS, 0, 0
    )
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)

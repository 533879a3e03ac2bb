"""Short turns on the processor, so that the router need not wait for the long ones of nodes.

Linux lets a thread that runs go on for some milliseconds before the next has its turn, but lets one
in at once that has asked for shorter turns than that. A kept answer takes less than a millisecond:
beside nodes that count it would mostly wait. Unlike with a nice value, nobody gets less of the
processor in all.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, for which Python has no name."""
ATTRIBUTES = "=IIQiIQQQ"
"""Its argument: size, policy, flags, nice, priority, nanoseconds of a turn, and two unused here."""
RESET_ON_FORK = 1
TURN_NANOSECONDS = 100_000
"""The shortest turns that Linux knows."""


def take_short_turns() -> None:
    """Ask for short turns for this thread, and not for what it starts.

    It changes nothing where the system is no Linux, is one before 6.12, or does not allow it.
    """
    number = SCHED_SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return
    size, nice = struct.calcsize(ATTRIBUTES), os.getpriority(os.PRIO_PROCESS, 0)
    asked = struct.pack(
        ATTRIBUTES, size, os.SCHED_OTHER, RESET_ON_FORK, nice, 0, TURN_NANOSECONDS, 0, 0
    )
    ctypes.CDLL(None).syscall(number, 0, asked, 0)

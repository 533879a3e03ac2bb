"""The router requests short time slices for its own thread only; checked with the kernel."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from thermocline.serve.http.scheduling import ATTRIBUTES, SLICE_NANOSECONDS, shorten_time_slices

T = TypeVar("T")
SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
KERNEL = tuple(int(part) for part in platform.release().split(".")[:2] if part.isdigit())
knows_turns = pytest.mark.skipif(
    platform.system() != "Linux" or KERNEL < (6, 12) or platform.machine() not in SCHED_GETATTR,
    reason="a thread has turns of its own from Linux 6.12 on",
)
TOLD_BY_CHILD = "from tests.unit.serve.test_scheduling import _turn; print(_turn())"


def _turn() -> int:
    """The length of this thread's turns in nanoseconds."""
    size = struct.calcsize(ATTRIBUTES)
    told = ctypes.create_string_buffer(size)
    assert ctypes.CDLL(None).syscall(SCHED_GETATTR[platform.machine()], 0, told, size, 0) == 0
    return int(struct.unpack(ATTRIBUTES, told.raw)[5])


def _in_a_thread(work: Callable[[], T]) -> T:
    """Done by a thread that ends, so that the others stay as they are."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@knows_turns
def test_time_slices_are_short_and_the_nice_value_stays() -> None:
    def asked() -> tuple[int, int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 4)
        shorten_time_slices()
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return _turn(), own, os.sched_getscheduler(0)

    assert _in_a_thread(asked) == (SLICE_NANOSECONDS, 4, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK)


@knows_turns
def test_what_it_starts_has_turns_like_everybody() -> None:
    usual = _in_a_thread(_turn)
    assert usual > SLICE_NANOSECONDS

    def started() -> tuple[int, int]:
        shorten_time_slices()
        child = subprocess.run(
            [sys.executable, "-c", TOLD_BY_CHILD], capture_output=True, check=True, text=True
        )
        return _in_a_thread(_turn), int(child.stdout)

    assert _in_a_thread(started) == (usual, usual)


def test_it_asks_for_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("the system was called"))
    shorten_time_slices()

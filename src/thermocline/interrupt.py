"""End a command on a signal, at any moment, together with every process it started.

A commit lands whole or not at all, whatever is killed and whenever. So SIGINT, SIGTERM and SIGHUP
end the command at once: nothing unwinds, engines receive no further calls, and no library sees
an unexpected exception. A separate thread handles signals, because the main thread may be inside
a library call for a long time. Work that runs until it is interrupted, such as a stream, is first
asked to finish.

Child processes are started here, each in a process group that a terminal's Ctrl-C does not reach.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import subprocess

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FINISH_SECONDS = 1.2
"""How many seconds work may still take after it was asked to finish."""
CHILD_SECONDS = 0.8
"""How many seconds child processes have to end after SIGTERM."""
EXIT_SECONDS = 10.0
"""The same when no signal came: a JVM removes its temporary files."""


class ChildProcess(Protocol):
    """A child process that leads a process group."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...


Finish = Callable[[int], None]
"""Asks the current work to finish; receives the number of the signal."""

_children: list[ChildProcess] = []
_start_lock = threading.RLock()
_ending = threading.Event()
_installed = False
_leads_groups = True
_finish: Finish | None = None
_finish_seconds = FINISH_SECONDS
_cut_exit_code: int | None = None
_first_signal = 0
"""The first signal received."""
_last_signal_at = -1.0
_SAME_SIGNAL_SECONDS = 0.3
"""Signals this close together count as one: a terminal and a parent may both send it."""


def install() -> None:
    """Let signals end this process and all its children from now on.

    A signal that is ignored stays ignored: `nohup` and background jobs of a shell rely on that.
    """
    global _installed
    if _installed:
        return
    _installed = True
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    atexit.register(_end_at_exit)  # the first function registered is called last
    threading.Thread(target=_watch_signals, args=[reading], name="signals", daemon=True).start()
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, lambda *_: None)


def confirm_exit(code: int) -> int:
    """Return the exit code of a finished command; block while a signal is ending the process."""
    while _ending.is_set():
        time.sleep(60)
    return code


def signal_exit_code() -> int:
    """Return the exit code of a command that a signal made finish early, or 0 without a signal."""
    return 128 + _first_signal if _first_signal else 0


def handle_signal(number: int) -> None:
    """Act on a signal: ask the current work to finish, or end the process."""
    global _first_signal, _last_signal_at
    now = time.monotonic()
    if not _installed or now - _last_signal_at < _SAME_SIGNAL_SECONDS:
        return
    _last_signal_at, again, _first_signal = now, bool(_first_signal), _first_signal or number
    finish = _finish
    if finish is None or again:
        _end_process(128 + number)
        return
    code = 128 + number if _cut_exit_code is None else _cut_exit_code
    timer = threading.Timer(_finish_seconds, _end_process, [code])
    timer.daemon = True
    timer.start()
    finish(number)


@contextmanager
def finish_on_signal(
    finish: Finish, *, seconds: float = FINISH_SECONDS, code: int | None = None
) -> Iterator[None]:
    """Ask the work of this block to finish when a signal comes, instead of ending at once.

    Work that still runs after `seconds`, or at a second signal, is ended; the exit code is then
    `code`, or that of the signal.
    """
    global _finish, _finish_seconds, _cut_exit_code
    before = _finish, _finish_seconds, _cut_exit_code
    _finish, _finish_seconds, _cut_exit_code = finish, seconds, code
    try:
        yield
    finally:
        _finish, _finish_seconds, _cut_exit_code = before


@contextmanager
def stop_on_signal(code: int | None = None) -> Iterator[Event]:
    """Yield an event that a signal sets: the current batch is the last one.

    A batch that takes longer than `FINISH_SECONDS` is cut off; the next call takes it again.
    """
    stop = Event()

    def finish(number: int) -> None:
        stop.set()
        _write_error(f"{signal.Signals(number).name}: ending after the current batch.")

    with finish_on_signal(finish, code=code):
        yield stop


@contextmanager
def raise_on_signal(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt in this block on a signal, so that it can clean up servers."""
    if not _installed:
        yield
        return
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, _raise_interrupt)
    try:
        with finish_on_signal(lambda _: None, seconds=seconds):
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def start_child(command: Any, **options: Any) -> subprocess.Popen[Any]:
    """Start a child process that ends with this process at the latest."""
    import subprocess

    with _start_lock:
        if _leads_groups and not options.get("start_new_session"):
            options["process_group"] = 0
        process: subprocess.Popen[Any] = subprocess.Popen(command, **options)
        if _leads_groups:
            adopt_child(process)
    return process


def adopt_child(process: ChildProcess) -> None:
    """End this child, which leads a process group, together with this process."""
    with _start_lock:
        _children[:] = [each for each in _children if _is_running(each)]
        _children.append(process)


def join_parent_group() -> None:
    """Start children in this process's own group, so that they end with that group.

    For a process that another Thermocline process started.
    """
    global _leads_groups
    _leads_groups = False


def kill_child(process: subprocess.Popen[Any]) -> None:
    """Kill a child process and everything it started, at once."""
    _signal_child(process, signal.SIGKILL)
    process.wait()


def _watch_signals(reading: int) -> None:
    while True:
        for number in os.read(reading, 64):
            if number in SIGNALS:
                handle_signal(number)


def _end_at_exit() -> None:
    """End the children at a normal exit, and ignore signals while Python shuts down."""
    _end_children(CHILD_SECONDS if _first_signal else EXIT_SECONDS)
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _end_process(code: int) -> None:
    """End the process. Never returns."""
    if _ending.is_set():
        time.sleep(60)
    _ending.set()
    _write_error("Interrupted.")
    # Errors of the main thread from here on are consequences of the end: discard its output.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    # Wait for a child that is being started. The lock is never released: no other can start.
    _start_lock.acquire(timeout=CHILD_SECONDS)
    _end_children(CHILD_SECONDS)
    os._exit(code)


def _end_children(seconds: float) -> None:
    children = [each for each in list(_children) if _is_running(each)]
    for each in children:
        _signal_child(each, signal.SIGTERM)
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(map(_is_running, children)):
        time.sleep(0.02)
    for each in children:
        _signal_child(each, signal.SIGKILL)


def _is_running(process: ChildProcess) -> bool:
    poll = getattr(process, "poll", None)
    return (process.returncode if poll is None else poll()) is None


def _signal_child(process: ChildProcess, number: int) -> None:
    """Send a signal to the group of a child: processes that it started may outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if _leads_groups:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)


def _write_error(text: str) -> None:
    """Write to standard error from any thread, and show the cursor of a terminal again."""
    shown = "\x1b[?25h\n" if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{shown}{text}\n".encode())

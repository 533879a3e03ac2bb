"""How the command ends when it is interrupted, at any moment, with every process it started.

A commit lands whole or not at all, whatever is killed and whenever. So SIGINT, SIGTERM and SIGHUP
end the command at once: nothing unwinds, no engine is asked for anything more, and no library sees
an exception where it expects none. A thread of its own does it, because the main thread may be in a
library for long. What runs until it is interrupted, such as a stream, is first asked to finish.

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
PATIENCE = 1.2
"""How many seconds what is asked to finish may still take."""
CHILD_SECONDS = 0.8
"""How many seconds child processes have for their own end."""
QUIET_SECONDS = 10.0
"""The same when no signal came: a JVM removes its temporary files."""


class Running(Protocol):
    """A child process that leads a process group."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...


Finish = Callable[[int], None]
"""Asks the work in hand to finish, when this signal came."""

_children: list[Running] = []
_starting = threading.RLock()
_ending = threading.Event()
_installed = False
_leads = True
_finish: Finish | None = None
_patience = PATIENCE
_code_when_cut: int | None = None
_first = 0
"""The first signal that came."""
_last = -1.0
_AT_ONCE = 0.3
"""Signals this close to each other are one: a terminal and a parent may both send it."""


def install() -> None:
    """Have signals end this process, and every child of it, from now on.

    A signal that is ignored stays so: `nohup` and the shell's background jobs ask for that.
    """
    global _installed
    if _installed:
        return
    _installed = True
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    atexit.register(_leave)  # the first that is registered is the last that is called
    threading.Thread(target=_watch, args=[reading], name="signals", daemon=True).start()
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, lambda *_: None)


def leave(code: int) -> int:
    """Return the exit code of a command that is done, unless the process is being ended."""
    while _ending.is_set():
        time.sleep(60)
    return code


def exit_code() -> int:
    """Return the exit code of a command that finished early because of a signal, else 0."""
    return 128 + _first if _first else 0


def heard(number: int) -> None:
    """Act on a signal: ask the work in hand to finish, or end the process."""
    global _first, _last
    now = time.monotonic()
    if not _installed or now - _last < _AT_ONCE:
        return
    _last, again, _first = now, bool(_first), _first or number
    finish = _finish
    if finish is None or again:
        _end(128 + number)
        return
    code = 128 + number if _code_when_cut is None else _code_when_cut
    timer = threading.Timer(_patience, _end, [code])
    timer.daemon = True
    timer.start()
    finish(number)


@contextmanager
def finishing(
    finish: Finish, *, patience: float = PATIENCE, code: int | None = None
) -> Iterator[None]:
    """Ask the work of this block to finish when a signal comes, instead of ending at once.

    What still runs after `patience` seconds, or at a second signal, is ended; the exit code is then
    `code`, or that of the signal.
    """
    global _finish, _patience, _code_when_cut
    before = _finish, _patience, _code_when_cut
    _finish, _patience, _code_when_cut = finish, patience, code
    try:
        yield
    finally:
        _finish, _patience, _code_when_cut = before


@contextmanager
def until_interrupted(code: int | None = None) -> Iterator[Event]:
    """Yield an event that a signal sets: the batch in hand is the last one.

    A batch that takes longer than `PATIENCE` is cut off, and taken again by the next call.
    """
    stop = Event()

    def finish(number: int) -> None:
        stop.set()
        _say(f"{signal.Signals(number).name}: ending after the batch in hand.")

    with finishing(finish, code=code):
        yield stop


@contextmanager
def unwinding(patience: float) -> Iterator[None]:
    """Raise KeyboardInterrupt in this block when a signal comes: it has servers to tidy up."""
    if not _installed:
        yield
        return
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, _raise)
    try:
        with finishing(lambda _: None, patience=patience):
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def start(command: Any, **options: Any) -> subprocess.Popen[Any]:
    """Start a child process. It is ended with this one, if it has not ended before."""
    import subprocess

    with _starting:
        if _leads and not options.get("start_new_session"):
            options["process_group"] = 0
        process: subprocess.Popen[Any] = subprocess.Popen(command, **options)
        if _leads:
            adopt(process)
    return process


def adopt(process: Running) -> None:
    """End this child, which leads a process group, with this process."""
    with _starting:
        _children[:] = [each for each in _children if _runs(each)]
        _children.append(process)


def follow() -> None:
    """Start children in this process's own group, with which they are ended.

    For a process that another one of ours started.
    """
    global _leads
    _leads = False


def end_child(process: subprocess.Popen[Any]) -> None:
    """End a child process and what it started, at once."""
    _signal(process, signal.SIGKILL)
    process.wait()


def _watch(reading: int) -> None:
    while True:
        for number in os.read(reading, 64):
            if number in SIGNALS:
                heard(number)


def _leave() -> None:
    """See the children to their end; after that Python itself ends, where a signal would kill."""
    _end_children(CHILD_SECONDS if _first else QUIET_SECONDS)
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _raise(*_: Any) -> None:
    raise KeyboardInterrupt


def _end(code: int) -> None:
    """End the process. Never returns."""
    if _ending.is_set():
        time.sleep(60)
    _ending.set()
    _say("Interrupted.")
    # Whatever the main thread meets from now on is a consequence, and no news.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    # One may be about to be started. Afterwards none can be: this is never released.
    _starting.acquire(timeout=CHILD_SECONDS)
    _end_children(CHILD_SECONDS)
    os._exit(code)


def _end_children(seconds: float) -> None:
    children = [each for each in list(_children) if _runs(each)]
    for each in children:
        _signal(each, signal.SIGTERM)
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(map(_runs, children)):
        time.sleep(0.02)
    for each in children:
        _signal(each, signal.SIGKILL)


def _runs(process: Running) -> bool:
    poll = getattr(process, "poll", None)
    return (process.returncode if poll is None else poll()) is None


def _signal(process: Running, number: int) -> None:
    """Send a signal to the group of a child: what it started may outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if _leads:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)


def _say(text: str) -> None:
    """Write to standard error, whatever the main thread is at; show the cursor of a terminal."""
    shown = "\x1b[?25h\n" if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{shown}{text}\n".encode())

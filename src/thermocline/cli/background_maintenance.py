"""The maintenance service beside a command that runs for long: `serve`, `stream`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING

from thermocline.config import private_files, quantities
from thermocline.interrupt import kill_child, start_child
from thermocline.telemetry import log

if TYPE_CHECKING:
    from thermocline.config import Settings

START_SECONDS = 5.0
"""A command that ends before this starts no service."""
STABLE_SECONDS = 600.0
"""A service that ran for so long is started again at once."""
MAX_RESTART_SECONDS = 300.0
NICE = 19
LOG = "maintain.log"


@contextmanager
def maintain_in_background(settings: Settings) -> Iterator[None]:
    """Maintain the project's tables in a process of lowest priority while the block runs.

    It is started again when it dies. Its log is `.thermocline/maintain.log`. Does nothing where the
    setting `maintain.service` says so.
    """
    if not is_wanted(settings):
        yield
        return
    stop = Event()
    supervisor = Thread(target=_supervise, args=[settings, stop], name="maintenance", daemon=True)
    supervisor.start()
    try:
        yield
    finally:
        stop.set()
        supervisor.join()


def is_wanted(settings: Settings) -> bool:
    """Whether long-running commands of a project maintain its tables."""
    service = settings.maintain.service
    return service == "on" or (service == "auto" and settings.catalog.type == "sqlite")


def _supervise(settings: Settings, stop: Event) -> None:
    first = pause = min(START_SECONDS, quantities.parse_duration(settings.maintain.every))
    while not stop.wait(pause):
        began = time.monotonic()
        try:
            process = _start(settings)
        except OSError as error:  # a project that cannot be written to, or no process to be had
            pause = MAX_RESTART_SECONDS
            log("maintain", "service not started", level="WARNING", error=str(error))
            continue
        while process.poll() is None and not stop.wait(0.2):
            pass
        if stop.is_set():
            kill_child(process)
            return
        stable = time.monotonic() - began > STABLE_SECONDS
        pause = first if stable else min(MAX_RESTART_SECONDS, 2 * pause)
        log("maintain", "service ended", level="WARNING", code=process.returncode, restart=pause)


def _start(settings: Settings) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "thermocline.maintain", str(settings.project)]
    if settings.profile:
        command += ["--profile", settings.profile]
    with private_files.ensure_log(settings.project, LOG).open("ab") as errors:
        process = start_child(
            command,
            stdin=subprocess.PIPE,  # its end tells the service that this process died
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    return process

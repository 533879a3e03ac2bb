"""The process that is tortured: `thermo stream`, as a user starts it, with its JVM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from thermocline import interrupt

THERMO = "import sys; from thermocline.__main__ import main; sys.exit(main())"
STEP = 0.05
START_SECONDS = 90.0
"""How long the first batch may take: a JVM starts, and the machine may be busy."""
QUIET_SECONDS = 15.0
"""After so long without a batch none is expected. The first ones are slow: the JVM is cold."""


class Worker:
    """One life of the process, from its start to its end."""

    def __init__(self, arguments: Sequence[str], log: Path, crash_at: str = "") -> None:
        environment = {**os.environ, "THERMOCLINE_CRASH_AT": crash_at}
        # A JVM that lives for seconds gains nothing from compiling well.
        environment.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        self._log = log
        with log.open("ab") as errors:
            self._process = interrupt.start_child(
                [sys.executable, "-c", THERMO, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.batches = 0
        self._last_batch: float | None = None
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Count the batches it reports, a JSON line each, and keep what it says last."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self.said = line.decode(errors="replace").strip()
                landed = "rows" in json.loads(self.said)
            except ValueError:
                continue
            if landed:
                self.batches += 1
                self._last_batch = time.monotonic()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """How it ended."""
        return self._process.poll()

    def wait_for(self, batches: int) -> bool:
        """Wait until it has landed so many batches, or lands no more; whether it still runs."""
        began = time.monotonic()
        while self.running and self.batches < batches:
            last = self._last_batch
            patience = START_SECONDS if last is None else QUIET_SECONDS
            if time.monotonic() - max(last or began, began) > patience:
                break
            time.sleep(STEP)
        return self.running

    def wait(self, seconds: float) -> None:
        """Wait for its end, but not for ever."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill_python(self) -> None:
        """End the process and leave its JVM to itself."""
        self._process.kill()

    def kill_jvm(self) -> None:
        """End the JVM and leave the process to itself."""
        for process in _processes():
            if process.session == self._process.pid != process.pid:
                _signal(process.pid)

    def kill_reader(self) -> bool:
        """End the process that reads a source for it; whether there was one.

        It has a session of its own, and ends by itself when its parent does.
        """
        found = [p for p in _processes() if p.parent == self._process.pid != p.session]
        for process in found:
            _signal(process.pid)
        return bool(found)

    def kill(self) -> None:
        """End the process and its JVM at once. Who reads a source for it follows by itself."""
        for process in _processes():
            if process.session == self._process.pid:
                _signal(process.pid)
        self._process.wait()
        self._reader.join(5)

    def ask_to_end(self) -> None:
        """Ask it to end after the batch in hand."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int


def _processes() -> Iterator[_Process]:
    """What runs on this machine, where the system lists it."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The command's name, in brackets, may hold spaces; what follows it does not.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        yield _Process(int(folder.name), int(fields[1]), int(fields[3]))


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

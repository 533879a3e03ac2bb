"""The tortured process: `thermo stream` with its JVM, started as a user starts it."""

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
"""Maximum seconds for the first batch: a JVM starts, and the machine may be busy."""
QUIET_SECONDS = 15.0
"""Seconds without a batch after which none is expected. The cold JVM is slow at first."""


class StreamProcess:
    """One run of the process, from start to end."""

    def __init__(self, arguments: Sequence[str], log: Path, crash_at: str = "") -> None:
        environment = {**os.environ, "THERMOCLINE_CRASH_AT": crash_at}
        # A JVM that runs for seconds does not benefit from optimizing compilers.
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
        self.last_line = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Count the reported batches, one JSON line each, and keep the last line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self.last_line = line.decode(errors="replace").strip()
                has_landed = "rows" in json.loads(self.last_line)
            except ValueError:
                continue
            if has_landed:
                self.batches += 1
                self._last_batch = time.monotonic()

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    def wait_for(self, batches: int) -> bool:
        """Wait for a number of batches or a quiet time; return whether the process still runs."""
        start = time.monotonic()
        while self.is_running and self.batches < batches:
            last = self._last_batch
            limit = START_SECONDS if last is None else QUIET_SECONDS
            if time.monotonic() - max(last or start, start) > limit:
                break
            time.sleep(STEP)
        return self.is_running

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process, up to a timeout."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill_python(self) -> None:
        """Kill the process without its JVM."""
        self._process.kill()

    def kill_jvm(self) -> None:
        """Kill the JVM without the process."""
        for process in _list_processes():
            if process.session == self._process.pid != process.pid:
                _kill(process.pid)

    def kill_reader(self) -> bool:
        """Kill the child process that reads a source; return whether there was one.

        It has a session of its own, and ends by itself when its parent does.
        """
        found = [p for p in _list_processes() if p.parent == self._process.pid != p.session]
        for process in found:
            _kill(process.pid)
        return bool(found)

    def kill(self) -> None:
        """Kill the process and its JVM at once. The reader of a source ends by itself."""
        for process in _list_processes():
            if process.session == self._process.pid:
                _kill(process.pid)
        self._process.wait()
        self._reader.join(5)

    def request_stop(self) -> None:
        """Request an end after the current batch."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)


class _ProcessEntry(NamedTuple):
    pid: int
    parent: int
    session: int


def _list_processes() -> Iterator[_ProcessEntry]:
    """Yield the processes of this machine, if the system lists them."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The command's name, in parentheses, may contain spaces; the later fields do not.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        yield _ProcessEntry(int(folder.name), int(fields[1]), int(fields[3]))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

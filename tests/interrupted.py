"""A command as a process of its own that is interrupted at a moment, and what was left of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

MOST_SECONDS = 3.0
"""So soon nothing may be left, however the command was interrupted."""
_MARK = "INTERRUPTED_TRIAL"
_CAUGHT = 1 << (signal.SIGTERM - 1)

When = Callable[["Process"], bool]


@dataclass(frozen=True)
class Ended:
    """How a command ended. `running` is false when it had ended before the signal came."""

    code: int | None
    seconds: float
    left: tuple[str, ...]
    said: str
    printed: str
    running: bool

    def flaw(self, number: int, clean: int | None = None) -> str | None:
        """What is wrong with this end; `clean` is the code that the command documents for it."""
        expected = {0} if not self.running else {128 + number, clean}
        # It may have had its result, and have been on its way out, when the signal came.
        if self.code not in expected and not (self.code == 0 and self.printed):
            return f"exit code {self.code}"
        if self.left:
            return f"left after {MOST_SECONDS} s: {', '.join(self.left)}"
        if any(word in self.said for word in ("bug", "Traceback", "Py4J", "KeyboardInterrupt")):
            return f"said {self.said[:300]}"
        return None


class Process:
    """A running `thermo`, in a session of its own as in a terminal."""

    def __init__(
        self, arguments: Sequence[str | Path], environ: Mapping[str, str], folder: Path
    ) -> None:
        self.mark = uuid4().hex
        self.began = time.monotonic()
        self._said, self._printed = folder / "said", folder / "printed"
        with self._said.open("wb") as said, self._printed.open("wb") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "thermocline", *arguments],
                env={**environ, _MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=said,
                start_new_session=True,
                # What a shell starts in the background ignores Ctrl-C, and so would this.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        # Before its first line has run, Python itself decides what a signal does.
        self.wait_until(lambda _: self._ready())

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.began

    def wait_until(self, when: When, seconds: float = 120) -> None:
        """Wait for a condition, or for the end of the process."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and not when(self):
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"That moment never came:\n{self._said.read_text()}")
            time.sleep(0.02)

    def printed(self) -> str:
        """What it has printed as its result."""
        return self._printed.read_text(errors="replace")

    def commands(self) -> list[str]:
        """The command lines of its processes, itself left out."""
        return [f"{pid} {line}" for pid, line in self.family() if pid != self.process.pid]

    def family(self) -> list[tuple[int, str]]:
        """All of its processes: of its session, below it, or with its mark in the environment."""
        found, parents = {self.process.pid}, dict[int, int]()
        lines: dict[int, str] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                pid, parents[int(folder.name)] = int(folder.name), int(fields[1])
                if fields[0] == "Z":
                    continue
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                lines[pid] = words.decode(errors="replace")[:160]
                marked = self.mark.encode() in (folder / "environ").read_bytes()
                if int(fields[3]) == self.process.pid or marked:
                    found.add(pid)
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return [(pid, lines[pid]) for pid in sorted(found & set(lines))]

    def interrupt(self, way: str, number: int = signal.SIGINT, again: float | None = None) -> Ended:
        """Send the signal to the process or to its group; see it end, and what stays."""
        running = self.process.poll() is None
        before = self.family()
        at = time.monotonic()
        for pause in (0.0, *([] if again is None else [again])):
            time.sleep(pause)
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if way == "group" else os.kill)(self.process.pid, number)
        while self._remains(before) and time.monotonic() - at < MOST_SECONDS:
            self.process.poll()
            time.sleep(0.02)
        seconds, left = time.monotonic() - at, self._remains(before)
        self.kill()
        return Ended(
            self.process.returncode if not left else None, seconds, tuple(left),
            self._said.read_text(errors="replace"), self.printed(), running,
        )  # fmt: skip

    def kill(self) -> None:
        """End what is left."""
        for pid, _ in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _remains(self, before: Sequence[tuple[int, str]]) -> list[str]:
        """Its processes that still run, with those that have lost their parent meanwhile."""
        self.process.poll()
        now = dict(self.family())
        for pid, line in before:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                if words and words.decode(errors="replace")[:160] == line:
                    now[pid] = line
        return [f"{pid} {line}" for pid, line in now.items()]

    def _ready(self) -> bool:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
            return bool(int(caught.split()[1], 16) & _CAUGHT)
        return False


@contextlib.contextmanager
def started(
    arguments: Sequence[str | Path], environ: Mapping[str, str], folder: Path
) -> Iterator[Process]:
    """A command for the time of the block. Nothing of it is left afterwards."""
    process = Process(arguments, environ, folder)
    try:
        yield process
    finally:
        process.kill()

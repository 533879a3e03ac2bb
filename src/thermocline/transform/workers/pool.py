"""Worker processes of this machine, and a queue of pieces that feeds them.

There are never more writers than processes. A process that dies is replaced, and its piece is done
again. A piece that does not fit into its worker's memory is done once more by a single worker that
has the memory of all; what does not fit there either is told, and somebody else's.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from thermocline import interrupt, telemetry
from thermocline.errors import Permanent, ThermoclineError, Transient
from thermocline.transform.duck.session import Unable
from thermocline.transform.workers.work_unit import Done, Piece
from thermocline.transform.workers.worker import OutOfMemory

if TYPE_CHECKING:
    from thermocline.config import Settings

MOST_DEATHS, MOST_TRIES = 20, 5
"""So often a piece may lose its worker, or meet a catalog that is away, before it is given up."""


class Remote(Permanent):
    """An error of a worker process, as it told it."""


@dataclass
class Tally:
    """How far the pieces are, in partitions; shared by all who work on them."""

    total: int
    done: int = 0
    failed: int = 0
    running: int = 0
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        waiting = self.total - self.done - self.failed - self.running
        parts = [f"{waiting:,} queued", f"{self.running:,} running", f"{self.done:,} done"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.done and waiting + self.running:
            left = (time.monotonic() - self.began) / self.done * (waiting + self.running)
            parts.append(f"about {left:,.0f} s left")
        return " · ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """A piece, and either what was done or why it was not."""

    piece: Piece
    done: Done | None = None
    error: ThermoclineError | None = None

    @property
    def beyond(self) -> bool:
        """Whether another engine may still do it."""
        return isinstance(self.error, Unable)

    @property
    def too_large(self) -> bool:
        """Whether a worker with more memory may do it."""
        return isinstance(self.error, OutOfMemory)


Watch = Callable[[Outcome | None, Tally], None]
"""Who is told whenever a piece begins (None) or ends."""


class Pool:
    """The workers that the settings give, kept from one step of a run to the next."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._crew: _Crew | None = None

    def work(
        self,
        pieces: Sequence[Piece],
        *,
        count: int | None = None,
        watch: Watch = lambda *_: None,
    ) -> list[Outcome]:
        """Do all pieces; says what came of each."""
        told = self._settings.workers
        count = min(count or told.processes, len(pieces)) or 1
        tally = Tally(sum(map(_size, pieces)))
        if self._crew is None:
            self._crew = _Crew(self._settings, told.bytes, 1)
        outcomes = self._crew.work(pieces, count, tally, watch)
        alone = [outcome.piece for outcome in outcomes if outcome.too_large]
        if not alone:
            return outcomes
        tally.failed -= sum(map(_size, alone))
        self.close()  # their memory is needed
        with closing(_Crew(self._settings, told.bytes * max(count, 2), count)) as single:
            again = single.work(alone, 1, tally, watch)
        return [outcome for outcome in outcomes if not outcome.too_large] + again

    def close(self) -> None:
        """Let the processes go."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None


def _size(piece: Piece) -> int:
    return len(piece.labels()) or 1


class _Crew:
    """Processes with so much memory each, and a thread for each of them that feeds it."""

    def __init__(self, settings: Settings, memory: int, threads: int) -> None:
        self._command = [
            *(sys.executable, "-m", "thermocline.transform.workers", str(settings.project)),
            *(("--profile", settings.profile) if settings.profile else ()),
            *("--memory", str(memory), "--threads", str(threads)),
        ]
        self._processes: list[_Process] = []
        self._lock = threading.Lock()

    def work(
        self, pieces: Iterable[Piece], count: int, tally: Tally, watch: Watch
    ) -> list[Outcome]:
        """Do the pieces in their order with so many processes."""
        while len(self._processes) < count:
            self._processes.append(_Process(self._command))
        waiting, outcomes = deque(pieces), list[Outcome]()

        def feed(process: _Process) -> None:
            while True:
                with self._lock:
                    if not waiting:
                        return
                    piece = waiting.popleft()
                    tally.running += _size(piece)
                    watch(None, tally)
                outcome = _tried(process, piece)
                with self._lock:
                    tally.running -= _size(piece)
                    tally.done += _size(piece) if outcome.done else 0
                    tally.failed += _size(piece) if outcome.error else 0
                    outcomes.append(outcome)
                    watch(outcome, tally)

        hands = [
            threading.Thread(target=feed, args=[process], daemon=True)
            for process in self._processes[:count]
        ]
        for hand in hands:
            hand.start()
        try:
            for hand in hands:
                while hand.is_alive():  # so that a person's Ctrl-C gets through
                    hand.join(0.2)
        except BaseException:
            waiting.clear()
            for process in self._processes:
                process.kill()
            raise
        return outcomes

    def close(self) -> None:
        """Let the processes go: each ends by itself when its input does."""
        for process in self._processes:
            process.end()


def _tried(process: _Process, piece: Piece) -> Outcome:
    """Have a piece done, again where that may help."""
    deaths = tries = 0
    while True:
        answer = process.ask(piece)
        if answer is None:
            deaths += 1
            if process.gave_up and deaths >= MOST_TRIES:
                return Outcome(piece, error=Remote(
                    f"No worker can be started: {process.last_words}",
                    "Try it by hand: thermo work.",
                ))  # fmt: skip
            if deaths < (2 if process.aborted else MOST_DEATHS):
                continue
            return Outcome(piece, error=OutOfMemory(
                f"{piece.table}: its worker died {deaths} times, {process.last_words}"
            ))  # fmt: skip
        tries += 1
        if "error" in answer and answer["error"]["transient"] and tries < MOST_TRIES:
            time.sleep(0.2 * tries)
            continue
        return outcome_of(piece, answer)


def outcome_of(piece: Piece, answer: dict[str, Any]) -> Outcome:
    """What a worker's answer says about a piece."""
    if "done" in answer:
        return Outcome(piece, Done(**answer["done"]))
    return Outcome(piece, error=told(answer["error"]))


def told(said: dict[str, Any]) -> ThermoclineError:
    """The error that a worker told of."""
    for known in (OutOfMemory, Unable):
        if said["code"] == known.code:
            return known(said["cause"], said["next_step"])
    kind = Transient if said["transient"] else Remote
    error = kind(said["cause"], said["next_step"], **said["details"])
    error.code = said["code"]
    return error


class _Process:
    """One worker process, started when it is first needed and again whenever it has died."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._running: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._stopped = False
        self.last_words = ""
        self.gave_up = False
        """It ended by itself."""
        self.aborted = False
        """A library ended it, as they do for want of memory."""

    def ask(self, piece: Piece) -> dict[str, Any] | None:
        """What the process answers to a piece; None when it died over it."""
        if self._stopped:
            return Permanent("The work was interrupted.", "Call it again to go on.").as_dict()
        if self._running is None:
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
            self._running = interrupt.start_child(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
            )
        process = self._running
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(piece.as_dict()) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line.endswith("\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = process.wait()
        self.gave_up = code >= 0
        self.aborted = code in {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
        self.last_words = f"by signal {-code}" if code < 0 else self._last_error(code)
        self._close()
        return None

    def _last_error(self, code: int) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        said = telemetry.redact(telemetry.one_line(lines[-1][:300])) if lines else ""
        return said or f"it ended with code {code}"

    def kill(self) -> None:
        """End the process now, whatever it is at."""
        self._stopped = True
        process = self._running
        if process is not None:
            process.kill()

    def end(self) -> None:
        """Let the process go: it ends by itself when its input does."""
        self._close()

    def _close(self) -> None:
        process, self._running = self._running, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    if stream is not None:
                        stream.close()
            process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

"""Sources that are read on and on: one loop, a beat for every look at a source.

A beat either landed a batch, found nothing new, or met trouble that may pass; then the source is
left alone for a while that grows. What does not pass is raised, and ends the stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.contract.definition import Contract
from thermocline.errors import ThermoclineError
from thermocline.ingest.feed import FeedIntake, Taken, open_feed
from thermocline.ingest.source import Limits, Source

if TYPE_CHECKING:
    from thermocline.lake import Lake

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Intake(Protocol):
    """A source on its way into its table."""

    source: Source

    def take(self) -> Taken | None:
        """Land one batch; None when nothing is new."""

    def close(self) -> None:
        """Let go of the source."""


@dataclass(frozen=True)
class Beat:
    """One look at one source, and what came of it.

    `taken` is the batch that landed. `trouble` is an error that may pass, to be tried again after
    `pause` seconds. `files` and `file_bytes` describe the table's data files after a batch;
    `ran` names the tables that were brought up to date with it.
    """

    source: str
    target: str
    seconds: float
    taken: Taken | None = None
    trouble: ThermoclineError | None = None
    pause: float = 0.0
    files: int = 0
    file_bytes: int = 0
    ran: tuple[str, ...] = ()
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def freshness(self) -> float | None:
        """How old the newest event of the batch was, in seconds, when it could be queried."""
        newest = self.taken.landed.newest if self.taken else None
        return None if newest is None else max(0.0, (self.at - newest).total_seconds())

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        said: dict[str, Any] = {
            "at": self.at,
            "source": self.source,
            "table": self.target,
            "seconds": round(self.seconds, 3),
        }
        if self.trouble is not None:
            return {**said, "trouble": self.trouble.cause, "retry_in": self.pause}
        if self.taken is None:
            return said
        landed = self.taken.landed
        return said | {
            "rows": self.taken.rows,
            "quarantined": self.taken.quarantined,
            "behind": self.taken.behind,
            "gaps": landed.gaps,
            "bytes": landed.bytes,
            "batch": self.taken.sequence,
            "snapshot": self.taken.snapshot,
            "freshness": None if self.freshness is None else round(self.freshness, 3),
            "oldest_event": landed.oldest,
            "newest_event": landed.newest,
            "files": self.files,
            "mean_file_bytes": self.file_bytes // self.files if self.files else 0,
            "ran": list(self.ran),
        }


def intake_of(
    lake: Lake,
    source: Source,
    contract: Contract,
    *,
    limits: Limits | None = None,
    accept_loss: bool = False,
) -> Intake:
    """The way of a source into its table, whatever its kind. Nothing is read yet."""
    if source.kind == "files":
        from thermocline.ingest.folder import FolderIntake

        return FolderIntake(lake, source, contract)
    feed = open_feed(lake, source, contract)
    return FeedIntake(lake, source, contract, feed, limits=limits, accept_loss=accept_loss)


def take_all(intake: Intake) -> Iterator[Taken]:
    """Land what a source has at this moment, batch by batch. What comes meanwhile may wait."""
    left: int | None = None
    while (taken := intake.take()) is not None:
        yield taken
        if left is None:
            left = taken.behind
        else:
            left -= taken.rows + taken.quarantined + taken.landed.gaps
        if left is not None and left <= 0:
            return


def beats(
    lake: Lake,
    intakes: Sequence[Intake],
    *,
    every: float,
    stop: Event,
    then: Callable[[], Sequence[str]] | None = None,
) -> Iterator[Beat]:
    """Look at sources in turn, each every so many seconds, until `stop` is set.

    A source that has more waiting is looked at again at once. `then` runs after each batch that
    landed, and once at first: a process that died may have landed one that it did not follow up.
    A batch that is under way when `stop` is set is finished.
    """
    follow = _FollowUp(then)
    turns = [_Turn(intake) for intake in intakes]
    while not stop.is_set():
        for turn in turns:
            if stop.is_set():
                return
            if turn.due <= time.monotonic():
                turn.looked = True
                # A model may read tables of several sources: each must have been made first.
                yield turn.beat(lake, every, follow, ready=all(each.looked for each in turns))
        stop.wait(max(0.0, min(turn.due for turn in turns) - time.monotonic()))


class _FollowUp:
    """What is run after a batch, and still owed while it has not succeeded."""

    def __init__(self, run: Callable[[], Sequence[str]] | None) -> None:
        self._run = run
        self._owed = True

    def after(self, *, landed: bool, ready: bool) -> tuple[str, ...]:
        """Run it if anything landed since it last succeeded; says what it brought up to date."""
        self._owed = self._owed or landed
        if self._run is None or not self._owed or not ready:
            return ()
        ran = tuple(self._run())
        self._owed = False
        return ran


class _Turn:
    """When a source is looked at next."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.due = 0.0
        self._pause = 0.0
        self.looked = False

    def beat(self, lake: Lake, every: float, follow: _FollowUp, *, ready: bool) -> Beat:
        """Look at the source now."""
        source = self.intake.source
        began = time.monotonic()
        taken: Taken | None = None
        ran: tuple[str, ...] = ()
        trouble: ThermoclineError | None = None
        try:
            taken = self.intake.take()
            ran = follow.after(landed=taken is not None, ready=ready)
        except ThermoclineError as error:
            if not error.transient:
                raise
            trouble = error
        now = time.monotonic()
        if trouble is not None:
            self._pause = min(max(FIRST_PAUSE, self._pause * 2), LONGEST_PAUSE)
            self.due = now + self._pause
        else:
            self._pause = 0.0
            self.due = began if taken and taken.behind else began + every
        beat = Beat(source.name, source.target, now - began, taken, trouble, self._pause, ran=ran)
        if taken is None:
            return beat
        summary = lake.state(source.target).snapshot(taken.snapshot).summary
        return replace(
            beat,
            files=int(summary.get("total-data-files", 0)),
            file_bytes=int(summary.get("total-files-size", 0)),
        )

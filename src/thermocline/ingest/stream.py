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
from thermocline.ingest.feed import FeedIngester, StreamBatch, open_feed
from thermocline.ingest.source import BatchLimits, Source

if TYPE_CHECKING:
    from thermocline.lake import Lake

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Ingester(Protocol):
    """A source on its way into its table."""

    source: Source

    def ingest_batch(self) -> StreamBatch | None:
        """Land one batch; None when nothing is new."""

    def close(self) -> None:
        """Let go of the source."""


@dataclass(frozen=True)
class PollResult:
    """One look at one source, and what came of it.

    `taken` is the batch that landed. `trouble` is an error that may pass, to be tried again after
    `pause` seconds. `files` and `file_bytes` describe the table's data files after a batch;
    `ran` names the tables that were brought up to date with it.
    """

    source: str
    target: str
    seconds: float
    batch: StreamBatch | None = None
    trouble: ThermoclineError | None = None
    pause: float = 0.0
    files: int = 0
    file_bytes: int = 0
    ran: tuple[str, ...] = ()
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def freshness(self) -> float | None:
        """How old the newest event of the batch was, in seconds, when it could be queried."""
        newest = self.batch.landed.newest if self.batch else None
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
        if self.batch is None:
            return said
        landed = self.batch.landed
        return said | {
            "rows": self.batch.rows,
            "quarantined": self.batch.quarantined,
            "behind": self.batch.behind,
            "gaps": landed.gaps,
            "bytes": landed.bytes,
            "batch": self.batch.sequence,
            "snapshot": self.batch.snapshot,
            "freshness": None if self.freshness is None else round(self.freshness, 3),
            "oldest_event": landed.oldest,
            "newest_event": landed.newest,
            "files": self.files,
            "mean_file_bytes": self.file_bytes // self.files if self.files else 0,
            "ran": list(self.ran),
        }


def open_ingester(
    lake: Lake,
    source: Source,
    contract: Contract,
    *,
    limits: BatchLimits | None = None,
    accept_loss: bool = False,
) -> Ingester:
    """The way of a source into its table, whatever its kind. Nothing is read yet."""
    if source.kind == "files":
        from thermocline.ingest.folder_stream import FolderIngester

        return FolderIngester(lake, source, contract)
    feed = open_feed(lake, source, contract)
    return FeedIngester(lake, source, contract, feed, limits=limits, accept_loss=accept_loss)


def ingest_available(ingester: Ingester) -> Iterator[StreamBatch]:
    """Land what a source has at this moment, batch by batch. What comes meanwhile may wait."""
    left: int | None = None
    while (batch := ingester.ingest_batch()) is not None:
        yield batch
        if left is None:
            left = batch.behind
        else:
            left -= batch.rows + batch.quarantined + batch.landed.gaps
        if left is not None and left <= 0:
            return


def poll_sources(
    lake: Lake,
    ingesters: Sequence[Ingester],
    *,
    every: float,
    stop: Event,
    then: Callable[[], Sequence[str]] | None = None,
) -> Iterator[PollResult]:
    """Look at sources in turn, each every so many seconds, until `stop` is set.

    A source that has more waiting is looked at again at once. `then` runs after each batch that
    landed, and once at first: a process that died may have landed one that it did not follow up.
    A batch that is under way when `stop` is set is finished.
    """
    follow = _FollowUp(then)
    schedules = [_PollSchedule(ingester) for ingester in ingesters]
    while not stop.is_set():
        for schedule in schedules:
            if stop.is_set():
                return
            if schedule.due <= time.monotonic():
                schedule.has_polled = True
                # A model may read tables of several sources: each must have been made first.
                yield schedule.poll(
                    lake, every, follow, ready=all(each.has_polled for each in schedules)
                )
        stop.wait(max(0.0, min(schedule.due for schedule in schedules) - time.monotonic()))


class _FollowUp:
    """What is run after a batch, and still owed while it has not succeeded."""

    def __init__(self, run: Callable[[], Sequence[str]] | None) -> None:
        self._run = run
        self._owed = True

    def run_if_owed(self, *, landed: bool, ready: bool) -> tuple[str, ...]:
        """Run it if anything landed since it last succeeded; says what it brought up to date."""
        self._owed = self._owed or landed
        if self._run is None or not self._owed or not ready:
            return ()
        ran = tuple(self._run())
        self._owed = False
        return ran


class _PollSchedule:
    """When a source is looked at next."""

    def __init__(self, ingester: Ingester) -> None:
        self.ingester = ingester
        self.due = 0.0
        self._pause = 0.0
        self.has_polled = False

    def poll(self, lake: Lake, every: float, follow: _FollowUp, *, ready: bool) -> PollResult:
        """Look at the source now."""
        source = self.ingester.source
        began = time.monotonic()
        batch: StreamBatch | None = None
        ran: tuple[str, ...] = ()
        trouble: ThermoclineError | None = None
        try:
            batch = self.ingester.ingest_batch()
            ran = follow.run_if_owed(landed=batch is not None, ready=ready)
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
            self.due = began if batch and batch.behind else began + every
        beat = PollResult(
            source.name, source.target, now - began, batch, trouble, self._pause, ran=ran
        )
        if batch is None:
            return beat
        summary = lake.state(source.target).snapshot(batch.snapshot).summary
        return replace(
            beat,
            files=int(summary.get("total-data-files", 0)),
            file_bytes=int(summary.get("total-files-size", 0)),
        )

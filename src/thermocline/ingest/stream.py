"""Stream sources continuously: one loop polls each source in turn.

A poll lands a batch, finds nothing new, or hits a transient failure, after which the source pauses
for a growing time. A permanent failure is raised and ends the stream.
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

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0


class Ingester(Protocol):
    """Lands the batches of one source in its table."""

    source: Source

    def ingest_batch(self) -> StreamBatch | None:
        """Land one batch; return None if nothing is new."""

    def close(self) -> None:
        """Close the source."""


@dataclass(frozen=True)
class PollResult:
    """The result of one poll of one source.

    `batch` is the batch that landed. `failure` is a transient error, retried after `pause` seconds.
    `files` and `file_bytes` describe the table's data files after a batch. `ran` names the tables
    that were updated after it.
    """

    source: str
    target: str
    seconds: float
    batch: StreamBatch | None = None
    failure: ThermoclineError | None = None
    pause: float = 0.0
    files: int = 0
    file_bytes: int = 0
    ran: tuple[str, ...] = ()
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def freshness(self) -> float | None:
        """The age of the batch's newest event in seconds when it became queryable."""
        newest = self.batch.landed.newest if self.batch else None
        return None if newest is None else max(0.0, (self.at - newest).total_seconds())

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        document: dict[str, Any] = {
            "at": self.at,
            "source": self.source,
            "table": self.target,
            "seconds": round(self.seconds, 3),
        }
        if self.failure is not None:
            return {**document, "trouble": self.failure.cause, "retry_in": self.pause}
        if self.batch is None:
            return document
        landed = self.batch.landed
        return document | {
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
    """Return the ingester of a source, by its kind. It reads nothing yet."""
    if source.kind == "files":
        from thermocline.ingest.folder_stream import FolderIngester

        return FolderIngester(lake, source, contract)
    feed = open_feed(lake, source, contract)
    return FeedIngester(lake, source, contract, feed, limits=limits, accept_loss=accept_loss)


def ingest_available(ingester: Ingester) -> Iterator[StreamBatch]:
    """Land what a source has now, batch by batch. Later arrivals may be left for the next call."""
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
    """Poll sources in turn, each every `every` seconds, until `stop` is set.

    A source with more data is polled again at once. `then` runs after each batch that landed, and
    once at the start, because a process that died may not have run it after its last batch. A batch
    in progress when `stop` is set is finished.
    """
    follow = _FollowUp(then)
    schedules = [_PollSchedule(ingester) for ingester in ingesters]
    while not stop.is_set():
        for schedule in schedules:
            if stop.is_set():
                return
            if schedule.due <= time.monotonic():
                schedule.has_polled = True
                # A model may read tables of several sources, so all of them must exist first.
                yield schedule.poll(
                    lake, every, follow, ready=all(each.has_polled for each in schedules)
                )
        stop.wait(max(0.0, min(schedule.due for schedule in schedules) - time.monotonic()))


class _FollowUp:
    """Runs a callback after a batch, and retries it until it succeeds."""

    def __init__(self, run: Callable[[], Sequence[str]] | None) -> None:
        self._run = run
        self._is_pending = True

    def run_if_pending(self, *, landed: bool, ready: bool) -> tuple[str, ...]:
        """Run it if anything landed since its last success; return what it updated."""
        self._is_pending = self._is_pending or landed
        if self._run is None or not self._is_pending or not ready:
            return ()
        ran = tuple(self._run())
        self._is_pending = False
        return ran


class _PollSchedule:
    """When a source is polled next."""

    def __init__(self, ingester: Ingester) -> None:
        self.ingester = ingester
        self.due = 0.0
        self._pause = 0.0
        self.has_polled = False

    def poll(self, lake: Lake, every: float, follow: _FollowUp, *, ready: bool) -> PollResult:
        """Poll the source now."""
        source = self.ingester.source
        started = time.monotonic()
        batch: StreamBatch | None = None
        ran: tuple[str, ...] = ()
        failure: ThermoclineError | None = None
        try:
            batch = self.ingester.ingest_batch()
            ran = follow.run_if_pending(landed=batch is not None, ready=ready)
        except ThermoclineError as error:
            if not error.transient:
                raise
            failure = error
        now = time.monotonic()
        if failure is not None:
            self._pause = min(max(MIN_PAUSE_SECONDS, self._pause * 2), MAX_PAUSE_SECONDS)
            self.due = now + self._pause
        else:
            self._pause = 0.0
            self.due = started if batch and batch.behind else started + every
        result = PollResult(
            source.name, source.target, now - started, batch, failure, self._pause, ran=ran
        )
        if batch is None:
            return result
        summary = lake.state(source.target).snapshot(batch.snapshot).summary
        return replace(
            result,
            files=int(summary.get("total-data-files", 0)),
            file_bytes=int(summary.get("total-files-size", 0)),
        )

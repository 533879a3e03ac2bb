"""Watch a landing folder: each poll lands its new files.

The table alone determines which files have landed. The state kept here between polls only avoids
checking unchanged files again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.ingest import files
from thermocline.ingest.batch import BatchResult
from thermocline.ingest.batch_stats import to_utc
from thermocline.ingest.feed import StreamBatch
from thermocline.ingest.landing import LandingFile, ListingCache, Refusal, list_landing, open_folder
from thermocline.ingest.source import BatchLimits, Source
from thermocline.ingest.validation import strip_provenance
from thermocline.lake.naming import new_run_id

if TYPE_CHECKING:
    from thermocline.lake import Lake


SETTLE_SECONDS = 2.0
"""The default of `settle` for streams: how long a file must be unchanged. Polling every few seconds
would otherwise often find files that are still being written."""


FULL_LISTING_SECONDS = 60.0
"""How often all files are checked for changes in place; in between, only new names and changed
folders are."""


class FolderIngester:
    """Lands the files of one landing folder, poll by poll."""

    def __init__(
        self, lake: Lake, source: Source, contract: Contract, *, limits: BatchLimits | None = None
    ) -> None:
        self.lake = lake
        self.source = source if source.settle else replace(source, settle=SETTLE_SECONDS)
        self._contract = contract
        self._bytes = min(files.BATCH_BYTES, (limits or source.limits).bytes)
        self._folder = open_folder(source, lake.settings)
        self._known_files: set[LandingFile] = set()
        """Files that landed, were duplicates, or were refused, with their state at that time."""
        self._refused: set[str] = set()
        self._listing_cache = ListingCache()
        self._last_full_listing = -FULL_LISTING_SECONDS
        self._last_snapshot: int | None = None
        self._sequence = 0

    def ingest_batch(self) -> StreamBatch | None:
        """Land the new files; return None if there are none.

        A file that still changes waits until it has settled. A file that the contract refuses is
        tried again when it changes, or by the next process.
        """
        if not self.lake.exists(self.source.target):
            self.lake.ensure(
                strip_provenance(self._contract)
            )  # models may read it before the first file arrives
        self._reset_after_rollback()
        is_full = time.monotonic() - self._last_full_listing > FULL_LISTING_SECONDS
        if is_full:
            self._listing_cache, self._last_full_listing = ListingCache(), time.monotonic()
        listing = list_landing(self._folder, self.source, self._listing_cache)
        fresh = [file for file in listing.files if file not in self._known_files]
        if is_full:
            self._known_files.intersection_update(listing.files)  # the others were removed
        if not fresh:
            self._update_cache(listing.refused)
            return None
        report = files.ingest(
            self.lake, self.source, self._contract, run=new_run_id(),
            batch_bytes=self._bytes, listing=replace(listing, files=fresh),
        )  # fmt: skip
        self._known_files.update(fresh)
        self._known_files.difference_update(report.unavailable)
        self._update_cache(report.refused, report.unavailable)
        if report.snapshot is None:
            return None
        self._last_snapshot = report.snapshot
        self._sequence += 1
        landed = BatchResult(report.rows, report.quarantined, report.snapshot)
        return StreamBatch(
            self.source.name, self.source.target, report.rows, report.quarantined,
            report.snapshot, self._sequence, 0, replace(landed, newest=_newest_time(fresh)),
        )  # fmt: skip

    def _update_cache(
        self, refused: Sequence[Refusal], unavailable: Sequence[LandingFile] = ()
    ) -> None:
        """Skip listed files in later polls, except those that may be fixed in place."""
        self._refused.update(each.file for each in refused)
        for name in (*self._refused, *(each.name for each in unavailable)):
            self._listing_cache.recheck(name)
        self._listing_cache.skip_listed()

    def close(self) -> None:
        """Do nothing: no resource stays open between polls."""

    def _reset_after_rollback(self) -> None:
        """After a rollback of main, treat the files that landed since as new."""
        if self._last_snapshot is None:
            return
        state = self.lake.state(self.source.target)
        head = state.head()
        if head is None or not state.is_ancestor(self._last_snapshot, of=head):
            self._known_files, self._refused, self._last_snapshot = set(), set(), None
            self._listing_cache = ListingCache()


def _newest_time(found: list[LandingFile]) -> datetime | None:
    """Return when the newest of the files was written."""
    written = max((file.modified_ns for file in found), default=None)
    return None if written is None else to_utc(written / 1000)

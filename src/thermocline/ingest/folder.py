"""A landing folder that is watched: what is new in it lands, look by look.

Which files have landed is known from the table alone, as always. What is remembered here between
two looks only saves asking again about files that have not changed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.ingest import files
from thermocline.ingest.batch import Landed
from thermocline.ingest.feed import Taken
from thermocline.ingest.judge import data_only
from thermocline.ingest.landing import LandingFile, Passed, Refusal, folder_of, list_landing
from thermocline.ingest.source import Limits, Source
from thermocline.ingest.tally import utc
from thermocline.lake.names import new_run_id

if TYPE_CHECKING:
    from thermocline.lake import Lake


SETTLE_SECONDS = 2.0
"""So long a file must have been left alone, unless the source says otherwise. Who looks every few
seconds would else meet many a file that is being written."""


WHOLE_LOOK_SECONDS = 60.0
"""Every so often all files are asked how they are, for what was changed in place since it landed;
between, only new names and changed folders are."""


class FolderIntake:
    """A landing folder on its way into its table."""

    def __init__(
        self, lake: Lake, source: Source, contract: Contract, *, limits: Limits | None = None
    ) -> None:
        self.lake = lake
        self.source = source if source.settle else replace(source, settle=SETTLE_SECONDS)
        self._contract = contract
        self._bytes = min(files.BATCH_BYTES, (limits or source.limits).bytes)
        self._folder = folder_of(source, lake.settings)
        self._judged: set[LandingFile] = set()
        """Files that landed, were known by their content, or were refused: as they were then."""
        self._refused: set[str] = set()
        self._passed = Passed()
        self._looked = -WHOLE_LOOK_SECONDS
        self._landed: int | None = None
        self._sequence = 0

    def take(self) -> Taken | None:
        """Land the files that are new; None when there are none.

        A file that still changes waits until it has settled. One that the contract refuses is
        looked at again when it changes, or by the next process.
        """
        if not self.lake.exists(self.source.target):
            self.lake.ensure(data_only(self._contract))  # models may read it before a file comes
        self._forget_after_a_rollback()
        whole = time.monotonic() - self._looked > WHOLE_LOOK_SECONDS
        if whole:
            self._passed, self._looked = Passed(), time.monotonic()
        listing = list_landing(self._folder, self.source, self._passed)
        fresh = [file for file in listing.files if file not in self._judged]
        if whole:
            self._judged.intersection_update(listing.files)  # others are gone from the folder
        if not fresh:
            self._done(listing.refused)
            return None
        report = files.ingest(
            self.lake, self.source, self._contract, run=new_run_id(),
            batch_bytes=self._bytes, listing=replace(listing, files=fresh),
        )  # fmt: skip
        self._judged.update(fresh)
        self._judged.difference_update(report.away)
        self._done(report.refused, report.away)
        if report.snapshot is None:
            return None
        self._landed = report.snapshot
        self._sequence += 1
        landed = Landed(report.rows, report.quarantined, report.snapshot)
        return Taken(
            self.source.name, self.source.target, report.rows, report.quarantined,
            report.snapshot, self._sequence, 0, replace(landed, newest=_newest(fresh)),
        )  # fmt: skip

    def _done(self, refused: Sequence[Refusal], away: Sequence[LandingFile] = ()) -> None:
        """Pass over what was listed, but for files that may be mended in place."""
        self._refused.update(each.file for each in refused)
        for name in (*self._refused, *(each.name for each in away)):
            self._passed.not_done(name)
        self._passed.done()

    def close(self) -> None:
        """Nothing is held open between two looks."""

    def _forget_after_a_rollback(self) -> None:
        """Files that landed since the snapshot that main was taken back to are new again."""
        if self._landed is None:
            return
        state = self.lake.state(self.source.target)
        head = state.head()
        if head is None or not state.is_ancestor(self._landed, of=head):
            self._judged, self._refused, self._landed = set(), set(), None
            self._passed = Passed()


def _newest(found: list[LandingFile]) -> datetime | None:
    """When the newest of some files was written."""
    written = max((file.modified_ns for file in found), default=None)
    return None if written is None else utc(written / 1000)

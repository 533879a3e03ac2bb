"""A landing folder that is watched: what is new in it lands, look by look.

Which files have landed is known from the table alone, as always. What is remembered here between
two looks only saves asking again about files that have not changed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.ingest import files
from thermocline.ingest.batch import Landed
from thermocline.ingest.feed import Taken
from thermocline.ingest.judge import data_only
from thermocline.ingest.landing import LandingFile, folder_of, list_landing
from thermocline.ingest.source import Limits, Source
from thermocline.lake.names import new_run_id

if TYPE_CHECKING:
    from thermocline.lake import Lake


SETTLE_SECONDS = 2.0
"""So long a file must have been left alone, unless the source says otherwise. Who looks every few
seconds would else meet many a file that is being written."""


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
        listing = list_landing(self._folder, self.source)
        if self._judged.issuperset(listing.files):
            return None
        report = files.ingest(
            self.lake, self.source, self._contract, run=new_run_id(), batch_bytes=self._bytes
        )
        fresh = set(listing.files) - self._judged
        self._judged = set(listing.files)
        if report.snapshot is None:
            return None
        self._landed = report.snapshot
        self._sequence += 1
        landed = Landed(report.rows, report.quarantined, report.snapshot)
        return Taken(
            self.source.name, self.source.target, report.rows, report.quarantined,
            report.snapshot, self._sequence, 0, replace(landed, newest=_newest(fresh)),
        )  # fmt: skip

    def close(self) -> None:
        """Nothing is held open between two looks."""

    def _forget_after_a_rollback(self) -> None:
        """Files that landed since the snapshot that main was taken back to are new again."""
        if self._landed is None:
            return
        state = self.lake.state(self.source.target)
        head = state.head()
        if head is None or not state.is_ancestor(self._landed, of=head):
            self._judged, self._landed = set(), None


def _newest(found: set[LandingFile]) -> datetime | None:
    """When the newest of some files was written."""
    written = max((file.modified_ns for file in found), default=None)
    return None if written is None else datetime.fromtimestamp(written / 1e9, UTC)

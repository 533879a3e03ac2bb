"""Ingest one source until nothing is new, and report the result."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threading import Event

    from thermocline.contract import Contract
    from thermocline.ingest.source import Source
    from thermocline.lake import Lake
    from thermocline.telemetry import Progress


@dataclass(frozen=True)
class IngestTarget:
    """What one source added to its table."""

    source: str
    table: str
    files: int
    rows: int
    quarantined: int
    refused: tuple[str, ...]
    snapshot: int | None

    def add_batch(self, rows: int, quarantined: int, snapshot: int) -> IngestTarget:
        """Return the totals including one more batch."""
        rows, quarantined = self.rows + rows, self.quarantined + quarantined
        return replace(self, rows=rows, quarantined=quarantined, snapshot=snapshot)

    def as_dict(self) -> dict[str, Any]:
        """Return the totals as JSON values."""
        return {**vars(self), "refused": list(self.refused)}

    def __str__(self) -> str:
        if not (self.files or self.rows or self.quarantined):
            return "nothing new"
        files = f"   {self.files:,} files" if self.files else ""
        kept = f"   {self.quarantined:,} quarantined" if self.quarantined else ""
        return f"{self.rows:,} rows{files}{kept}"


@dataclass(frozen=True)
class IngestReport:
    """What an ingestion added, source by source."""

    run: str
    targets: tuple[IngestTarget, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"run": self.run, "targets": [target.as_dict() for target in self.targets]}


def ingest(
    lake: Lake,
    source: Source,
    contract: Contract,
    run: str,
    accept_loss: bool,
    progress: Progress,
    stop: Event | None = None,
) -> IngestTarget:
    """Ingest what is new at a source: messages in batches, files one by one."""
    if source.has_messages:
        from thermocline.ingest.stream import ingest_available, open_ingester

        target = IngestTarget(source.name, source.target, 0, 0, 0, (), None)
        with closing(open_ingester(lake, source, contract, accept_loss=accept_loss)) as ingester:
            for taken in ingest_available(ingester):
                target = target.add_batch(taken.rows, taken.quarantined, taken.snapshot)
                progress.advance(taken.rows, f"{target.rows:,} rows")
                if stop is not None and stop.is_set():
                    break
        return target
    from thermocline.ingest import files

    done = files.ingest(lake, source, contract, run=run, progress=progress)
    refused = tuple(str(refused) for refused in done.refused)
    return IngestTarget(
        source.name, source.target, done.files, done.rows, done.quarantined, refused, done.snapshot
    )

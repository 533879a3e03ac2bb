"""The protocol of a maintenance task: what it is, why, what it gains and costs, and applying it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from thermocline.lake import Lake

COUNTS = (
    "rows", "files_before", "files_after", "bytes_before", "bytes_after", "delete_files_removed",
    "carried_deletes", "snapshots_expired", "refs_dropped", "manifests_before", "manifests_after",
    "files_found", "files_removed", "bytes_removed",
)  # fmt: skip
"""What tasks count: fields of reports, and columns of `ops.maintenance`."""


class TaskKind(StrEnum):
    """What a task does to its table."""

    EXPIRE = "expire"
    """Expires snapshots that nothing needs."""
    COMPACT = "compact"
    """Joins data files and applies their deletes."""
    MANIFESTS = "manifests"
    """Joins manifests, and changes no file."""
    REMOVE = "remove"
    """Deletes files that nothing references."""


class Discarded(Exception):
    """A task that must not be published, because of its reason. None of its files remain."""


@dataclass(frozen=True)
class TaskEffect:
    """What a task did: how often, by the names in COUNTS, and the snapshot that it committed."""

    counts: Mapping[str, int] = field(default_factory=dict)
    snapshot: int | None = None
    outcome: str = "published"
    reason: str = ""


class MaintenanceTask(Protocol):
    """Work on one table, planned as a value: what is printed is what is applied."""

    @property
    def kind(self) -> TaskKind:
        """Return what it does."""

    @property
    def table(self) -> str:
        """Return the table's name."""

    @property
    def partition(self) -> str:
        """Return the part of the table that it works on; empty for the whole table."""

    @property
    def why(self) -> str:
        """Return why it is worth it."""

    @property
    def saved_bytes(self) -> int:
        """Return what readers and writers save, in bytes of scanning or storage."""

    @property
    def cpu_seconds(self) -> float:
        """Return what it is expected to cost."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Return what is counted already, by the names in COUNTS."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Return what else a plan in JSON says of it."""

    def apply(self, lake: Lake) -> TaskEffect:
        """Do it. Raise Discarded when the table changed so that it must not be done."""


def describe_task(task: MaintenanceTask) -> dict[str, Any]:
    """Return a task as JSON values."""
    return {
        "kind": str(task.kind), "table": task.table, "partition": task.partition, "why": task.why,
        **task.details, "saved_bytes": task.saved_bytes, "cpu_seconds": round(task.cpu_seconds, 3),
    }  # fmt: skip

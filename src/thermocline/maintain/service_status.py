"""What the maintenance service last found, as a file of the project; and the switch that pauses it.

The service and its readers are different processes, so the file is replaced as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from thermocline.config import private_files

STATUS_FILE, PAUSE_FILE = "maintenance.json", "maintenance.paused"


@dataclass(frozen=True)
class TableStatus:
    """The measures of a table that alerts are made of."""

    files: int
    small_files: int
    most_small_files: int
    """Small files in the partition that has the most."""
    most_delete_bytes: int
    """Bytes of delete files in the partition that has the most."""
    snapshots: int
    read_amplification: float


@dataclass(frozen=True)
class ServiceStatus:
    """What the service is doing, what is left to do, and the state of each table."""

    at: datetime
    state: str
    every_seconds: float
    last_success: datetime | None = None
    queued_tasks: int = 0
    queued_cpu_seconds: float = 0.0
    tables: Mapping[str, TableStatus] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return asdict(self) | {
            "at": self.at.isoformat(),
            "last_success": self.last_success and self.last_success.isoformat(),
        }


def write_status(project: Path, status: ServiceStatus) -> None:
    """Replace the status of the project's service."""
    private_files.write_json(private_files.ensure_folder(project) / STATUS_FILE, status.as_dict())


def read_status(project: Path) -> ServiceStatus | None:
    """Return the status that a service of the project wrote last, if it can be read."""
    try:
        raw = json.loads((project / private_files.FOLDER / STATUS_FILE).read_text("utf-8"))
        last = raw["last_success"]
        return ServiceStatus(
            at=datetime.fromisoformat(raw["at"]),
            state=str(raw["state"]),
            every_seconds=float(raw["every_seconds"]),
            last_success=last and datetime.fromisoformat(last),
            queued_tasks=int(raw["queued_tasks"]),
            queued_cpu_seconds=float(raw["queued_cpu_seconds"]),
            tables={name: TableStatus(**table) for name, table in raw["tables"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # there is none, or another version wrote it: the next pass replaces it


def pause(project: Path) -> None:
    """Let the service rest until `resume`, also across restarts. Its current task is finished."""
    private_files.ensure_file(project, PAUSE_FILE)


def resume(project: Path) -> None:
    """Let the service work again."""
    (project / private_files.FOLDER / PAUSE_FILE).unlink(missing_ok=True)


def is_paused(project: Path) -> bool:
    """Whether the service is to rest."""
    return (project / private_files.FOLDER / PAUSE_FILE).exists()

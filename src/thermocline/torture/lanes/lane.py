"""What a lane is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from thermocline.torture.workload import Events, State, Workload

PATIENCE_SECONDS = 120.0
"""How long a server may be away before the trial gives up sending."""


class Lane(Protocol):
    """A source whose every event is known. One thread sends.

    Where it `changes` a table, bronze gets the changes that the events made there, and not the
    events as they were sent.
    """

    kind: str
    workload: Workload
    changes: bool

    def source(self) -> dict[str, Any]:
        """What the source's file says beside its name and target."""

    def begin(self, project: Path) -> None:
        """Make what the events are sent to."""

    def send(self, events: Events) -> None:
        """Hand events over; when this returns, the source keeps them, each once."""

    def state(self) -> State | None:
        """What the source itself holds by now; None where it keeps events only."""

    def end(self, *, keep: bool) -> None:
        """Remove what was made outside the project; to `keep` it, only what does harm there."""

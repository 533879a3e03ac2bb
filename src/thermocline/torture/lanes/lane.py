"""The interface of a lane."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from thermocline.torture.workload import Events, State, Workload

MAX_OUTAGE_SECONDS = 120.0
"""Seconds that a server may be unreachable before the trial stops sending."""


class Lane(Protocol):
    """A source with known events, sent by one thread.

    If it `changes` a table, bronze gets the changes of that table instead of the events.
    """

    kind: str
    workload: Workload
    changes: bool

    def source(self) -> dict[str, Any]:
        """Return the source's settings without name and target."""

    def set_up(self, project: Path) -> None:
        """Create the destination of the events."""

    def send(self, events: Events) -> None:
        """Send events; on return the source has stored each of them once."""

    def read_state(self) -> State | None:
        """Return the rows of the source itself; None if it keeps events only."""

    def tear_down(self, *, keep: bool) -> None:
        """Remove what was created outside the project; with `keep` only what does harm there."""

"""Send events as files in a landing folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thermocline.torture.workload import Events, State, Workload

FILE_EVENTS = 2_000
DELIVER_TWICE_ONE_IN = 7


@dataclass
class FilesLane:
    """Files in a landing folder. Every seventh file is delivered twice, under another name."""

    workload: Workload
    kind: str = "files"
    changes: bool = False
    _folder: Path = Path()
    _files: int = 0

    def source(self) -> dict[str, Any]:
        """Return the settings of a landing folder of JSON lines."""
        return {"kind": "files", "path": "landing", "format": "jsonl"}

    def set_up(self, project: Path) -> None:
        """Create the landing folder."""
        self._folder = project / "landing"
        self._folder.mkdir(parents=True)

    def send(self, events: Events) -> None:
        """Write files. Each appears complete: it is written under a hidden name first."""
        for start in range(0, len(events), FILE_EVENTS):
            part = events.part(start, start + FILE_EVENTS)
            text = "".join(f"{line}\n" for _, line in part.messages())
            self._deliver(f"part-{self._files:08}.jsonl", text)
            if self._files % DELIVER_TWICE_ONE_IN == 0:
                self._deliver(f"part-{self._files:08}-again.jsonl", text)
            self._files += 1

    def _deliver(self, name: str, text: str) -> None:
        hidden = self._folder / f".{name}.tmp"
        hidden.write_text(text)
        hidden.rename(self._folder / name)

    def read_state(self) -> State | None:
        """Return None: a folder keeps events only."""
        return None

    def tear_down(self, *, keep: bool) -> None:
        """Do nothing: the folder is part of the project."""

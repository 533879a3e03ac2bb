"""The note that a running server leaves in its project: where it listens, and which process it is.

Whoever works in the project finds the server by it. A note whose server died is not believed:
the address is asked before it is used.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from thermocline.config import Settings, private_files

FILE = "serve.json"


@dataclass(frozen=True)
class Standing:
    """A server that runs, and which lake it serves: a profile may have chosen another."""

    url: str
    pid: int
    lake: str


def lake(settings: Settings) -> str:
    """What tells this lake from another one: its catalog and its warehouse."""
    return f"{settings.catalog.uri} {settings.warehouse}"


def leave(settings: Settings, url: str) -> Standing:
    """Note that this process serves the project's lake at `url`."""
    standing = Standing(url, os.getpid(), lake(settings))
    private_files.write_json(private_files.ensure_folder(settings.project) / FILE, asdict(standing))
    return standing


def remove(project: Path) -> None:
    """Take this process's note away; that of another stays."""
    found = find(project)
    if found is not None and found.pid == os.getpid():
        (project / private_files.FOLDER / FILE).unlink(missing_ok=True)


def find(project: Path) -> Standing | None:
    """The note of this project's server, if its owner (or root) alone could have written it."""
    path = project / private_files.FOLDER / FILE
    try:
        status = path.stat()
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
            return None
        given = json.loads(path.read_text(encoding="utf-8"))
        return Standing(str(given["url"]), int(given["pid"]), str(given["lake"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""The file in a project that says where its running server listens, and as which process.

Commands in the project find the server by it. The record of a server that died is not trusted: the
command checks the address first.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from thermocline.config import Settings, private_files

FILE = "serve.json"


@dataclass(frozen=True)
class ServerRecord:
    """A running server and the lake that it serves, which depends on the profile."""

    url: str
    pid: int
    lake: str


def lake_identity(settings: Settings) -> str:
    """Return what identifies a lake: its catalog and its warehouse."""
    return f"{settings.catalog.uri} {settings.warehouse}"


def write_record(settings: Settings, url: str) -> ServerRecord:
    """Record that this process serves the project's lake at `url`."""
    server_record = ServerRecord(url, os.getpid(), lake_identity(settings))
    private_files.write_json(
        private_files.ensure_folder(settings.project) / FILE, asdict(server_record)
    )
    return server_record


def remove_record(project: Path) -> None:
    """Remove the record of this process; that of another process stays."""
    found = find_record(project)
    if found is not None and found.pid == os.getpid():
        (project / private_files.FOLDER / FILE).unlink(missing_ok=True)


def find_record(project: Path) -> ServerRecord | None:
    """Return the record of this project's server, if only its owner or root can write it."""
    path = project / private_files.FOLDER / FILE
    try:
        status = path.stat()
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
            return None
        fields = json.loads(path.read_text(encoding="utf-8"))
        return ServerRecord(str(fields["url"]), int(fields["pid"]), str(fields["lake"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None

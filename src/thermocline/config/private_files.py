"""Files of a project that only its owner may read: tokens, logs, rows in transit.

All of them are in one folder that other users cannot enter, whatever its mode was before.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FOLDER = ".thermocline"
MAX_LOG_BYTES = 16 << 20
"""A log of this size is rotated; one old log is kept."""


def ensure_folder(project: Path) -> Path:
    """Return the project's private folder; create it if missing, with a .gitignore for it all."""
    path = project / FOLDER
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _restrict_to_owner(path)
    ignore = path / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return path


def ensure_log(project: Path, name: str) -> Path:
    """Return a log of the private folder, to append to.

    A log that has grown large is rotated first and replaces the previous old one.
    """
    path = ensure_folder(project) / name
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(f"{name}.1"))
    return ensure_file(project, name)


def ensure_file(project: Path, name: str) -> Path:
    """Return a file of the private folder that only its owner may read; create it if missing."""
    path = ensure_folder(project) / name
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    _restrict_to_owner(path)
    return path


def _restrict_to_owner(path: Path) -> None:
    """Remove other users' permissions. A file that belongs to another user is left alone."""
    mode = path.stat().st_mode
    if mode & 0o077:
        with contextlib.suppress(PermissionError):
            path.chmod(mode & 0o700)


def write_json(path: Path, document: Any) -> None:
    """Replace a JSON document atomically; only its owner may read it."""
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}."
    )  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

"""Files of a project that only its owner may read: tokens, logs, rows on their way.

All of them are in one folder, which others cannot enter, whoever made it and how.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FOLDER = ".thermocline"
LOG_BYTES = 16 << 20
"""So large a log may grow; the one before it is kept."""


def folder(project: Path) -> Path:
    """Return the project's private folder, made when it is missing; git ignores what is in it."""
    path = project / FOLDER
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _close(path)
    ignore = path / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return path


def log(project: Path, name: str) -> Path:
    """Return a log of the private folder, to be written at its end.

    One that has grown large is put aside first, in the place of the one before.
    """
    path = folder(project) / name
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(f"{name}.1"))
    return file(project, name)


def file(project: Path, name: str) -> Path:
    """Return a file of the private folder, which its owner alone may read, empty when it is new."""
    path = folder(project) / name
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    _close(path)
    return path


def _close(path: Path) -> None:
    """Take the rights of others away. Where the file is somebody else's, that is up to them."""
    mode = path.stat().st_mode
    if mode & 0o077:
        with contextlib.suppress(PermissionError):
            path.chmod(mode & 0o700)


def write(path: Path, document: Any) -> None:
    """Put a JSON document in place of the old one at once, readable to its owner alone."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600 from birth
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

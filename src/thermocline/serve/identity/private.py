"""Files of a project that only its owner may read: written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

FOLDER = ".thermocline"


def folder(project: Path) -> Path:
    """The project's private folder, made when it is missing; git ignores what is in it."""
    path = project / FOLDER
    path.mkdir(mode=0o700, exist_ok=True)
    ignore = path / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return path


def write(path: Path, document: Any) -> None:
    """Put a JSON document in place of the old one at once, readable to its owner alone."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600 from birth
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

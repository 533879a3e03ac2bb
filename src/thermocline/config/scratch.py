"""Scratch folders: temporary folders that live as long as their process.

A process locks its folder. A folder without a lock was left by a killed process, and is removed
when the next folder is created beside it. Process ids would not do: the system reuses them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType


class ScratchFolder:
    """A folder that is removed on close, or by a later process if its own process was killed."""

    def __init__(self, parent: Path, prefix: str) -> None:
        remove_abandoned(parent, prefix)
        self.path, self._lock = _create_locked(parent, prefix)

    def close(self) -> None:
        """Remove the folder and its content."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of processes that were killed."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder unless a live process has locked it."""
    with contextlib.suppress(OSError):  # locked, owned by another user, or removed
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def _create_locked(parent: Path, prefix: str) -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another process removed it before the lock was taken
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)  # another process is about to remove it
            continue
        except OSError:  # a file system without locks: no process can remove it either
            return path, handle
        if path.exists():
            return path, handle
        os.close(handle)

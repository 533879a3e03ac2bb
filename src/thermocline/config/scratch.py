"""Scratch folders: what a process needs only while it lives.

A folder is locked for as long as its process lives. One that nobody has locked was left by a
process that was killed, and is removed when the next folder is made beside it. Process ids would
not do: they are given out again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType


class Scratch:
    """A folder that is removed when it is closed, or by others when its process was killed."""

    def __init__(self, parent: Path, prefix: str) -> None:
        sweep(parent, prefix)
        self.path, self._lock = _make(parent, prefix)

    def close(self) -> None:
        """Remove the folder and what is in it."""
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


def sweep(parent: Path, prefix: str) -> None:
    """Remove the folders of processes that were killed."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            _remove_left(folder)


def _remove_left(folder: Path) -> None:
    """Remove a folder unless a living process has it."""
    with contextlib.suppress(OSError):  # it is locked, somebody else's, or gone
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def _make(parent: Path, prefix: str) -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # a sweep came before the lock
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)  # a sweep is about to remove it
            continue
        except OSError:  # a file system without locks: nobody can sweep there either
            return path, handle
        if path.exists():
            return path, handle
        os.close(handle)

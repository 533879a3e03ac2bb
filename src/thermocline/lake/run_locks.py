"""Run locks: each run locks a file of the project while its process lives.

The file is removed when the run publishes or drops its branches. A file without a lock belongs to a
run that failed or was killed. The status of other runs is unknown: a run of another machine has no
file here, and a copied project has a copy of the file, which its inode number reveals. Process ids
are not used, because they are reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from thermocline.config import private_files

_FOLDER = "runs"


class RunLock:
    """A run's lock on its file. Several processes of one run share it."""

    def __init__(self, project: Path, run: str) -> None:
        self._path = _runs_folder(project) / run
        self._handle: int | None = None
        if not project.is_dir():
            return  # a worker on another machine
        with contextlib.suppress(
            OSError
        ):  # the project is read-only: the run's status stays unknown
            private_files.ensure_folder(project)
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._handle = _open_locked(self._path)

    def release(self, *, done: bool = False) -> None:
        """Release the lock; with `done` also remove the file, since the run is complete."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with contextlib.suppress(OSError):
                if done:
                    self._path.unlink(missing_ok=True)
            os.close(handle)

    def __del__(self) -> None:
        self.release()


def is_working(project: Path, run: str) -> bool | None:
    """Whether a process of this project works on a run; None if that is unknown."""
    try:
        handle = os.open(_runs_folder(project) / run, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.pread(handle, 64, 0) != _inode(handle):
            return None  # a copy of the file
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


def known_runs(project: Path) -> list[str]:
    """Return the runs with a file: running ones, and those that ended without publishing."""
    try:
        return sorted(path.name for path in _runs_folder(project).iterdir())
    except OSError:
        return []


def forget_run(project: Path, run: str) -> None:
    """Remove the file of a run without branches."""
    with contextlib.suppress(OSError):
        (_runs_folder(project) / run).unlink(missing_ok=True)


def _runs_folder(project: Path) -> Path:
    return project / private_files.FOLDER / _FOLDER


def _open_locked(path: Path) -> int:
    """Open and lock the file at a path, in shared mode."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(handle)):
                os.pwrite(handle, _inode(handle), 0)
                return handle
        except OSError:
            os.close(handle)
            raise
        os.close(handle)  # another process of the run removed it meanwhile


def _inode(handle: int) -> bytes:
    """Return a file's inode number, which a copy does not share."""
    return str(os.fstat(handle).st_ino).encode()

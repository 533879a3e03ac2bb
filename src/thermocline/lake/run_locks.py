"""Which runs are at work: each locks a file of the project for as long as its process lives.

The file of a run that published or dropped its branches is removed. One that stays and that nobody
has locked is of a run that failed or was killed. A run of another machine has no file here, and a
copy of the project has one that is not the run's own, as its number in the file system shows:
nothing is known of such a run. Process ids would not do: they are given out again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from thermocline.config import private_files

_FOLDER = "runs"


class RunLock:
    """A run's sign of life. Several processes of one run hold it together."""

    def __init__(self, project: Path, run: str) -> None:
        self._path = _runs_folder(project) / run
        self._handle: int | None = None
        if not project.is_dir():
            return  # a worker on another machine
        with contextlib.suppress(OSError):  # nothing can be written here: nothing will be known
            private_files.ensure_folder(project)
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._handle = _open_locked(self._path)

    def release(self, *, done: bool = False) -> None:
        """Stop holding it; with `done` nothing of the run is left, so neither is the file."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with contextlib.suppress(OSError):
                if done:
                    self._path.unlink(missing_ok=True)
            os.close(handle)

    def __del__(self) -> None:
        self.release()


def is_working(project: Path, run: str) -> bool | None:
    """Whether a process of this project is at work on a run; None where that cannot be known."""
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
    """The runs that have a file here: those at work, and those that ended without being done."""
    try:
        return sorted(path.name for path in _runs_folder(project).iterdir())
    except OSError:
        return []


def forget_run(project: Path, run: str) -> None:
    """Remove the file of a run of which nothing is left."""
    with contextlib.suppress(OSError):
        (_runs_folder(project) / run).unlink(missing_ok=True)


def _runs_folder(project: Path) -> Path:
    return project / private_files.FOLDER / _FOLDER


def _open_locked(path: Path) -> int:
    """A shared lock on the file that is at the path when it is held."""
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
    """What a file says of itself, which a copy of it does not."""
    return str(os.fstat(handle).st_ino).encode()

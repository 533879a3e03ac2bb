"""The errors of a commit to a draft, or of its publish."""

from __future__ import annotations

import errno
import os

from thermocline.engine.py4j_errors import explain_dead_jvm
from thermocline.errors import (
    CommitConflict,
    DiskFull,
    NotWritable,
    Permanent,
    ThermoclineError,
    Transient,
)


class MainMoved(CommitConflict):
    """The branch to publish into has commits that the draft does not contain."""

    code = "main-moved"

    def __init__(self, tables: list[str], into: str) -> None:
        super().__init__(
            f"{into} moved in {', '.join(tables)} while the run was working.",
            "Nothing was published. Run again to work from the new state.",
            tables=tables,
        )
        self.tables = tables


_DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
_PERMISSION_ERRNOS = {errno.EROFS, errno.EACCES, errno.EPERM}


def disk_error(error: BaseException) -> ThermoclineError | None:
    """Return the error for a full disk or missing permissions; None for another error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _DISK_FULL_ERRNOS | _PERMISSION_ERRNOS:
            reason = (cause.strerror or os.strerror(cause.errno)).splitlines()[0]
            return _error_for_errno(
                cause.errno, f"{cause.filename}: {reason}" if cause.filename else reason
            )
        for text, number in _ERRNO_BY_TEXT.items():
            if text in str(cause):
                return _error_for_errno(number, str(cause).strip().splitlines()[0])
        cause = cause.__cause__ or cause.__context__
    return None


_ERRNO_BY_TEXT = {
    "readonly database": errno.EROFS,
    "database or disk is full": errno.ENOSPC,
    "No space left on device": errno.ENOSPC,
    "Read-only file system": errno.EROFS,
    "Permission denied": errno.EACCES,
}
"""Messages of libraries that do not keep the system's error number: SQLite, Arrow and Java."""


def _error_for_errno(number: int, what: str) -> ThermoclineError:
    if number in _DISK_FULL_ERRNOS:
        return DiskFull(f"A disk is full: {what}.", "Make room on it, then run it again.")
    return NotWritable(
        f"A file cannot be used as the work needs it: {what}.",
        "Give this user the rights, or mount it for writing. What only reads works as it is.",
    )


def commit_failure(table: str, failure: Exception | None) -> ThermoclineError:
    """Return the error for a commit that did not land, by the exception of the engine or library.

    Spark's exceptions carry the class of the underlying Java exception only in their message.
    """
    if failure is None:
        return Permanent(
            f"The write to {table} ended without a commit.", "This is a bug; please report it."
        )
    if (ended := explain_dead_jvm(failure)) is not None:
        return ended
    if (full := disk_error(failure)) is not None:
        return full
    text = str(failure)
    first = next((line for line in text.splitlines() if line.strip()), type(failure).__name__)
    if (
        type(failure).__name__ == "CommitFailedException"
        or "CommitFailedException" in text
        or "CommitStateUnknownException" in text
    ):
        return CommitConflict(f"The commit to {table} did not land: {first}", "Run again.")
    if any(sign in text for sign in ("SQLITE_BUSY", "Connection refused", "database is locked")):
        return Transient(f"The write to {table} did not land: {first}", "Run again.")
    return Permanent(f"The write to {table} failed: {first}", "Nothing of it was published.")

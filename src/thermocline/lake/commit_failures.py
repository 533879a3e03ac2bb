"""The errors of a commit to a draft, or of its publish."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator

from thermocline.engine.py4j_errors import explain_dead_jvm, list_java_causes
from thermocline.errors import (
    CommitConflict,
    DiskFull,
    NotWritable,
    Permanent,
    ThermoclineError,
    Transient,
    first_line,
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
    for cause in _python_causes(error):
        if isinstance(cause, OSError) and cause.errno in _DISK_FULL_ERRNOS | _PERMISSION_ERRNOS:
            reason = (cause.strerror or os.strerror(cause.errno)).strip()
            return _error_for_errno(
                cause.errno, f"{cause.filename}: {reason}" if cause.filename else reason
            )
        code = getattr(cause, "sqlite_errorcode", None)
        if code in _SQLITE_FULL:
            return _error_for_errno(errno.ENOSPC, first_line(cause))
        for text, number in _ERRNO_BY_TEXT.items():
            if text in str(cause):
                return _error_for_errno(number, first_line(cause))
    return None


_SQLITE_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
"""SQLite cannot extend the database, or the shared memory of its write-ahead log."""
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
    """Return the error for a commit that did not land, by the exceptions behind it."""
    if failure is None:
        return Permanent(
            f"The write to {table} ended without a commit.", "This is a bug; please report it."
        )
    if (ended := explain_dead_jvm(failure)) is not None:
        return ended
    if (full := disk_error(failure)) is not None:
        return full
    first = first_line(failure)
    if _names(failure) & _CONFLICTS:
        return CommitConflict(f"The commit to {table} did not land: {first}", "Run again.")
    if _is_catalog_unavailable(failure):
        return Transient(f"The write to {table} did not land: {first}", "Run again.")
    return Permanent(f"The write to {table} failed: {first}", "Nothing of it was published.")


_CONFLICTS = {"CommitFailedException", "CommitStateUnknownException"}
"""What PyIceberg and Iceberg's Java library call a lost race and an unknown outcome."""
_REFUSED = {"ConnectException", "ConnectTimeoutException"}
_BUSY = {5, 6}
"""SQLite's result codes for a database or a table that another process has locked."""


def _names(failure: Exception) -> set[str]:
    python = {type(each).__name__ for each in _python_causes(failure)}
    return python | {cause.name for cause in list_java_causes(failure)}


def _is_catalog_unavailable(failure: Exception) -> bool:
    for java in list_java_causes(failure):
        if java.name in _REFUSED or (java.name == "SQLiteException" and java.sql_code in _BUSY):
            return True
    for cause in _python_causes(failure):
        if isinstance(cause, ConnectionError):
            return True
        if isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode & 0xFF in _BUSY:
            return True
    return False


def _python_causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__

"""Every error that Thermocline raises on purpose, and whether a retry can help.

Every error names its cause and the next step a person can take. Callers branch on the class,
never on the text; programs read `code` and `details`.
"""

from __future__ import annotations

from typing import Any


class ThermoclineError(Exception):
    """Base of every error that Thermocline raises on purpose.

    `cause` says what is wrong in one line, `next_step` what to do about it. Keyword arguments are
    kept as `details`, so that a program never has to parse a message.
    """

    code = "error"
    exit_code = 1
    transient = False

    def __init__(self, cause: str, next_step: str = "", **details: Any) -> None:
        super().__init__(cause)
        self.cause = cause
        self.next_step = next_step
        self.details = details

    def __str__(self) -> str:
        return f"{self.cause}\n  {self.next_step}" if self.next_step else self.cause

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the error, the same in every output."""
        return {
            "error": {
                "code": self.code,
                "cause": self.cause,
                "next_step": self.next_step,
                "transient": self.transient,
                "details": self.details,
            }
        }


class Permanent(ThermoclineError):
    """A retry without a change fails in the same way."""


class Transient(ThermoclineError):
    """A retry may succeed."""

    code = "transient"
    transient = True
    exit_code = 5


class ConfigError(Permanent):
    """A setting is missing, unknown or has an invalid value."""

    code = "config"
    exit_code = 2


class BadInput(Permanent):
    """The caller passed something unusable: a name, a path, a file or a query."""

    code = "bad-input"
    exit_code = 2


class NotFound(Permanent):
    """A table, snapshot, branch, tag, run or file does not exist."""

    code = "not-found"
    exit_code = 2


class TablesElsewhere(Permanent):
    """The catalog's tables are outside the lake's warehouse: they belong to another project."""

    code = "elsewhere"
    exit_code = 2


class FileMissing(NotFound):
    """A file that a table needs does not exist. `details` has the table and the file."""

    code = "file-missing"


class ContractError(Permanent):
    """One or more contracts are invalid, or ask for a change that is not allowed.

    `problems` holds all of them, so that the file can be fixed in one pass.
    """

    code = "contract"
    exit_code = 3

    def __init__(self, problems: list[Any], next_step: str = "") -> None:
        lines = "\n".join(str(problem) for problem in problems)
        super().__init__(lines, next_step, problems=[str(problem) for problem in problems])
        self.problems = problems


class CheckFailed(Permanent):
    """Quality rules failed, so nothing was published."""

    code = "check-failed"
    exit_code = 4


class EngineUnavailable(Permanent):
    """An engine that the work needs cannot be started on this machine."""

    code = "engine"
    exit_code = 6


class CatalogUnavailable(Transient):
    """The catalog is locked or cannot be reached."""

    code = "catalog"


class DiskFull(Transient):
    """The disk has no space left for a file. Nothing was published."""

    code = "disk-full"


class NotWritable(Permanent):
    """Permissions forbid reading or writing a file. Nothing was published."""

    code = "not-writable"


class CommitConflict(Transient):
    """Another writer committed first. Our commit did not land."""

    code = "conflict"


class CommitUnknown(Transient):
    """The commit may or may not have landed, and its outcome could not be looked up.

    Do not delete files or retry before looking for the commit id in `details`.
    """

    code = "commit-unknown"


_CALL_FAILED = "An error occurred while calling "
"""How Py4J begins the text of a Java error; Java's own text follows."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something, or the name of its class."""
    lines = [line.strip() for line in str(error).splitlines()]
    if lines and lines[0].startswith(_CALL_FAILED):
        lines = [line.removeprefix(": ") for line in lines[1:]]
    return next((line for line in lines if line), type(error).__name__)

"""What can go wrong, and whether trying again can help.

Every error names its cause and the next step a person can take. Callers branch on the class,
never on the text; programs read `code` and `details`.
"""

from __future__ import annotations

from typing import Any


class ThermoclineError(Exception):
    """Base of everything Thermocline raises on purpose.

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
        """The one JSON shape of an error, everywhere."""
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
    """Trying again without a change gives the same answer."""


class Transient(ThermoclineError):
    """Trying again may help."""

    code = "transient"
    transient = True
    exit_code = 5


class ConfigError(Permanent):
    """A setting is missing, unknown or has a value that cannot be used."""

    code = "config"
    exit_code = 2


class BadInput(Permanent):
    """What the caller passed cannot be used: a name, a path, a file, a query."""

    code = "bad-input"
    exit_code = 2


class NotFound(Permanent):
    """A table, snapshot, branch, tag, run or file that does not exist."""

    code = "not-found"
    exit_code = 2


class TablesElsewhere(Permanent):
    """The catalog's tables do not lie in the lake's warehouse: they are another project's."""

    code = "elsewhere"
    exit_code = 2


class FileMissing(NotFound):
    """A file that a table needs is not there. `details` has the table and the file."""

    code = "file-missing"


class ContractError(Permanent):
    """One or more contracts are wrong, or ask for a change that is not allowed.

    `problems` holds all of them, so that a person mends the file once.
    """

    code = "contract"
    exit_code = 3

    def __init__(self, problems: list[Any], next_step: str = "") -> None:
        lines = "\n".join(str(problem) for problem in problems)
        super().__init__(lines, next_step, problems=[str(problem) for problem in problems])
        self.problems = problems


class CheckFailed(Permanent):
    """Quality rules did not hold, so nothing was published."""

    code = "check-failed"
    exit_code = 4


class EngineUnavailable(Permanent):
    """An engine that the work needs cannot be started here."""

    code = "engine"
    exit_code = 6


class CatalogUnavailable(Transient):
    """The catalog is locked or cannot be reached."""

    code = "catalog"


class DiskFull(Transient):
    """There is no room for a file. Nothing of the work was published."""

    code = "disk-full"


class NotWritable(Permanent):
    """A file may not be written or read. Nothing of the work was published."""

    code = "not-writable"


class CommitConflict(Transient):
    """Somebody else committed first. Nothing of ours landed."""

    code = "conflict"


class CommitUnknown(Transient):
    """The commit may or may not have landed and could not be looked up.

    Nothing may be deleted and nothing repeated until the commit id in `details` was looked for.
    """

    code = "commit-unknown"

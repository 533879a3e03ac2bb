"""What is wrong with a contract, with the line to mend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from thermocline.errors import ContractError

DocumentPath = tuple[str | int, ...]
"""A place in a document: keys and list positions from the top, as ("schema", 0, "name")."""


@dataclass(frozen=True)
class Problem:
    """One thing to mend: in which file and line, at which column or setting, what and how."""

    path: str
    line: int
    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        subject = f"{make_printable(self.where, 100)}: " if self.where else ""
        hint = f"; {self.hint}" if self.hint else ""
        text = f"{subject}{make_printable(f'{self.what}{hint}', 500)}"
        return f"{make_printable(place, 500)}  {text}" if place else text


@dataclass
class ProblemReport:
    """Collects the problems of one file.

    A place that was already found broken is not reported again by a later check that stumbles
    over the same hole.
    """

    path: str
    line_of: Callable[[DocumentPath], int]
    problems: list[Problem] = field(default_factory=list)
    _broken: list[DocumentPath] = field(default_factory=list)

    def add(self, at: DocumentPath, where: str, what: str, hint: str = "") -> None:
        """Report what is wrong at a place of the document."""
        if not self.is_broken(at):
            self.problems.append(Problem(self.path, self.line_of(at), where, what, hint))

    def add_missing(self, at: DocumentPath, where: str, what: str, hint: str = "") -> None:
        """Report what is missing, unless something broken there is the likely reason."""
        if not any(broken[: len(at)] == at for broken in self._broken):
            self.add(at, where, what, hint)

    def is_broken(self, at: DocumentPath) -> bool:
        """Whether what lies at that place was reported as broken."""
        return any(at[: len(broken)] == broken for broken in self._broken)

    def add_broken(self, at: DocumentPath, where: str, what: str, hint: str = "") -> None:
        """Report it and expect nothing more of what lies at that place."""
        self.add(at, where, what, hint)
        self._broken.append(at)


def did_you_mean(name: str, known: Sequence[str], cutoff: float = 0.66) -> str:
    """A hint that names the closest known word, or nothing when none is close."""
    folded = {word.lower(): word for word in known}
    close = get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return f'did you mean "{folded[close[0]]}"?' if close else ""


def make_printable(text: str, limit: int) -> str:
    """A text from a file, made safe for a terminal and a log: short, no control characters."""
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def quote(value: object) -> str:
    """A value from a file, quoted for a message."""
    return f'"{make_printable(str(value), 60)}"'


def display_path(path: Path) -> str:
    """A contract's path as a person would write it: from the project, else from here."""
    path = path.absolute()
    for folder in path.parents:
        if folder.name == "contracts":
            return path.relative_to(folder.parent).as_posix()
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()


def build_contract_error(problems: Sequence[Problem]) -> ContractError:
    """The error that tells all problems at once, in the order of files and lines."""
    ordered = sorted(problems, key=lambda problem: (problem.path, problem.line))
    what = "that" if len(ordered) == 1 else f"those {len(ordered)} problems"
    return ContractError(list(ordered), f"Mend {what} in the contract. Nothing was written.")

"""Problems of contracts, with file and line."""

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
    """One problem: its file and line, the column or setting, what is wrong, and how to fix it."""

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
        """Return whether that place, or one above it, was reported as broken."""
        return any(at[: len(broken)] == broken for broken in self._broken)

    def add_broken(self, at: DocumentPath, where: str, what: str, hint: str = "") -> None:
        """Report a problem and ignore everything below that place from now on."""
        self.add(at, where, what, hint)
        self._broken.append(at)


def did_you_mean(name: str, known: Sequence[str], cutoff: float = 0.66) -> str:
    """Return a hint with the closest known word, or an empty text."""
    folded = {word.lower(): word for word in known}
    close = get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return f'did you mean "{folded[close[0]]}"?' if close else ""


def make_printable(text: str, limit: int) -> str:
    """Make a text from a file safe for terminals and logs: shorten it, escape control codes."""
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def quote(value: object) -> str:
    """Quote a value from a file for a message."""
    return f'"{make_printable(str(value), 60)}"'


def display_path(path: Path) -> str:
    """Return a contract's path relative to the project, or to the current folder."""
    path = path.absolute()
    for folder in path.parents:
        if folder.name == "contracts":
            return path.relative_to(folder.parent).as_posix()
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()


def build_contract_error(problems: Sequence[Problem]) -> ContractError:
    """Return one error with all problems, ordered by file and line."""
    ordered = sorted(problems, key=lambda problem: (problem.path, problem.line))
    what = "this problem" if len(ordered) == 1 else f"these {len(ordered)} problems"
    return ContractError(list(ordered), f"Fix {what} in the contract. Nothing was written.")

"""Durations of test files, so that two processes that run whole files finish together.

`make durations` measures; the result is kept in `durations.json`. A file that is not in it counts
by its number of tests.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILE = HERE / "durations.json"
A_TEST = 0.5
"""Assumed seconds of a test that was never measured."""


def ordered(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order tests by file, the longest first, so that the processes finish together."""
    known: dict[str, float] = json.loads(FILE.read_text()) if FILE.is_file() else {}
    tests = Counter(item.path for item in items)

    def seconds(path: Path) -> float:
        return known.get(path.relative_to(HERE).as_posix(), A_TEST * tests[path])

    return sorted(items, key=lambda item: (-seconds(item.path), item.path))


class Measured:
    """Sums the durations of a run by file, and stores them after a complete run."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's setup, call or teardown to its file."""
        file = report.nodeid.partition("::")[0].removeprefix(f"{HERE.name}/")
        self._seconds[file] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the file, longest first."""
        if self._seconds:
            found = {file: round(seconds, 1) for file, seconds in self._seconds.most_common()}
            FILE.write_text(json.dumps(found, indent=1) + "\n")

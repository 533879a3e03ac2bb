"""Ctrl-C and SIGTERM at random moments of every command that works for long.

    python -m benchmarks.interrupts --moments 20 --seed 1

Each command runs once undisturbed, which says how long it takes; then it is interrupted at random
moments of that time, `--moments` times for the process alone and as often for its process group, as
a terminal does. Every time it must end with the documented exit code, leave no process behind after
three seconds, and report no bug. What was interrupted goes on in the next trial; when a trial was
too late, and in the end, every table is held against a lake that was never disturbed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.shop_project import contents, environment, make_shop, opened
from tests.interrupted import Ended, started

WAYS = ("process", "group")
NUMBERS = (signal.SIGINT, signal.SIGINT, signal.SIGTERM)
"""Two of three signals are Ctrl-C's."""


@dataclass(frozen=True)
class Command:
    """A command, the state of the shop that it begins from, and its code for a clean end.

    `endless` ones are interrupted within so many seconds, and have no result of their own.
    """

    name: str
    arguments: Sequence[str]
    begins: str
    ends: str
    clean: int | None = None
    endless: float = 0.0


PROJECT = "{project}"
"""Where a command is to name the project's folder itself."""
COUNT = "select count(*) from silver.orders"
COMMANDS = (
    Command("ingest", ["ingest"], "empty", "ingested"),
    Command("run", ["run"], "ingested", "built"),
    Command("backfill", ["backfill", "gold.daily_revenue", "--workers", "2"], "built", "built"),
    Command("query", ["query", "--engine", "spark", COUNT], "built", "built"),
    Command("stream", ["stream", "--then", "layer:silver"], "empty", "ingested", 0, 45),
    Command("serve", ["serve", "--port", "0", "--nodes", "1"], "built", "built", 0, 12),
    Command("demo", ["demo", PROJECT], "empty", "built"),
)
FINISHED_BY = {"stream": ["ingest"]}
"""What takes in the rest, for a command that does not end by itself."""


@dataclass
class Tally:
    """The results of the trials of one command."""

    trials: int = 0
    late: int = 0
    broken: int = 0
    seconds: list[float] = field(default_factory=list)
    codes: Counter[int | None] = field(default_factory=Counter)

    def note(self, ended: Ended) -> None:
        """Count a trial."""
        self.trials += 1
        self.seconds.append(ended.seconds)
        self.codes[ended.code] += 1

    def __str__(self) -> str:
        codes = ", ".join(f"{count} × {code}" for code, count in self.codes.most_common())
        return (
            f"{self.trials:>7} {self.late:>9} {self.broken:>7} "
            f"{statistics.median(self.seconds):>9.2f} {max(self.seconds):>8.2f}  {codes}"
        )


class Trials:
    """The shop in the states that commands begin from, and trials on it in one folder.

    It is always the same folder: a lake's files name their place.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder, self._chance = folder, chance
        self._project, self._states = folder / "shop", folder / "states"
        self._environ = environment({"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"})
        make_shop(self._project)
        self._save("empty")
        self._expected: dict[str, dict[str, list[str]]] = {}
        for state, arguments in (("ingested", ["ingest"]), ("built", ["run"])):
            self._finish(arguments)
            self._expected[state] = self._contents()
            self._save(state)

    def play(self, command: Command, moments: int) -> Tally:
        """Interrupt a command so many times in each way."""
        tally = Tally()
        self._restore(command.begins)
        span = command.endless or self._finish(command.arguments)
        self._restore(command.begins)
        done = False
        for number in range(moments * len(WAYS)):
            way, signalled = WAYS[number % len(WAYS)], NUMBERS[number % len(NUMBERS)]
            moment = self._chance.uniform(0, span)
            ended = self._interrupted(command, moment, way, signalled)
            flaw = ended.flaw(signalled, command.clean)
            tally.note(ended)
            if flaw is not None:
                tally.broken += 1
                print(f"BROKEN {command.name}, {way}, at {moment:.2f} s: {flaw}", flush=True)
            done = ended.code == 0 and not command.endless
            if done:
                tally.late += 1
                tally.broken += self._differs(command)
                self._restore(command.begins)
        if not done:
            if command.name != "serve":
                self._finish(FINISHED_BY.get(command.name, command.arguments))
            tally.broken += self._differs(command)
        return tally

    def _interrupted(self, command: Command, moment: float, way: str, number: int) -> Ended:
        words = ["-C", self._project, *self._worded(command.arguments)]
        with started(words, self._environ, self._folder) as process:
            until = process.seconds + moment
            process.wait_until(lambda it: it.seconds > until)
            return process.interrupt(way, number)

    def _worded(self, arguments: Sequence[str]) -> list[str]:
        return [str(self._project) if each == PROJECT else each for each in arguments]

    def _finish(self, arguments: Sequence[str]) -> float:
        """Run a command undisturbed; how long it took."""
        began = time.monotonic()
        program = [sys.executable, "-m", "thermocline"]
        words = [*program, "-C", self._project, *self._worded(arguments)]
        done = subprocess.run(
            words, env=self._environ, capture_output=True, text=True, cwd=self._project
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
        return time.monotonic() - began

    def _differs(self, command: Command) -> bool:
        """Whether a table holds other rows than in a lake that was never disturbed."""
        found = self._contents()
        expected = self._expected[command.ends]
        wrong = sorted(table for table in expected if found.get(table) != expected[table])
        if wrong:
            print(f"BROKEN {command.name}: other rows in {', '.join(wrong)}", flush=True)
        return bool(wrong)

    def _contents(self) -> dict[str, list[str]]:
        house = opened(self._project, self._environ)
        try:
            return contents(house, "duckdb")
        finally:
            house.close()

    def _save(self, state: str) -> None:
        shutil.copytree(self._project, self._states / state)

    def _restore(self, state: str) -> None:
        shutil.rmtree(self._project)
        shutil.copytree(self._states / state, self._project)


def main() -> int:
    """Play the trials of every command, and report each in a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[each.name for each in COMMANDS])
    asked = parser.parse_args()
    broken = 0
    print("command     trials  too late  broken  median s   most s  exit codes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder), random.Random(asked.seed))
        for command in COMMANDS:
            if command.name in asked.only:
                tally = trials.play(command, asked.moments)
                broken += tally.broken
                print(f"{command.name:<10} {tally}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

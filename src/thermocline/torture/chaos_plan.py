"""What is done to the pipeline and when, decided by a seed before anything starts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

POINTS = (
    "ingest.read", "draft.begun", "commit.before", "commit.files-written", "commit.after",
    "ingest.committed-bronze", "ingest.committed-quarantine", "publish.before", "publish.staging",
    "publish.staged", "publish.swapping", "publish.swapped", "publish.after", "ingest.published",
    "run.planned", "step.before", "step.after", "run.checked",
)  # fmt: skip
"""Where a process may be asked to kill itself; see lake.faults."""

MOST_BATCHES = 3
LONGEST_DELAY = 2.0
HOLD_SECONDS = (1.0, 6.0)


class Deed(StrEnum):
    """What may be done to a running pipeline."""

    KILL = "kill -9 of the process and its JVM"
    KILL_PYTHON = "kill -9 of the process alone"
    KILL_JVM = "kill -9 of its JVM alone"
    KILL_READER = "kill -9 of the log reader alone"
    CRASH = "killed by itself at a named point"
    LOCK = "catalog not reachable for some seconds"
    RESTART = "a server restarted"
    COMPACT = "bronze compacted while it streams"


NEED_A_BATCH = frozenset({Deed.KILL_READER, Deed.COMPACT})
GOES_ON = frozenset({Deed.KILL_READER, Deed.LOCK, Deed.RESTART, Deed.COMPACT})
"""After these the process is to go on by itself."""


@dataclass(frozen=True)
class Round:
    """One life of the process: how many events are sent in it, and how it ends.

    The deed is done `delay` seconds after the process landed its `batches`-th batch. `nth` says at
    which passing of `point` it kills itself; `which` chooses a server to restart.
    """

    number: int
    events: int
    deed: Deed
    batches: int
    delay: float
    point: str = ""
    nth: int = 1
    hold: float = 0.0
    which: int = 0

    def __str__(self) -> str:
        match self.deed:
            case Deed.CRASH:
                return f"killed at {self.point}:{self.nth}"
            case Deed.LOCK:
                return f"catalog away for {self.hold:.1f} s"
            case _:
                return str(self.deed)


def _shares(chance: random.Random, events: int, parts: int) -> list[int]:
    """Events in uneven parts, none of them empty while there are enough."""
    weights = [chance.uniform(0.2, 1.8) for _ in range(parts)]
    cuts = [round(events * sum(weights[:n]) / sum(weights)) for n in range(parts + 1)]
    return [after - before for before, after in pairwise(cuts)]


def plan(
    seed: int, kills: int, events: int, *, lockable: bool, servers: int, reader: bool
) -> list[Round]:
    """The rounds of a trial. The same arguments give the same rounds.

    Only what can be done is: the catalog may be `lockable`, there may be `servers` to restart, and
    a `reader`, a process of its own that reads a source.
    """
    chance = random.Random(seed)  # noqa: S311  not a secret: it shall be repeatable
    weights = {
        Deed.KILL: 6,
        Deed.KILL_PYTHON: 3,
        Deed.KILL_JVM: 2,
        Deed.KILL_READER: 2 if reader else 0,
        Deed.CRASH: 9,
        Deed.LOCK: 1 if lockable else 0,
        Deed.RESTART: 2 if servers else 0,
        Deed.COMPACT: 1,
    }
    shares = _shares(chance, events, kills + 1)
    rounds = []
    for number in range(kills):
        deed = chance.choices(list(weights), list(weights.values()))[0]
        rounds.append(
            Round(
                number + 1,
                shares[number],
                deed,
                batches=chance.randint(1 if deed in NEED_A_BATCH else 0, MOST_BATCHES),
                delay=chance.uniform(0, LONGEST_DELAY),
                point=chance.choice(POINTS) if deed is Deed.CRASH else "",
                nth=chance.randint(1, 4),
                hold=chance.uniform(*HOLD_SECONDS),
                which=chance.randrange(servers) if servers else 0,
            )
        )
    return rounds

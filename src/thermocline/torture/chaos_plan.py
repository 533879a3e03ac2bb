"""Plan what is done to the pipeline and when, by a seed."""

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
"""Points at which a process may kill itself; see `lake.crash_points`."""

MAX_BATCHES = 3
MAX_DELAY = 2.0
HOLD_SECONDS = (1.0, 6.0)


class ChaosAction(StrEnum):
    """An action on a running pipeline."""

    KILL = "kill -9 of the process and its JVM"
    KILL_PYTHON = "kill -9 of the process alone"
    KILL_JVM = "kill -9 of its JVM alone"
    KILL_READER = "kill -9 of the log reader alone"
    CRASH = "killed by itself at a named point"
    LOCK = "catalog not reachable for some seconds"
    RESTART = "a server restarted"
    COMPACT = "bronze compacted while it streams"


NEEDS_BATCH = frozenset({ChaosAction.KILL_READER, ChaosAction.COMPACT})
SURVIVABLE = frozenset(
    {ChaosAction.KILL_READER, ChaosAction.LOCK, ChaosAction.RESTART, ChaosAction.COMPACT}
)
"""The process must survive these actions."""


@dataclass(frozen=True)
class Round:
    """One run of the process: how many events are sent during it, and how it ends.

    The action happens `delay` seconds after the process landed its `batches`-th batch. The process
    kills itself when it reaches `point` for the `nth` time; `which` is the server to restart.
    """

    number: int
    events: int
    action: ChaosAction
    batches: int
    delay: float
    point: str = ""
    nth: int = 1
    hold: float = 0.0
    which: int = 0

    def __str__(self) -> str:
        match self.action:
            case ChaosAction.CRASH:
                return f"killed at {self.point}:{self.nth}"
            case ChaosAction.LOCK:
                return f"catalog away for {self.hold:.1f} s"
            case _:
                return str(self.action)


def _shares(rng: random.Random, events: int, parts: int) -> list[int]:
    """Split the events into uneven parts, none of them empty if there are enough."""
    weights = [rng.uniform(0.2, 1.8) for _ in range(parts)]
    cuts = [round(events * sum(weights[:n]) / sum(weights)) for n in range(parts + 1)]
    return [after - before for before, after in pairwise(cuts)]


def plan_rounds(
    seed: int, kills: int, events: int, *, lockable: bool, servers: int, reader: bool
) -> list[Round]:
    """Plan the rounds of a trial. Equal arguments give equal rounds.

    Only possible actions are planned: the catalog may be `lockable`, there may be `servers` to
    restart, and a `reader`, a separate process that reads a source.
    """
    rng = random.Random(seed)  # noqa: S311  not a secret: it must be repeatable
    weights = {
        ChaosAction.KILL: 6,
        ChaosAction.KILL_PYTHON: 3,
        ChaosAction.KILL_JVM: 2,
        ChaosAction.KILL_READER: 2 if reader else 0,
        ChaosAction.CRASH: 9,
        ChaosAction.LOCK: 1 if lockable else 0,
        ChaosAction.RESTART: 2 if servers else 0,
        ChaosAction.COMPACT: 1,
    }
    shares = _shares(rng, events, kills + 1)
    rounds = []
    for number in range(kills):
        action = rng.choices(list(weights), list(weights.values()))[0]
        rounds.append(
            Round(
                number + 1,
                shares[number],
                action,
                batches=rng.randint(1 if action in NEEDS_BATCH else 0, MAX_BATCHES),
                delay=rng.uniform(0, MAX_DELAY),
                point=rng.choice(POINTS) if action is ChaosAction.CRASH else "",
                nth=rng.randint(1, 4),
                hold=rng.uniform(*HOLD_SECONDS),
                which=rng.randrange(servers) if servers else 0,
            )
        )
    return rounds

"""A worker process: a piece a line comes in, what came of it goes out, until no more come.

    python -m thermocline.transform.workers PROJECT --memory 1073741824 --threads 1 < pieces

When its coordinator dies, its input ends, and it ends after the piece that it has in hand.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from thermocline.errors import Permanent, ThermoclineError


def main() -> None:
    """Do the pieces that come in by lines."""
    asked = argparse.ArgumentParser(prog="worker")
    asked.add_argument("project", type=Path)
    asked.add_argument("--profile")
    asked.add_argument("--memory", type=int)
    asked.add_argument("--threads", type=int, default=1)
    told = asked.parse_args()
    # What libraries print must not get among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for answer in answered(told.project, told.profile, sys.stdin, told.memory, told.threads):
        print(json.dumps(answer), file=answers, flush=True)


def answered(
    project: Path, profile: str | None, lines: TextIO, memory: int | None, threads: int
) -> Iterator[dict[str, Any]]:
    """For each line with a piece: what was done, or the error in its one JSON shape."""
    from thermocline import config, telemetry
    from thermocline.transform.workers import opened
    from thermocline.transform.workers.work_unit import Piece
    from thermocline.transform.workers.worker import brake

    settings = config.load_settings(project, profile)
    telemetry.hide(secret.reveal() for secret in settings.secrets())
    share = settings.workers.bytes if memory is None else memory
    with opened.worker(settings, share, threads) as worker:
        worker.warm()
        brake(share)
        for line in lines:
            if not line.strip():
                continue
            try:
                yield {"done": worker.do(Piece.from_dict(_parsed(line))).as_dict()}
            except ThermoclineError as error:
                yield json.loads(telemetry.redact(json.dumps(error.as_dict(), default=str)))
            except Exception as error:  # noqa: BLE001  the edge of the process: told, not lost
                said = telemetry.one_line(f"{type(error).__name__}: {error}")
                bug = Permanent(telemetry.redact(said)[:500], "This is a bug; please report it.")
                yield bug.as_dict()


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


if __name__ == "__main__":
    main()

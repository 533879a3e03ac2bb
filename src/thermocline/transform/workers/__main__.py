"""A worker process: it reads work units from standard input and answers each with a line of JSON.

    python -m thermocline.transform.workers PROJECT --memory 1073741824 --threads 1 < units

When its coordinator dies, its input ends, and the worker ends after its current unit.
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
    """Compute the work units on standard input."""
    parser = argparse.ArgumentParser(prog="worker")
    parser.add_argument("project", type=Path)
    parser.add_argument("--profile")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    # Keep the output of libraries out of the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for answer in answer_lines(
        arguments.project, arguments.profile, sys.stdin, arguments.memory, arguments.threads
    ):
        print(json.dumps(answer), file=answers, flush=True)


def answer_lines(
    project: Path, profile: str | None, lines: TextIO, memory: int | None, threads: int
) -> Iterator[dict[str, Any]]:
    """Yield, for each line with a work unit, its result or its error as JSON values."""
    from thermocline import config, telemetry
    from thermocline.transform.workers.partition_worker import limit_memory, open_worker
    from thermocline.transform.workers.work_unit import WorkUnit

    settings = config.load_settings(project, profile)
    telemetry.hide(secret.reveal() for secret in settings.secrets())
    share = settings.workers.bytes if memory is None else memory
    with open_worker(settings, share, threads) as worker:
        worker.warm_up()
        limit_memory(share)
        for line in lines:
            if not line.strip():
                continue
            try:
                yield {"done": worker.compute(WorkUnit.from_dict(_parse_line(line))).as_dict()}
            except ThermoclineError as error:
                yield json.loads(telemetry.redact(json.dumps(error.as_dict(), default=str)))
            except Exception as error:  # noqa: BLE001  the edge of the process: report it
                text = telemetry.one_line(f"{type(error).__name__}: {error}")
                bug = Permanent(telemetry.redact(text)[:500], "This is a bug; please report it.")
                yield bug.as_dict()


def _parse_line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


if __name__ == "__main__":
    main()

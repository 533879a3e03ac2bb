"""The maintenance service as a process beside a server or a stream.

    python -m thermocline.maintain PROJECT [--profile NAME] < pipe

When the process that started it dies, its input ends, and it ends after its current task.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

LOG = "maintain.log"


def main() -> None:
    """Maintain a project's tables until the input ends."""
    parser = argparse.ArgumentParser(prog="maintain")
    parser.add_argument("project", type=Path)
    parser.add_argument("--profile")
    arguments = parser.parse_args()
    stop = Event()
    Thread(target=_wait_for_end_of_input, args=[stop], daemon=True).start()
    maintain(arguments.project, arguments.profile, stop)


def maintain(project: Path, profile: str | None, stop: Event) -> None:
    """Maintain a project's tables until `stop` is set."""
    from thermocline import telemetry
    from thermocline.config import load_settings, private_files
    from thermocline.lake import Lake
    from thermocline.maintain.maintenance_policy import MaintenancePolicy
    from thermocline.maintain.standing_service import StandingService

    settings = load_settings(project, profile)
    telemetry.hide(secret.reveal() for secret in settings.secrets())
    log = private_files.ensure_log(settings.project, LOG)
    telemetry.configure_log(log, largest=private_files.MAX_LOG_BYTES)
    with closing(Lake(settings)) as lake:
        service = StandingService(lake, MaintenancePolicy.from_settings(settings.maintain))
        for _ in service.run(stop):
            pass


def _wait_for_end_of_input(stop: Event) -> None:
    while sys.stdin.buffer.read(1024):
        pass
    stop.set()


if __name__ == "__main__":
    main()

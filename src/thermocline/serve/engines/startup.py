"""The startup of a process that answers cold queries: arguments, token and settings."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from thermocline import config, interrupt, telemetry
from thermocline.config import Settings
from thermocline.serve.wire import worker


@dataclass(frozen=True)
class WorkerArguments:
    """The project's settings, the address to listen on, the token and the number of threads."""

    settings: Settings
    address: str
    token: str
    threads: int


def read_arguments(program: str, threads: int) -> WorkerArguments:
    """Read the arguments, standard input and the project; redact its secrets from then on."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--profile")
    parser.add_argument("--address", required=True)
    parser.add_argument("--threads", type=int, default=threads)
    arguments = parser.parse_args()
    interrupt.join_parent_group()
    token = worker.receive_token()
    telemetry.configure_log(level="WARNING")
    settings = config.load_settings(arguments.project, arguments.profile, worker.receive_settings())
    telemetry.hide(secret.reveal() for secret in settings.secrets())
    return WorkerArguments(settings, arguments.address, token, arguments.threads)

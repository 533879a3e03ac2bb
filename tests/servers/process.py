"""Run a real server as a child process: start it, wait until it is ready, stop it by its pid."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Servers are ready in two seconds; a loaded machine with two cores may need many times that.
PATIENCE = 60.0


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Return whether a server accepts connections."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    *,
    log: Path,
    ready: Callable[[], bool],
    environ: Mapping[str, str] | None = None,
    stop_with: signal.Signals = signal.SIGTERM,
    **options: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` during the block, which starts when the server is ready.

    What it says goes to `log`, whose end is in the error when it dies or is not ready in time.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            **options,
        )
    try:
        _await(process, ready, log)
        yield process
    finally:
        _stop(process, stop_with)


def _stop(process: subprocess.Popen[bytes], request: signal.Signals) -> None:
    """Terminate the process, and kill it if it does not end."""
    process.send_signal(request)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        end = process.poll()
        if end is not None or time.monotonic() > deadline:
            state = f"ended with {end}" if end is not None else f"is not ready in {PATIENCE:.0f} s"
            said = log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{process.args!r} {state}:\n{said}")
        time.sleep(0.05)
    # Somebody else could have taken the port meanwhile and answered in its place.
    if process.poll() is not None:
        raise RuntimeError(f"It ended while being awaited:\n{log.read_text(errors='replace')}")

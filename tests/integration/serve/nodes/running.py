"""A worker process as the router starts it, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from thermocline.serve.wire.protocol import BlockingChannel, Frame

TOKEN = "a-token-for-tests"
BASE_VARIABLES = ("PATH", "LANG", "TZ", "PYTHONPATH", "VIRTUAL_ENV")


class Running:
    """A process that said it is ready. Leaving it ends it."""

    def __init__(
        self, folder: Path, *command: str, environment: dict[str, str] | None = None
    ) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.address = f"unix:{folder / 'w.sock'}"
        self.process = subprocess.Popen(
            [sys.executable, *command, "--address", self.address],
            env={name: os.environ[name] for name in BASE_VARIABLES if name in os.environ}
            | (environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{TOKEN}\n".encode())
        self.process.stdin.flush()
        self.said = self.process.stdout.readline()

    def line(self, timeout: float | None = 60) -> BlockingChannel:
        """A connection of its own."""
        return BlockingChannel.open(self.address, TOKEN, timeout)

    def stop(self) -> int:
        """Close its standard input, and give the code it ended with."""
        assert self.process.stdin
        self.process.stdin.close()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired as error:
            raise AssertionError("It outlived its standard input.") from error
        finally:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe:
                    pipe.close()

    def __enter__(self) -> Running:
        if self.said != b"ready\n":
            assert self.process.stderr
            raise AssertionError(self.process.stderr.read().decode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def ok(frame: Frame) -> dict[str, Any]:
    """What a reply says that must not be an error."""
    assert frame.header.get("ok") is True, frame.header
    return frame.header


def code(frame: Frame) -> str:
    """The code of a reply that must be an error."""
    assert frame.error is not None, frame.header
    assert "\n" not in frame.error["cause"]
    return str(frame.error["code"])

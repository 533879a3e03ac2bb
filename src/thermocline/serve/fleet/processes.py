"""Supervise the processes behind the router: start, connect, stop and restart them.

Each gets its token on standard input, an environment without secrets, and a socket in a folder
that only this user can enter. One that opens the lake gets the settings of the environment on
standard input too. It ends when the router does, because its standard input then closes. A process
that dies is restarted after a pause that grows while it keeps dying.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thermocline import interrupt, telemetry
from thermocline.config import is_setting
from thermocline.errors import Transient
from thermocline.serve.wire.protocol import Channel

START_SECONDS = 240.0  # Spark on a busy machine; with a shorter limit it would never start
END_SECONDS = 3.0
RECONNECT_SECONDS = 0.5
RESTART_DELAYS = (0.05, 0.2, 1.0, 3.0, 10.0)
STEADY_SECONDS = 30.0
BASE_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
"""Environment variables of a process without access to the lake."""
LAKE_VARIABLES = frozenset(
    {
        "HOME", "USER", "LOGNAME", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONHOME",
        "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE", "KRB5_CONFIG", "KRB5CCNAME", "JAVA_HOME", "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_HOME", "SPARK_CONF_DIR",
        "SPARK_LOCAL_DIRS", "HADOOP_CONF_DIR", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON",
        "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_EC2_METADATA_DISABLED", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "THERMOCLINE_CACHE", "THERMOCLINE_IVY_SETTINGS", "THERMOCLINE_LOG",
        "THERMOCLINE_LOG_LEVEL", "THERMOCLINE_CRASH_AT", "THERMOCLINE_CRASH_ONCE",
        "THERMOCLINE_FREEZE_AT",
    }
)  # fmt: skip
"""Further variables of a process that opens the lake: paths and switches, no secrets.

A query that makes an engine reveal its environment can only reveal these.
"""


class NotRunning(Transient):
    """The process is not running at the moment."""

    code = "not-running"


@dataclass(frozen=True)
class WorkerProgram:
    """The module that a worker process runs, and its arguments.

    `opens_lake` is whether it reads the project's settings, and so receives those of the router's
    environment. `memory` is the resident memory at which it is killed; None for no limit. `nice` is
    added to its nice value.
    """

    name: str
    module: str
    arguments: Sequence[str] = ()
    opens_lake: bool = False
    memory: int | None = None
    nice: int = 0


StatusCallback = Callable[["WorkerHandle"], None]
"""Called when a worker connected or disconnected."""


def worker_environment(opens_lake: bool) -> dict[str, str]:
    """Return the environment of a worker process."""
    allowed = {*BASE_VARIABLES, *(LAKE_VARIABLES if opens_lake else ())}
    return {name: value for name, value in os.environ.items() if name in allowed}


def encode_startup_message(
    token: str, opens_lake: bool, environ: Mapping[str, str] = os.environ
) -> bytes:
    """Return what a worker reads first: its token and, when it opens the lake, the settings."""
    if not opens_lake:
        return f"{token}\n".encode()
    settings = {name: value for name, value in environ.items() if is_setting(name)}
    return f"{token}\n{json.dumps(settings)}\n".encode()


class WorkerHandle(ABC):
    """A worker that may be down for a while: the interface of child processes and remote nodes."""

    def __init__(
        self, name: str, address: str, token: str, on_status_change: StatusCallback
    ) -> None:
        self.name = name
        self.address = address
        self.token = token
        self.restarts = -1
        """How often it was reconnected; -1 before the first connection."""
        self._on_status_change = on_status_change
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether it accepts requests now."""
        return self._channel is not None and self._channel.alive

    @property
    def channel(self) -> Channel:
        """The channel to it. Raises NotRunning when it is down."""
        if self._channel is None or not self._channel.alive:
            raise NotRunning(f"{self.name} is not running at the moment.", "Retry.")
        return self._channel

    @property
    def pid(self) -> int | None:
        """The id of its process, for a running child process."""
        return None

    def start(self) -> None:
        """Start to supervise it."""
        if self._task is None:
            self._task = asyncio.create_task(self._run_forever(), name=f"keep {self.name}")

    async def wait_until_up(self, seconds: float) -> bool:
        """Wait until it accepts requests; return whether it does."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.is_up and loop.time() < until:
            await asyncio.sleep(0.02)
        return self.is_up

    async def stop(self) -> None:
        """Stop supervising it, and end it if it is a child process."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @abstractmethod
    def kill(self, reason: str) -> None:
        """End its current work at once; it is restarted or reconnected."""

    @abstractmethod
    async def _run_forever(self) -> None:
        """Keep it connected until cancelled."""

    async def _connect(self) -> None:
        self._channel = await Channel.open(self.address, self.token)
        self.restarts += 1
        self._on_status_change(self)

    async def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
            self._on_status_change(self)


class SupervisedProcess(WorkerHandle):
    """A child process that is kept running."""

    def __init__(
        self,
        program: WorkerProgram,
        folder: Path,
        on_status_change: StatusCallback = lambda worker: None,
    ) -> None:
        address = f"unix:{folder / program.name}.sock"
        super().__init__(program.name, address, secrets.token_urlsafe(32), on_status_change)
        self.program = program
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The id of its process, while it runs."""
        return self._process.pid if self._process else None

    def kill(self, reason: str) -> None:
        """Kill the process; it is restarted."""
        if self._process is not None and self._process.returncode is None:
            telemetry.log("serve", "killed", level="WARNING", child=self.name, reason=reason)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _run_forever(self) -> None:
        loop = asyncio.get_running_loop()
        quick = 0
        while True:
            began = loop.time()
            try:
                await self._run_once()
            except (OSError, Transient) as error:  # a TimeoutError is an OSError
                telemetry.log(
                    "serve", "not started", level="ERROR", child=self.name, error=repr(error)
                )
            quick = 0 if loop.time() - began > STEADY_SECONDS else quick + 1
            await asyncio.sleep(RESTART_DELAYS[min(quick, len(RESTART_DELAYS)) - 1] if quick else 0)

    async def _run_once(self) -> None:
        """Start the process, connect to it, and wait until it ends."""
        program = self.program
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", program.module, "--address", self.address, *program.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=worker_environment(program.opens_lake),
            # Ctrl-C is for the router, which stops them in order: their own process group keeps the
            # signal from them. Not a session: Linux divides the processor among sessions first, and
            # nice values only count within one. (uvloop has no `process_group`.)
            preexec_fn=os.setpgrp,
        )  # fmt: skip
        interrupt.adopt_child(process)
        try:
            assert process.stdin is not None and process.stdout is not None
            if program.nice:  # before it has threads, which inherit it
                os.setpriority(os.PRIO_PROCESS, process.pid, os.nice(0) + program.nice)
            process.stdin.write(encode_startup_message(self.token, program.opens_lake))
            reply = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
            if reply.strip() != b"ready":
                raise NotRunning(f"{self.name} did not start.", "The log says why.")
            await self._connect()
            await process.wait()
        finally:
            await self._disconnect()
            await _stop_process(process)
            self._process = None


class RemoteNode(WorkerHandle):
    """A node on another machine, which this server only connects to."""

    def kill(self, reason: str) -> None:
        """Drop the connection; a new one is opened."""
        telemetry.log("serve", "dropped", level="WARNING", child=self.name, reason=reason)
        self._must_reconnect = True

    _must_reconnect = False

    async def _run_forever(self) -> None:
        try:
            while True:
                if not self.is_up or self._must_reconnect:
                    self._must_reconnect = False
                    await self._disconnect()
                    with contextlib.suppress(OSError, Transient):
                        await self._connect()
                await asyncio.sleep(RECONNECT_SECONDS)
        finally:
            await self._disconnect()


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    """End a process: close its standard input, and kill it when that does not suffice."""
    if process.returncode is None and process.stdin is not None:
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

"""Run the server: its socket, its limits, and the record of where it listens."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from thermocline import interrupt
from thermocline.config import Settings
from thermocline.errors import BadInput, EngineUnavailable
from thermocline.serve.http import server_record, timeouts
from thermocline.serve.http.scheduling import shorten_time_slices

if TYPE_CHECKING:
    from starlette.applications import Starlette

KEEP_ALIVE_SECONDS = 30
GRACEFUL_SECONDS = 1
END_SECONDS = 1.6
"""Seconds that callers and worker processes have to end after a signal."""
BACKLOG = 1024
OWN_FILES = 300
"""Open files that are not connections of callers: sockets of workers, libraries, the log."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises BadInput when that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number) if number and number > 0 else "it is no address"
        raise BadInput(
            f"Cannot listen on {host}:{port}: {reason}.",
            "Choose another with --host and --port (0 means any free port).",
        ) from error


def server_url(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def build_config(app: Starlette) -> uvicorn.Config:
    """Return uvicorn's configuration: no log, no trusted proxy headers, short shutdown."""
    timeouts.silence_uvicorn_logs()
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=timeouts.BoundedHttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )


def serve(
    app: Starlette,
    settings: Settings,
    began: Callable[[server_record.ServerRecord], Coroutine[Any, Any, None]],
) -> None:
    """Serve until SIGINT or SIGTERM. Run `began` with the server's record once it accepts."""
    project = settings.project
    listening = listen(settings.serve.host, settings.serve.port)
    _raise_file_limit()
    server = _Server(build_config(app))

    def started() -> None:
        gc.freeze()  # what is loaded stays: garbage collection can skip it
        shorten_time_slices()
        note = server_record.write_record(settings, server_url(listening))
        server.start_task = asyncio.create_task(began(note), name="on started")

    server.on_start, server.on_stop = started, lambda: server_record.remove_record(project)
    finishing = interrupt.finish_on_signal(lambda _: None, seconds=END_SECONDS, code=0)
    with listening, finishing:
        try:
            server.run(sockets=[listening])
        except SystemExit as error:
            # uvicorn exits like this when the application did not start.
            failed: BaseException | None = getattr(app.state, "failed", None)
            raise failed or EngineUnavailable("The server did not start.") from error
        finally:
            server_record.remove_record(project)


class _Server(uvicorn.Server):
    """uvicorn's server with callbacks at its start and before its end."""

    on_start: Callable[[], None]
    on_stop: Callable[[], None]
    start_task: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. uvicorn's own handler would raise the signal again at the end."""
        interrupt.handle_signal(sig)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_stop()
        if self.start_task is not None:
            self.start_task.cancel()
        await super().shutdown(sockets)


def _raise_file_limit() -> None:
    """Raise the limit of open files, and derive the maximum of connections from it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = timeouts.MAX_CONNECTIONS + OWN_FILES
    if soft < needed:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    timeouts.BoundedHttpProtocol.max_connections = max(
        16, min(timeouts.MAX_CONNECTIONS, soft - OWN_FILES)
    )

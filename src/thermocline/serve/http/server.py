"""A server from start to end: its socket, its limits, and the note that says where it is."""

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
from thermocline.serve.http import patience, standing
from thermocline.serve.http.turns import take_short_turns

if TYPE_CHECKING:
    from starlette.applications import Starlette

KEEP_ALIVE_SECONDS = 30
GRACEFUL_SECONDS = 1
END_SECONDS = 1.6
"""From the signal on, callers and processes behind the router have so long to come to an end."""
BACKLOG = 1024
OWN_FILES = 300
"""Open files that are not connections of callers: sockets of workers, libraries, the log."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises BadInput when that cannot be."""
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


def address(listening: socket.socket) -> str:
    """The URL under which a socket is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def configuration(app: Starlette) -> uvicorn.Config:
    """How uvicorn runs the application: nothing logged, no header believed, nobody waited for."""
    patience.quiet()
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=patience.Patient,
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
    began: Callable[[standing.Standing], Coroutine[Any, Any, None]],
) -> None:
    """Serve until SIGINT or SIGTERM. `began` is run with where, once connections are taken."""
    project = settings.project
    listening = listen(settings.serve.host, settings.serve.port)
    _make_places()
    server = _Server(configuration(app))

    def started() -> None:
        gc.freeze()  # what was loaded stays: nobody waits while it is searched for garbage
        take_short_turns()
        note = standing.leave(settings, address(listening))
        server.telling = asyncio.create_task(began(note), name="tell where")

    server.on_start, server.on_stop = started, lambda: standing.remove(project)
    finishing = interrupt.finish_on_signal(lambda _: None, seconds=END_SECONDS, code=0)
    with listening, finishing:
        try:
            server.run(sockets=[listening])
        except SystemExit as error:
            # uvicorn leaves so when the application did not start.
            failed: BaseException | None = getattr(app.state, "failed", None)
            raise failed or EngineUnavailable("The server did not start.") from error
        finally:
            standing.remove(project)


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it began and when it is about to end."""

    on_start: Callable[[], None]
    on_stop: Callable[[], None]
    telling: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End in order. uvicorn would raise the signal once more in the end."""
        interrupt.handle_signal(sig)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_stop()
        if self.telling is not None:
            self.telling.cancel()
        await super().shutdown(sockets)


def _make_places() -> None:
    """Allow as many open files as the system lets us, and as many connections as that gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = patience.CONNECTIONS + OWN_FILES
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    patience.Patient.places = max(16, min(patience.CONNECTIONS, soft - OWN_FILES))

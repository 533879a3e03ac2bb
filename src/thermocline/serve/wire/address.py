"""Where a process of serving listens: `unix:/path` or `tcp:host:port`."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import Any

from thermocline.errors import ConfigError


def endpoint(address: str) -> tuple[socket.AddressFamily, Any]:
    """What the operating system calls an address."""
    kind, _, place = address.partition(":")
    if kind == "unix" and place.startswith("/") and "\0" not in place:
        if len(place.encode()) > 100:
            raise ConfigError(f"The socket's path is too long: {place}", "Use a shorter folder.")
        return socket.AF_UNIX, place
    host, _, port = place.rpartition(":")
    if kind == "tcp" and host and port.isascii() and port.isdigit() and int(port) < 65536:
        host = host.removeprefix("[").removesuffix("]")
        return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))
    raise ConfigError(
        f"{address!r} is not an address of a worker.", "Use unix:/path or tcp:host:port."
    )


def listen(address: str) -> socket.socket:
    """A listening socket. A folder for it is made; one that others can enter is refused."""
    family, place = endpoint(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if isinstance(place, str):
            _own_folder(Path(place))
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"Cannot listen at {address}: {error.strerror or error}.",
            "Choose another address, or end the process that listens there.",
        ) from error
    except ConfigError:
        sock.close()
        raise
    return sock


def no_delay(sock: socket.socket) -> None:
    """Small frames go out at once, over a network too."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _own_folder(path: Path) -> None:
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        raise ConfigError(
            f"Others can enter the folder of the socket {path}.", f"chmod 700 {folder}"
        )
    if path.is_socket():
        path.unlink()  # of a process that is gone

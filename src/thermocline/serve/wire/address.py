"""Addresses of the processes of a server: `unix:/path` or `tcp:host:port`."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import Any

from thermocline.errors import ConfigError


def parse_address(address: str) -> tuple[socket.AddressFamily, Any]:
    """Return the socket family and the address as the operating system takes it.

    Raises ConfigError for anything that is not such an address.
    """
    kind, _, target = address.partition(":")
    if kind == "unix" and target.startswith("/") and "\0" not in target:
        if len(target.encode()) > 100:
            raise ConfigError(f"The socket's path is too long: {target}", "Use a shorter folder.")
        return socket.AF_UNIX, target
    host, _, port = target.rpartition(":")
    if kind == "tcp" and host and port.isascii() and port.isdigit() and int(port) < 65536:
        host = host.removeprefix("[").removesuffix("]")
        return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))
    raise ConfigError(
        f"{address!r} is not an address of a worker.", "Use unix:/path or tcp:host:port."
    )


def listen(address: str) -> socket.socket:
    """Return a listening socket.

    Create the folder of a Unix socket; refuse one that others can enter.
    """
    family, target = parse_address(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if isinstance(target, str):
            _prepare_folder(Path(target))
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"Cannot listen at {address}: {error.strerror or error}.",
            "Use another address, or end the process that listens there.",
        ) from error
    except ConfigError:
        sock.close()
        raise
    return sock


def disable_nagle(sock: socket.socket) -> None:
    """Have small frames leave at once, over a network too."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _prepare_folder(path: Path) -> None:
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        raise ConfigError(
            f"Others can enter the folder of the socket {path}.", f"chmod 700 {folder}"
        )
    if path.is_socket():
        path.unlink()  # left by a process that ended

"""A TCP relay in front of a server, which counts traffic and can close connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_PIECE = 1 << 16


@dataclass
class Relay:
    """A running relay: its port and its traffic so far."""

    port: int
    connections: int = 0
    sent: bytearray = field(default_factory=bytearray)
    """All bytes that clients have sent."""
    received: int = 0
    """Number of bytes that clients have received."""
    _open: list[socket.socket] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Return the number of HTTP requests without a body that clients have sent."""
        return self.sent.count(b"GET ")

    def reset(self) -> None:
        """Reset the counters."""
        self.connections = self.received = 0
        self.sent.clear()

    def break_off(self) -> None:
        """Close all connections, like a server or proxy that drops idle ones."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()


@contextlib.contextmanager
def serve(port: int) -> Iterator[Relay]:
    """Run a relay to a local port."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        relay = Relay(listener.getsockname()[1])
        accepting = threading.Thread(target=_accept, args=(listener, port, relay), daemon=True)
        accepting.start()
        try:
            yield relay
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            relay.break_off()
            accepting.join(10)


def _accept(listener: socket.socket, port: int, relay: Relay) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            relay.connections += 1
            relay._open += [client, server]
            threading.Thread(target=_pass, args=(client, server, relay, True), daemon=True).start()
            threading.Thread(target=_pass, args=(server, client, relay, False), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, relay: Relay, up: bool) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            if up:
                relay.sent += piece
            else:
                relay.received += len(piece)
            target.sendall(piece)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

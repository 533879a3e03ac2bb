"""A frame: the unit of the protocol, encoded and decoded here; `protocol` sends it.

4 bytes (big-endian) length of the header, the header (a JSON object in UTF-8), 8 bytes length of
the body, the body.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

from thermocline.errors import Permanent, Transient

MAX_HEADER_BYTES = 16 << 20
MAX_BODY_BYTES = 1 << 30

Body = bytes | bytearray | memoryview
HEADER_SIZE = struct.Struct(">I")
BODY_SIZE = struct.Struct(">Q")


class ConnectionLost(Transient):
    """The peer is gone, or refuses the connection. Requests in flight have no answer."""

    code = "lost"


class MalformedFrame(Permanent):
    """The bytes received are not a frame, or announce more than a frame may have."""

    code = "malformed"


@dataclass(frozen=True)
class Frame:
    """A JSON object, and bytes that belong to it."""

    header: dict[str, Any]
    body: Body = b""

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of a reply that failed, None of any other frame."""
        return self.header.get("error") or {} if self.header.get("ok") is False else None


def pack_frame(header: dict[str, Any], body: Body = b"") -> list[Body]:
    """Return a frame as the buffers to send one after the other."""
    return [pack_prefix(header, body), body] if body else [pack_prefix(header, body)]


def pack_prefix(header: dict[str, Any], body: Body) -> bytes:
    """Return everything of a frame that precedes its body.

    Raises MalformedFrame when it is too large.
    """
    written = json.dumps(header, separators=(",", ":")).encode()
    if len(written) > MAX_HEADER_BYTES or len(body) > MAX_BODY_BYTES:
        raise MalformedFrame(
            f"A frame of {len(written)} + {len(body)} bytes is larger than a frame may be."
        )
    return b"".join((HEADER_SIZE.pack(len(written)), written, BODY_SIZE.pack(len(body))))


def parse_header(written: Body) -> dict[str, Any]:
    """Return the header in these bytes. Raises MalformedFrame."""
    try:
        header = json.loads(bytes(written))
    except (ValueError, RecursionError) as error:
        raise MalformedFrame("A frame's header is not JSON.") from error
    if not isinstance(header, dict):
        raise MalformedFrame("A frame's header is not a JSON object.")
    return header


def parse_size(form: struct.Struct, written: Body, largest: int) -> int:
    """Return the announced size. Raises MalformedFrame when it is more than `largest`."""
    (size,) = form.unpack(written)
    if size > largest:
        raise MalformedFrame(f"A frame announces {size} bytes; at most {largest} are taken.")
    return int(size)

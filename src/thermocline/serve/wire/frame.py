"""A frame: what one process of serving says to another at a time.

4 bytes (big-endian) length of the header, the header (a JSON object in UTF-8), 8 bytes length of
the body, the body. Here is the form only; `wire` carries it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

from thermocline.errors import Permanent, Transient

LARGEST_HEADER = 16 << 20
LARGEST_BODY = 1 << 30

Body = bytes | bytearray | memoryview
HEADER_SIZE = struct.Struct(">I")
BODY_SIZE = struct.Struct(">Q")


class Lost(Transient):
    """The other side is gone, or does not take us in. What it was asked has no answer."""

    code = "lost"


class Malformed(Permanent):
    """What came over the wire is not a frame, or is larger than a frame may be."""

    code = "malformed"


@dataclass(frozen=True)
class Frame:
    """What one side said: a JSON object, and bytes that belong to it."""

    header: dict[str, Any]
    body: Body = b""

    @property
    def error(self) -> dict[str, Any] | None:
        """What went wrong, when this is a reply that says so."""
        return self.header.get("error") or {} if self.header.get("ok") is False else None


def packed(header: dict[str, Any], body: Body = b"") -> list[Body]:
    """A frame as the pieces that go out one after the other."""
    return [head(header, body), body] if body else [head(header, body)]


def head(header: dict[str, Any], body: Body) -> bytes:
    """Everything of a frame that stands before its body."""
    written = json.dumps(header, separators=(",", ":")).encode()
    if len(written) > LARGEST_HEADER or len(body) > LARGEST_BODY:
        raise Malformed(
            f"A frame of {len(written)} + {len(body)} bytes is larger than a frame may be."
        )
    return b"".join((HEADER_SIZE.pack(len(written)), written, BODY_SIZE.pack(len(body))))


def header_of(written: Body) -> dict[str, Any]:
    """The header that these bytes are."""
    try:
        header = json.loads(bytes(written))
    except (ValueError, RecursionError) as error:
        raise Malformed("A frame's header is not JSON.") from error
    if not isinstance(header, dict):
        raise Malformed("A frame's header is not a JSON object.")
    return header


def size_of(form: struct.Struct, written: Body, largest: int) -> int:
    """The size that these bytes announce, when it may be so large."""
    (size,) = form.unpack(written)
    if size > largest:
        raise Malformed(f"A frame announces {size} bytes; at most {largest} are taken.")
    return int(size)

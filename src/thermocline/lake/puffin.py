"""Rewrite locations in Puffin files: statistics blobs of a table, with a JSON footer.

A blob of a known type contains no location. The footer's free-form properties may.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MAGIC = b"PFA1"
_TAIL_BYTES = 12  # the payload's size, flags, and the magic
KNOWN_BLOB_TYPES = frozenset({"apache-datasketches-theta-v1"})
"""Blob types that contain only numbers."""


@dataclass(frozen=True)
class PuffinFooter:
    """The offset and the content of a file's footer."""

    start: int
    content: dict[str, Any]


@dataclass(frozen=True)
class RewrittenPuffin:
    """A file with another footer, and its attributes in a table's metadata."""

    content: bytes
    footer: int
    properties: list[dict[str, str]]
    """The properties of each blob."""


def read_footer(content: bytes) -> PuffinFooter:
    """Read a file's footer. Raise ValueError for unknown content."""
    tail = content[-_TAIL_BYTES:]
    size = int.from_bytes(tail[:4], "little")
    start = len(content) - _TAIL_BYTES - size - len(_MAGIC)
    if tail[8:] != _MAGIC or start < 0 or content[start : start + 4] != _MAGIC:
        raise ValueError("it is not a Puffin file")
    if any(tail[4:8]):
        raise ValueError("its footer is compressed")
    footer = json.loads(content[start + 4 : start + 4 + size])
    unknown = {blob["type"] for blob in footer["blobs"]} - KNOWN_BLOB_TYPES
    if unknown:
        raise ValueError(f"blobs of type {min(unknown)} are unknown")
    return PuffinFooter(start, footer)


def rewrite_footer(
    content: bytes,
    mentions_old_location: Callable[[str], bool],
    map_location: Callable[[str], str],
) -> RewrittenPuffin | None:
    """Return the file with new locations in its footer; None if it contains no old location."""
    footer = read_footer(content)
    blobs = footer.content["blobs"]
    holders = [each for each in (footer.content, *blobs) if each.get("properties")]
    if not any(
        mentions_old_location(value) for each in holders for value in each["properties"].values()
    ):
        return None
    for each in holders:
        each["properties"] = {
            key: map_location(value) if mentions_old_location(value) else value
            for key, value in each["properties"].items()
        }
    payload = json.dumps(footer.content, separators=(",", ":")).encode()
    end = _MAGIC + payload + len(payload).to_bytes(4, "little") + bytes(4) + _MAGIC
    properties = [dict(blob.get("properties") or {}) for blob in blobs]
    return RewrittenPuffin(content[: footer.start] + end, len(end), properties)

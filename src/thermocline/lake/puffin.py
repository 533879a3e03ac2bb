"""Puffin files: statistics of a table, each a blob, with a footer of JSON that says what they are.

A blob of a known kind holds no location. The footer has free properties that may.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MAGIC = b"PFA1"
_TAIL_BYTES = 12  # the payload's size, flags, and the magic
KNOWN_BLOB_TYPES = frozenset({"apache-datasketches-theta-v1"})
"""Kinds of blobs that hold numbers alone."""


@dataclass(frozen=True)
class PuffinFooter:
    """Where a file's footer begins, and what it says."""

    start: int
    said: dict[str, Any]


@dataclass(frozen=True)
class RewrittenPuffin:
    """A file with another footer, and what a table's metadata says of it."""

    content: bytes
    footer: int
    properties: list[dict[str, str]]
    """Of each blob."""


def read_footer(content: bytes) -> PuffinFooter:
    """Read a file's footer. Raises ValueError for what is not understood."""
    tail = content[-_TAIL_BYTES:]
    size = int.from_bytes(tail[:4], "little")
    start = len(content) - _TAIL_BYTES - size - len(_MAGIC)
    if tail[8:] != _MAGIC or start < 0 or content[start : start + 4] != _MAGIC:
        raise ValueError("it is no Puffin file")
    if any(tail[4:8]):
        raise ValueError("its footer is compressed")
    said = json.loads(content[start + 4 : start + 4 + size])
    unknown = {blob["type"] for blob in said["blobs"]} - KNOWN_BLOB_TYPES
    if unknown:
        raise ValueError(f"blobs of type {min(unknown)} are not understood")
    return PuffinFooter(start, said)


def rewrite_footer(
    content: bytes, names_old: Callable[[str], bool], moved: Callable[[str], str]
) -> RewrittenPuffin | None:
    """Return the file with new locations in its footer; None where it names none."""
    found = read_footer(content)
    blobs = found.said["blobs"]
    holders = [each for each in (found.said, *blobs) if each.get("properties")]
    if not any(names_old(value) for each in holders for value in each["properties"].values()):
        return None
    for each in holders:
        each["properties"] = {
            key: moved(value) if names_old(value) else value
            for key, value in each["properties"].items()
        }
    payload = json.dumps(found.said, separators=(",", ":")).encode()
    end = _MAGIC + payload + len(payload).to_bytes(4, "little") + bytes(4) + _MAGIC
    properties = [dict(blob.get("properties") or {}) for blob in blobs]
    return RewrittenPuffin(content[: found.start] + end, len(end), properties)

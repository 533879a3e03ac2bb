"""File locations: decide whether a location is inside a folder, in any spelling of the two.

A local file has the locations `file:/x`, `file:///x` and `/x`, and another path for each symbolic
link to it; an S3 object has `s3://b/x`, `s3a://b/x` and `s3n://b/x`. A location is inside only if
its spelling or the file system proves it; every other location is elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from thermocline.errors import TablesElsewhere

_S3 = re.compile(r"s3[an]?://")


def normalize_location(location: str) -> str:
    """Return the canonical spelling of a location: a local path, or an `s3://` URI."""
    if location.startswith("file:") and not re.match("file://[^/]", location):
        location = location.removeprefix("file:")
    if location.startswith("/"):
        return re.sub("/(\\.?/)+", "/", location)
    return _S3.sub("s3://", location, count=1)


def relative_path(location: str, folder: str) -> str | None:
    """Return a location's path relative to a folder, by spelling; None if it is not inside.

    A path with `..` is not inside: its target depends on links.
    """
    inside, above = normalize_location(location), normalize_location(folder).rstrip("/") + "/"
    if not inside.startswith(above) or ".." in inside[len(above) :].split("/"):
        return None
    return inside[len(above) :]


def join_location(folder: str, path: str) -> str:
    """Join a folder's location and a relative path."""
    return f"{folder.rstrip('/')}/{path}"


def warehouse_of(table: str, location: str) -> str:
    """Return the warehouse that a table was created in, derived from its location."""
    before, found, _ = f"{location}/".rpartition(f"/{table.replace('.', '/')}/")
    return before if found else location


class Warehouse:
    """A lake's warehouse, and the other spellings of its folder in table locations."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.roots: dict[str, None] = {normalize_location(folder).rstrip("/"): None}
        """Every known spelling of the folder, the configured one first."""

    def holds(self, location: str) -> bool:
        """Whether a location is inside: by spelling, or because a parent is the same folder."""
        folder = f"{location.rstrip('/')}/"  # the warehouse itself counts as inside
        if any(relative_path(folder, root) is not None for root in self.roots):
            return True
        root = self._find_root(f"{normalize_location(folder)}.")
        if root is not None:
            self.roots[root] = None
        return root is not None

    def require(self, locations: Mapping[str, str]) -> None:
        """Raise TablesElsewhere if one of the named locations is not inside."""
        outside = {name: where for name, where in locations.items() if not self.holds(where)}
        if outside:
            raise tables_elsewhere_error(outside, self.folder)

    def _find_root(self, location: str) -> str | None:
        """Return the parent of a local file that is the warehouse by another path."""
        here = _file_identity(normalize_location(self.folder))
        if here is None or not location.startswith("/"):
            return None
        for folder in map(str, PurePath(location).parents):
            if ".." in location[len(folder) :].split("/"):
                return None  # a parent beyond `..` may not contain the file
            if _file_identity(folder) == here:
                return folder
        return None


def is_same_file(one: str, other: str) -> bool:
    """Whether two local locations are the same file or folder."""
    found = _file_identity(normalize_location(one))
    return found is not None and found == _file_identity(normalize_location(other))


def tables_elsewhere_error(locations: Mapping[str, str], warehouse: str) -> TablesElsewhere:
    """Return the error for named locations that are outside the lake's warehouse."""
    first = min(locations)
    rest = len(locations) - 1
    others = "" if not rest else " and 1 other" if rest == 1 else f" and {rest:,} others"
    found = normalize_location(warehouse_of(first, locations[first]))
    return TablesElsewhere(
        f"This lake's tables lie elsewhere: {first}{others} in {found}, "
        f"not in its warehouse {warehouse}.",
        "Was it copied or moved? `thermo relocate` makes it whole here and changes nothing there.",
        tables=sorted(locations),
    )


def _file_identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file, if it exists."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino

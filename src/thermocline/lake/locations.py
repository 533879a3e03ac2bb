"""Where files lie: whether a location is inside a folder, however the two are spelled.

One file on local disk is `file:/x`, `file:///x` and `/x`, and has a further path for every symbolic
link that leads to it; one object is `s3://b/x`, `s3a://b/x` and `s3n://b/x`. A location counts as
inside only where its spelling or the file system proves it: everything else is elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from thermocline.errors import TablesElsewhere

_S3 = re.compile(r"s3[an]?://")


def normalize_location(location: str) -> str:
    """Return one spelling of a location: a path on local disk, or `s3://` and the rest."""
    if location.startswith("file:") and not re.match("file://[^/]", location):
        location = location.removeprefix("file:")
    if location.startswith("/"):
        return re.sub("/(\\.?/)+", "/", location)
    return _S3.sub("s3://", location, count=1)


def relative_path(location: str, folder: str) -> str | None:
    """Return the path of a location from a folder, by their spelling; None if it is not inside.

    What climbs (`..`) is not inside: where it leads depends on links.
    """
    inside, above = normalize_location(location), normalize_location(folder).rstrip("/") + "/"
    if not inside.startswith(above) or ".." in inside[len(above) :].split("/"):
        return None
    return inside[len(above) :]


def join_location(folder: str, path: str) -> str:
    """Return the location of a path from a folder."""
    return f"{folder.rstrip('/')}/{path}"


def warehouse_of(table: str, location: str) -> str:
    """Return the warehouse that a table was made in, as far as its location or metadata tells."""
    before, found, _ = f"{location}/".rpartition(f"/{table.replace('.', '/')}/")
    return before if found else location


class Warehouse:
    """A lake's warehouse, and the further paths by which locations were seen to lead to it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.roots: dict[str, None] = {normalize_location(folder).rstrip("/"): None}
        """Every spelling of the folder that was met, this one first."""

    def holds(self, location: str) -> bool:
        """Whether a location is inside: by its spelling, or since a folder above it is this one."""
        folder = f"{location.rstrip('/')}/"  # the warehouse itself is inside as well
        if any(relative_path(folder, root) is not None for root in self.roots):
            return True
        root = self._root(f"{normalize_location(folder)}.")
        if root is not None:
            self.roots[root] = None
        return root is not None

    def require(self, locations: Mapping[str, str]) -> None:
        """Raise TablesElsewhere if one of some things of the lake, by name, is not inside."""
        outside = {name: where for name, where in locations.items() if not self.holds(where)}
        if outside:
            raise tables_elsewhere_error(outside, self.folder)

    def _root(self, location: str) -> str | None:
        """The folder above a file of this machine that is the warehouse by another path."""
        here = _file_identity(normalize_location(self.folder))
        if here is None or not location.startswith("/"):
            return None
        for folder in map(str, PurePath(location).parents):
            if ".." in location[len(folder) :].split("/"):
                return None  # from here on up the path may have left what it names
            if _file_identity(folder) == here:
                return folder
        return None


def is_same_file(one: str, other: str) -> bool:
    """Whether two locations on local disk are one and the same file or folder."""
    found = _file_identity(normalize_location(one))
    return found is not None and found == _file_identity(normalize_location(other))


def tables_elsewhere_error(locations: Mapping[str, str], warehouse: str) -> TablesElsewhere:
    """Return the error for things of the lake, by name, that do not lie in its warehouse."""
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
    """What the file system knows a file by."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino

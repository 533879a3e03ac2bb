"""Which place each file of a lake had, and which it is to have."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import blake2b
from uuid import UUID

from thermocline.errors import BadInput
from thermocline.lake.locations import (
    Warehouse,
    join_location,
    normalize_location,
    relative_path,
    warehouse_of,
)

_REWRITTEN_PREFIX = re.compile(r"r[0-9a-f]{12}-")
_METADATA_NUMBER = re.compile(r"(\d+)-")
_FILE, _S3 = re.compile(r"file:/+"), re.compile(r"s3[an]?://")


class LocationMapping:
    """From the warehouses that tables lie in to the one that they are to lie in.

    Names of files that are written again follow from where the tables were: relocating again after
    a death writes the same files.
    """

    def __init__(self, warehouse: str, roots: Collection[str], pointers: Mapping[str, str]) -> None:
        self.warehouse = warehouse
        self.roots = sorted(
            {normalize_location(root).rstrip("/") for root in roots}, key=len, reverse=True
        )
        self._here = Warehouse(warehouse)
        said = "\n".join([warehouse, *(f"{t} {at}" for t, at in sorted(pointers.items()))])
        self._mark = blake2b(said.encode(), digest_size=16).digest()

    def moved(self, location: str) -> str:
        """The new location of a file that stays as it is; ValueError for one out of place."""
        if relative_path(location, self.warehouse) is not None:
            return location
        for root in self.roots:
            rest = relative_path(location, root)
            if rest is not None:
                return join_location(self.warehouse, rest)
        if self._here.holds(location):
            return location
        raise ValueError(location)

    def written(self, location: str) -> str:
        """The location for what takes the place of a file of metadata, under a new name."""
        folder, _, name = self.moved(location).rpartition("/")
        return f"{folder}/r{self._mark.hex()[:12]}-{_REWRITTEN_PREFIX.sub('', name, count=1)}"

    def metadata(self, pointer: str) -> str:
        """The location for what takes the place of a table's metadata file, the next in number."""
        folder, _, name = self.moved(pointer).rpartition("/")
        number = _METADATA_NUMBER.match(name)
        following = int(number[1]) + 1 if number else 0
        unique = blake2b(self._mark + pointer.encode(), digest_size=16).digest()
        return f"{folder}/{following:05d}-{UUID(bytes=unique, version=4)}.metadata.json"

    def names_old(self, text: str) -> bool:
        """Whether a text names a place that is to be left."""
        spelled = _S3.sub("s3://", _FILE.sub("/", text))
        return any(re.search(rf"(?<![\w./-]){re.escape(root)}(?![\w.-])", spelled)
                   for root in self.roots)  # fmt: skip


def source_warehouses(locations: Mapping[str, str], said: str | None = None) -> list[str]:
    """Return the warehouses that some tables, by their locations, were made in; `said` is one.

    A table that was made in a folder of its own choice is in the warehouse of another one.
    """
    found = [] if said is None else [said]
    for table, location in locations.items():
        root = warehouse_of(table, location)
        if normalize_location(root) != normalize_location(location):
            found.append(root)
    for table, location in locations.items():
        if all(relative_path(location, root) is None for root in found):
            raise BadInput(
                f"It is not known which warehouse {table} was in: {normalize_location(location)}.",
                "Name it: thermo relocate --from FOLDER.",
            )
    return list(dict.fromkeys(found))

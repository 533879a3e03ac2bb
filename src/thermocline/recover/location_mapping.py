"""Map old locations of a lake's files to new ones."""

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
    """Maps locations from the tables' old warehouses to the new one.

    Names of rewritten files are derived from the old pointers, so a repeated relocation after a
    crash writes the same files.
    """

    def __init__(self, warehouse: str, roots: Collection[str], pointers: Mapping[str, str]) -> None:
        self.warehouse = warehouse
        self.roots = sorted(
            {normalize_location(root).rstrip("/") for root in roots}, key=len, reverse=True
        )
        self._target = Warehouse(warehouse)
        content = "\n".join([warehouse, *(f"{t} {at}" for t, at in sorted(pointers.items()))])
        self._digest = blake2b(content.encode(), digest_size=16).digest()

    def map_location(self, location: str) -> str:
        """Return the new location of an unchanged file. Raise ValueError outside the warehouses."""
        if relative_path(location, self.warehouse) is not None:
            return location
        for root in self.roots:
            rest = relative_path(location, root)
            if rest is not None:
                return join_location(self.warehouse, rest)
        if self._target.holds(location):
            return location
        raise ValueError(location)

    def map_rewritten(self, location: str) -> str:
        """Return the location of the rewritten copy of a metadata file, under a new name."""
        folder, _, name = self.map_location(location).rpartition("/")
        return f"{folder}/r{self._digest.hex()[:12]}-{_REWRITTEN_PREFIX.sub('', name, count=1)}"

    def map_pointer(self, pointer: str) -> str:
        """Return the location of a table's next metadata file, with the next number."""
        folder, _, name = self.map_location(pointer).rpartition("/")
        number = _METADATA_NUMBER.match(name)
        next_number = int(number[1]) + 1 if number else 0
        unique = blake2b(self._digest + pointer.encode(), digest_size=16).digest()
        return f"{folder}/{next_number:05d}-{UUID(bytes=unique, version=4)}.metadata.json"

    def mentions_old_location(self, text: str) -> bool:
        """Whether a text contains a location in an old warehouse."""
        normalized = _S3.sub("s3://", _FILE.sub("/", text))
        return any(re.search(rf"(?<![\w./-]){re.escape(root)}(?![\w.-])", normalized)
                   for root in self.roots)  # fmt: skip


def source_warehouses(locations: Mapping[str, str], named: str | None = None) -> list[str]:
    """Return the warehouses that tables were created in, by their locations; `named` is one.

    A table with a custom folder must be inside the warehouse of another table.
    """
    found = [] if named is None else [named]
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

"""The entry that a writer submits: finished data files, and what they replace."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from thermocline.errors import BadInput
from thermocline.lake.bookmark import KEYS, MORE_KEYS
from thermocline.lake.metadata import MAIN
from thermocline.lake.naming import validate_ref_name, validate_table_name

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")

PartitionId = tuple[int, tuple[Any, ...]]
"""A partition: the id of its partition spec, and its values."""


@dataclass(frozen=True)
class ReplacePartitions:
    """Replace all files of these partitions, including files of other writers."""

    partitions: frozenset[PartitionId]

    @classmethod
    def named(cls, spec: int, records: Iterable[Record]) -> ReplacePartitions:
        """Return the partitions of a spec with these values, whether or not they contain files."""
        return cls(frozenset((spec, _partition_values(record)) for record in records))

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> ReplacePartitions:
        """Return the partitions of these files."""
        return cls(frozenset(partition_id(file) for file in files))


@dataclass(frozen=True)
class ReplaceFiles:
    """Replace exactly these files, each with its partition; a file already removed is a conflict.

    `snapshot` is the one that the files were read at. Rows of these files that were deleted later
    would reappear, so that is a conflict as well.
    """

    files: frozenset[tuple[PartitionId, str]]
    snapshot: int

    @classmethod
    def of(cls, files: Iterable[DataFile], snapshot: int) -> ReplaceFiles:
        """Return the replacement of files as they were read at a snapshot."""
        return cls(frozenset((partition_id(file), file.file_path) for file in files), snapshot)

    @property
    def partitions(self) -> frozenset[PartitionId]:
        """The partitions of the files."""
        return frozenset(where for where, _ in self.files)

    @property
    def paths(self) -> frozenset[str]:
        """The paths of the files."""
        return frozenset(path for _, path in self.files)


@dataclass(frozen=True)
class CommitEntry:
    """Files for one branch of one table, under a key that lands at most once.

    `uuid` and `schema` identify the table and the schema that the files were written for. Entries
    share a snapshot only if their `properties` are equal.
    """

    key: str
    table: str
    uuid: str
    schema: int
    files: tuple[DataFile, ...]
    replaces: ReplacePartitions | ReplaceFiles | None = None
    branch: str = MAIN
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_table_name(self.table)
        validate_ref_name(self.branch)
        if not _KEY.fullmatch(self.key):
            raise BadInput(
                f"{self.key[:60]!r} is not a key for a commit.",
                "Use up to 128 letters, digits and any of . _ : / - , beginning with one of the "
                "first two.",
            )
        if not self.files and self.replaces is None:
            raise BadInput(f"The entry {self.key} changes nothing.", "Give it files.")
        if len(self.paths) != len(self.files):
            raise BadInput(f"The entry {self.key} has a file twice.", "Give each file once.")
        if taken := {KEYS, MORE_KEYS}.intersection(self.properties):
            raise BadInput(
                f"The entry {self.key} sets {', '.join(sorted(taken))} itself.",
                "Leave them out: they are filled from the keys.",
            )
        if (
            isinstance(self.replaces, ReplacePartitions)
            and self.partitions - self.replaces.partitions
        ):
            raise BadInput(
                f"The entry {self.key} has files outside the partitions that it replaces.",
                "Name every partition that it writes to.",
            )

    @classmethod
    def of(
        cls,
        table: Table,
        key: str,
        files: Iterable[DataFile],
        *,
        replaces: ReplacePartitions | ReplaceFiles | None = None,
        branch: str = MAIN,
        properties: Mapping[str, str] | None = None,
    ) -> CommitEntry:
        """Return an entry of files that were written for the table as loaded."""
        return cls(
            key=key,
            table=".".join(table.name()),
            uuid=str(table.metadata.table_uuid),
            schema=table.metadata.current_schema_id,
            files=tuple(files),
            replaces=replaces,
            branch=branch,
            properties=dict(properties or {}),
        )

    @property
    def paths(self) -> frozenset[str]:
        """The paths of the files."""
        return frozenset(file.file_path for file in self.files)

    @property
    def partitions(self) -> frozenset[PartitionId]:
        """The partitions of the files."""
        return frozenset(partition_id(file) for file in self.files)


def partition_id(file: DataFile) -> PartitionId:
    """Return the partition of a data file, independent of the library that read or wrote it."""
    return file.spec_id, _partition_values(file.partition)


def _partition_values(record: Record) -> tuple[Any, ...]:
    return tuple(_exact_value(record[position]) for position in range(len(record)))


def _exact_value(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<d", value)  # NaN equals itself, and -0.0 is not 0.0
    return value.bytes if isinstance(value, UUID) else value

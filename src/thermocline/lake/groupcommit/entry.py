"""What a writer hands over: finished data files, and what they replace."""

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
"""A partition: the number of its partition spec, and its values."""


@dataclass(frozen=True)
class ReplacePartitions:
    """All files of these partitions go, whoever wrote them: partitions are overwritten whole."""

    places: frozenset[PartitionId]

    @classmethod
    def named(cls, spec: int, records: Iterable[Record]) -> ReplacePartitions:
        """The partitions of a partition spec with these values, whether they hold a file or not."""
        return cls(frozenset((spec, _partition_values(record)) for record in records))

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> ReplacePartitions:
        """The partitions that these files are in."""
        return cls(frozenset(partition_id(file) for file in files))


@dataclass(frozen=True)
class ReplaceFiles:
    """These very files go, each with its partition; if one is gone already, that is a conflict.

    `seen` is the snapshot that they were read at. Rows of theirs that were deleted since would come
    back to life, so that is a conflict as well.
    """

    files: frozenset[tuple[PartitionId, str]]
    seen: int

    @classmethod
    def of(cls, files: Iterable[DataFile], seen: int) -> ReplaceFiles:
        """Files as they were found in a snapshot."""
        return cls(frozenset((partition_id(file), file.file_path) for file in files), seen)

    @property
    def places(self) -> frozenset[PartitionId]:
        """The partitions that the files are in."""
        return frozenset(where for where, _ in self.files)

    @property
    def paths(self) -> frozenset[str]:
        """Where the files lie."""
        return frozenset(path for _, path in self.files)


@dataclass(frozen=True)
class CommitEntry:
    """Files for one branch of one table under a key that lands at most once.

    `uuid` and `schema` say which table, and at which schema, the files were written for. Entries
    whose `properties` differ get snapshots of their own; those without any share one.
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
        if isinstance(self.replaces, ReplacePartitions) and self.places - self.replaces.places:
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
        """An entry of files that were written for the table as it was loaded."""
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
        """Where the files lie."""
        return frozenset(file.file_path for file in self.files)

    @property
    def places(self) -> frozenset[PartitionId]:
        """The partitions that the files are in."""
        return frozenset(partition_id(file) for file in self.files)


def partition_id(file: DataFile) -> PartitionId:
    """The partition of a data file, in one spelling whoever read or wrote it."""
    return file.spec_id, _partition_values(file.partition)


def _partition_values(record: Record) -> tuple[Any, ...]:
    return tuple(_exact_value(record[position]) for position in range(len(record)))


def _exact_value(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<d", value)  # NaN equals itself, and -0.0 is not 0.0
    return value.bytes if isinstance(value, UUID) else value

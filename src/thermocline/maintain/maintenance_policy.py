"""What maintenance aims for: target file size, thresholds and the budget of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thermocline.config import quantities

if TYPE_CHECKING:
    from thermocline.config.settings import MaintainSettings

OPEN_COST_BYTES = 4 << 20
"""What opening a file costs a reader, in bytes of scanning: Iceberg's own planning default."""
TARGET_PROPERTY = "write.target-file-size-bytes"
REWRITE_BYTES_PER_CPU_SECOND = 24 << 20
"""Compressed bytes that are read, hashed, written and read back in one CPU second."""
CPU_SECONDS_PER_FILE = 0.004
"""What opening, reading and listing one input file costs beside its bytes."""


@dataclass(frozen=True)
class MaintenancePolicy:
    """Targets and limits. The defaults are those of the settings `maintain.*`.

    A file below three quarters of `target_bytes` is small. Files that are younger than `cool_down`
    seconds are left to their writers. A file is rewritten whatever its size when `delete_share` of
    its rows is deleted, or when more than `max_delete_files` delete files apply to it. `budget` is
    the CPU seconds that one pass plans for, and `max_bytes` the data that it may rewrite. A
    partition is sorted when a lookup opens `max_overlap` times the files that it should, at most
    `max_sort_bytes` of it at once.

    Files are removed `remove_after` seconds after they were seen unreferenced; tables are listed
    every `remove_every` seconds at most. From `min_manifests` small manifests on they are joined.
    """

    target_bytes: int = 256 << 20
    min_files: int = 5
    max_group_bytes: int = 1 << 30
    cool_down: float = 60.0
    delete_share: float = 0.1
    max_delete_files: int = 10
    budget: float = 600.0
    max_bytes: int = 20_000_000_000
    remove_after: float = 86_400.0
    remove_every: float = 86_400.0
    min_manifests: int = 16
    max_overlap: float = 2.0
    max_sort_bytes: int = 8 << 30

    @classmethod
    def from_settings(cls, settings: MaintainSettings) -> MaintenancePolicy:
        """Return the policy of a project's settings."""
        return cls(
            target_bytes=quantities.parse_size(settings.target_size),
            min_files=settings.min_files,
            cool_down=quantities.parse_duration(settings.cool_down),
            delete_share=settings.delete_share,
            budget=quantities.parse_duration(settings.budget),
            max_bytes=quantities.parse_size(settings.max_bytes),
            remove_after=quantities.parse_duration(settings.remove_after),
            remove_every=quantities.parse_duration(settings.remove_every),
        )

    def for_table(self, properties: Mapping[str, str]) -> MaintenancePolicy:
        """Return the policy of a table: its own target size is that of Iceberg's property."""
        size = properties.get(TARGET_PROPERTY, "")
        is_set = size.isdecimal() and int(size) > 0
        return replace(self, target_bytes=int(size)) if is_set else self

    @property
    def small_bytes(self) -> int:
        """Return the size below which a file is small."""
        return self.target_bytes * 3 // 4

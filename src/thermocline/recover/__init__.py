"""Relocate a lake: rewrite its metadata for another warehouse, and verify every snapshot."""

from thermocline.recover.relocate import RelocatedTable, Relocation, relocate

__all__ = ["RelocatedTable", "Relocation", "relocate"]

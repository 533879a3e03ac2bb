"""Bring a lake to another place, whole."""

from thermocline.recover.relocate import RelocatedTable, Relocation, relocate

__all__ = ["RelocatedTable", "Relocation", "relocate"]

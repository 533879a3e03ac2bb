"""Bring a lake to another place, whole."""

from thermocline.recover.relocate import Moved, Relocation, relocate

__all__ = ["Moved", "Relocation", "relocate"]

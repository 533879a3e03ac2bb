"""Table access: which roles may read a table, from its contract; all callers where it names none.

For a caller without one of the roles the table does not exist: it is in no listing, and a query on
it gets the same error as one on an unknown table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from thermocline.serve.values import Caller, LakeState


class TableAccess:
    """The roles that may read each restricted table."""

    def __init__(self, roles: Mapping[str, Iterable[str]] | None = None) -> None:
        self._roles: dict[str, frozenset[str]] = {}
        for table, each in (roles or {}).items():
            allowed = frozenset(each)
            self._roles[table] = allowed
            # Quarantined rows have the restrictions of the table that they were meant for.
            quarantine = f"quarantine.{table.partition('.')[2]}"
            self._roles[quarantine] = self._roles.get(quarantine, allowed) & allowed

    def can_read(self, caller: Caller, table: str) -> bool:
        """Return whether a caller may see a table."""
        roles = self._roles.get(table)
        return roles is None or not roles.isdisjoint(caller.roles)

    def visible_state(self, lake_state: LakeState, caller: Caller) -> LakeState:
        """Return the part of the state that a caller may see."""
        if not self._roles:
            return lake_state
        heads = {t: head for t, head in lake_state.table_heads.items() if self.can_read(caller, t)}
        copies_by_node = {
            node: {t: copy for t, copy in copies.items() if self.can_read(caller, t)}
            for node, copies in lake_state.hot_copies.items()
        }
        return replace(lake_state, table_heads=heads, hot_copies=copies_by_node)


def load_table_access(project: Path) -> TableAccess:
    """Return the table access of a project. Raises ContractError."""
    from thermocline.contract import load_contracts

    contracts = load_contracts(project / "contracts")
    return TableAccess(
        {t: each.readers for t, each in contracts.items() if each.readers is not None}
    )

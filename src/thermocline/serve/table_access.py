"""Who may read which table: the roles that its contract names, or everybody where it names none.

For a caller without one of the roles there is no such table: it is in no list, and a question about
it ends as one about a table that never was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from thermocline.serve.values import Caller, LakeState


class TableAccess:
    """The roles that may read each table that is not for everybody."""

    def __init__(self, roles: Mapping[str, Iterable[str]] | None = None) -> None:
        self._roles: dict[str, frozenset[str]] = {}
        for table, each in (roles or {}).items():
            allowed = frozenset(each)
            self._roles[table] = allowed
            # Rows that were set aside are as closed as the table that they were meant for.
            aside = f"quarantine.{table.partition('.')[2]}"
            self._roles[aside] = self._roles.get(aside, allowed) & allowed

    def can_read(self, caller: Caller, table: str) -> bool:
        """Whether a caller may know of a table."""
        roles = self._roles.get(table)
        return roles is None or not roles.isdisjoint(caller.roles)

    def visible_state(self, lake_state: LakeState, caller: Caller) -> LakeState:
        """The lookout as a caller may know it."""
        if not self._roles:
            return lake_state
        heads = {t: head for t, head in lake_state.table_heads.items() if self.can_read(caller, t)}
        held = {
            node: {t: copy for t, copy in copies.items() if self.can_read(caller, t)}
            for node, copies in lake_state.hot_copies.items()
        }
        return replace(lake_state, table_heads=heads, hot_copies=held)


def load_table_access(project: Path) -> TableAccess:
    """Who may read the tables of a project. Raises ContractError."""
    from thermocline.contract import load_contracts

    contracts = load_contracts(project / "contracts")
    return TableAccess(
        {t: each.readers for t, each in contracts.items() if each.readers is not None}
    )

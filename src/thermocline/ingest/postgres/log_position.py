"""How far a database's changes have been read, as the bookmark keeps it.

Postgres sends whole transactions in commit order, and always starts at a commit. So a position is
the end of the last commit that landed, plus how much of the next transaction landed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class LogPosition:
    """A position between two records of the log.

    `system` and `slot` identify the log. Transactions whose commit ends at or before `commit` have
    landed; of the transaction `txn`, records up to the `nth` at `lsn` have. `records` counts the
    records that landed so far. Without `commit`, nothing has landed, or the tables must be read
    again (`again`). `columns` lists, per table, the numbers of the columns with complete values.
    """

    system: str = ""
    slot: str = ""
    commit: int | None = None
    txn: int | None = None
    lsn: int = 0
    nth: int = 0
    records: int = 0
    again: bool = False
    columns: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def from_bookmark(cls, position: Mapping[str, Any] | None) -> LogPosition:
        """Return the position in a bookmark, or the beginning if there is none."""
        return cls(**position) if position else cls()

    def to_bookmark(self) -> dict[str, Any]:
        """Return the position as a bookmark stores it."""
        return asdict(self)


class PositionTracker:
    """Advances a position record by record and detects records that have already landed.

    After a restart the source sends an unfinished transaction again from its beginning.
    """

    def __init__(self, start: LogPosition) -> None:
        self.position = start
        self._landed = start
        self._txn: int | None = None
        self._lsn = self._nth = 0

    def advance(self, txn: int, lsn: int, *, counts: bool = True) -> bool:
        """Advance past one record; return whether it is new. `counts`: whether the record lands."""
        if txn != self._txn or lsn != self._lsn:
            self._txn, self._lsn, self._nth = txn, lsn, 0
        self._nth += 1
        before = self._landed
        if txn == before.txn and (lsn, self._nth) <= (before.lsn, before.nth):
            return False
        self.position = replace(
            self.position, txn=txn, lsn=lsn, nth=self._nth, records=self.position.records + counts
        )
        return True

    def end_transaction(self, lsn: int) -> None:
        """Advance past the commit that ends the transaction."""
        self.position = replace(self.position, commit=lsn, txn=None, lsn=0, nth=0)
        self._txn, self._lsn, self._nth = None, 0, 0

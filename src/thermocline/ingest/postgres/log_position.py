"""How far a database's changes have been read, as the bookmark keeps it.

Postgres sends transactions whole, in the order of their commits, and always from a commit on. So
a place is the end of the last commit that has landed, and how much of the next transaction has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Place:
    """A place between two records.

    `system` and `slot` say whose log it is. Everything of transactions whose commit ends by
    `commit` has landed, and of the transaction `txn` what is not after the `nth` record at `lsn`.
    `records` counts what has landed since the beginning. Without `commit` nothing has, or what
    has must be read anew (`again`). `columns` are the numbers of those of each
    table whose values have all come.
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
    def of(cls, position: Mapping[str, Any] | None) -> Place:
        """The place that a bookmark says; the beginning when there is none."""
        return cls(**position) if position else cls()

    def position(self) -> dict[str, Any]:
        """The place for a bookmark."""
        return asdict(self)


class Walk:
    """Follows records from a place on, and tells those that have landed from those that have not.

    After a restart the source sends the unfinished transaction again, from its beginning.
    """

    def __init__(self, start: Place) -> None:
        self.place = start
        self._landed = start
        self._txn: int | None = None
        self._lsn = self._nth = 0

    def record(self, txn: int, lsn: int, *, counts: bool = True) -> bool:
        """Take one record into account; says whether it is new. Not every one of them lands."""
        if txn != self._txn or lsn != self._lsn:
            self._txn, self._lsn, self._nth = txn, lsn, 0
        self._nth += 1
        before = self._landed
        if txn == before.txn and (lsn, self._nth) <= (before.lsn, before.nth):
            return False
        self.place = replace(
            self.place, txn=txn, lsn=lsn, nth=self._nth, records=self.place.records + counts
        )
        return True

    def commit(self, lsn: int) -> None:
        """The transaction has ended."""
        self.place = replace(self.place, commit=lsn, txn=None, lsn=0, nth=0)
        self._txn, self._lsn, self._nth = None, 0, 0

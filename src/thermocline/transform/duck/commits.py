"""Putting decided changes into a table: each function makes exactly one Iceberg commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, UpdateMode
from thermocline.engine.duck import build_scan
from thermocline.engine.duck_types import quote_identifier
from thermocline.lake import row_counts
from thermocline.transform.duck.append_overwrite import laid_out
from thermocline.transform.duck.key_filters import few, within
from thermocline.transform.duck.session import FILE, PLACES, ROW, Session
from thermocline.transform.duck.write_errors import Ready
from thermocline.transform.write_rules import ACTION

if TYPE_CHECKING:
    from thermocline.lake.data_file_reader import Positions
    from thermocline.lake.draft import Draft


@dataclass(frozen=True)
class Target:
    """A table on a draft, and the model's rows in which failures are looked for."""

    session: Session
    contract: Contract
    draft: Draft
    model: str

    @property
    def now(self) -> str:
        """The table's rows as they are on the draft."""
        return self.session.table(self.contract.table, self.draft.head(self.contract.table))

    def beside(self, batch: str, key: Sequence[str] | None = None) -> str:
        """The table's rows that can have a key of a batch, and maybe others."""
        near = within(self.session, self.contract, key or self.contract.key, batch)
        return f"SELECT * FROM ({self.now}) WHERE {near}"

    def found(self, batch: str) -> str | None:
        """The same rows, kept with the places that they are at; None where the keys are many.

        Each look at the table goes through the list of all its files, so there is one.
        """
        if not few(self.session, self.contract, batch):
            return None
        head = self.draft.head(self.contract.table)
        rows = self.session.table(self.contract.table, head, places=True)
        near = within(self.session, self.contract, self.contract.key, batch)
        return self.session.keep(f"SELECT * FROM ({rows}) WHERE {near}")

    def append(self, rows: str, *, bookmark: Any, operation: str) -> int:
        """Add rows; no rows still make a commit, which carries the bookmark."""
        ready = self._ready(rows)
        return self.draft.append(self.contract.table, ready, bookmark=bookmark, operation=operation)

    def replace(self, rows: str, *, bookmark: Any, operation: str) -> int:
        """Put rows in the place of everything there is."""
        ready = self._ready(rows)
        return self.draft.replace(
            self.contract.table, ready, bookmark=bookmark, operation=operation
        )

    def change(
        self,
        changes: str,
        *,
        on: Sequence[str],
        columns: Sequence[str],
        bookmark: Any,
        operation: str,
        found: str | None = None,
    ) -> int:
        """Insert, update and delete rows as their ACTION says, found by the columns `on`.

        `changes` names a table that has at most one row for each value of those, `found` what was
        kept of the table's rows that have them.
        """
        named = ", ".join(quote_identifier(name) for name in columns)
        rows = f"SELECT {named} FROM {changes} WHERE {ACTION} IN ('insert', 'update')"
        gone = self._places(changes, on, found)
        if not gone:
            return self.append(rows, bookmark=bookmark, operation=operation)
        asked = f"SELECT {ACTION}, count(*) FROM {changes} GROUP BY ALL"
        meant = row_counts.count_merge(dict(self.session.rows(asked)), sum(map(len, gone.values())))
        return self.draft.replace_rows(
            self.contract.table,
            self._ready(rows),
            gone,
            on_read=self.contract.updates is UpdateMode.MERGE_ON_READ,
            bookmark=bookmark,
            operation=operation,
            notes=meant.notes(),
        )

    def _places(self, changes: str, on: Sequence[str], found: str | None) -> dict[str, Positions]:
        """Where in the table's files the rows are that are to go, by the files' paths."""
        import numpy as np

        going = f"SELECT * FROM {changes} WHERE {ACTION} IN ('update', 'delete')"
        if not self.session.rows(f"SELECT 1 FROM ({going}) LIMIT 1"):
            return {}
        if found is not None:
            source, near = found, "true"
            same = " AND ".join(f"t.{quote_identifier(n)} = s.{quote_identifier(n)}" for n in on)
        else:
            state = self.draft.lake.state(self.contract.table)
            scanned = build_scan(state.metadata_location, self.draft.head(self.contract.table))
            source = f"(SELECT *, {PLACES} FROM {scanned})"
            near = within(self.session, self.contract, on, changes, alias="t")
            same = " AND ".join(f"{_text(self.contract, n)} = s.{quote_identifier(n)}" for n in on)
        at = self.session.connection.execute(
            f"SELECT t.{FILE}, list(t.{ROW}) FROM {source} AS t "
            f"SEMI JOIN ({going}) AS s ON {same} WHERE {near} GROUP BY t.{FILE}"
        )
        return {path: np.sort(np.asarray(rows, np.int64)) for path, rows in at.fetchall()}

    def _ready(self, rows: str) -> Ready:
        return Ready(self.session, laid_out(rows, self.contract), self.contract, self.model)


def _text(contract: Contract, name: str) -> str:
    """A column of the table itself, whose uuids are not text."""
    column = contract.column(name)
    uuid = column is not None and str(column.type) == "uuid"
    return f"CAST(t.{quote_identifier(name)} AS VARCHAR)" if uuid else f"t.{quote_identifier(name)}"

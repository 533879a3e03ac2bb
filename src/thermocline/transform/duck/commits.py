"""Commit changes to a table on a draft; each call makes exactly one Iceberg commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, UpdateMode
from thermocline.engine.duck import build_scan
from thermocline.engine.duck_types import quote_identifier
from thermocline.lake import row_counts
from thermocline.transform.duck.append_overwrite import sort_by_partition
from thermocline.transform.duck.key_filters import build_key_filter, has_few_keys
from thermocline.transform.duck.session import FILE, POSITION_COLUMNS, ROW, Session
from thermocline.transform.duck.write_errors import PreparedRows
from thermocline.transform.write_rules import ACTION

if TYPE_CHECKING:
    from thermocline.lake.data_file_reader import Positions
    from thermocline.lake.draft import Draft


@dataclass(frozen=True)
class DraftTable:
    """A table on a draft, and the model's rows, which errors quote."""

    session: Session
    contract: Contract
    draft: Draft
    model: str

    @property
    def current_rows(self) -> str:
        """The table's rows on the draft."""
        return self.session.scan(self.contract.table, self.draft.head(self.contract.table))

    def rows_near(self, batch: str, key: Sequence[str] | None = None) -> str:
        """Return the table's rows that may have a key of a batch, and possibly other rows."""
        near = build_key_filter(self.session, self.contract, key or self.contract.key, batch)
        return f"SELECT * FROM ({self.current_rows}) WHERE {near}"

    def find_rows(self, batch: str) -> str | None:
        """Materialize the same rows with their file positions; None if the batch has many keys.

        Every scan of the table plans all of its files, so one scan serves all later reads.
        """
        if not has_few_keys(self.session, self.contract, batch):
            return None
        head = self.draft.head(self.contract.table)
        rows = self.session.scan(self.contract.table, head, positions=True)
        near = build_key_filter(self.session, self.contract, self.contract.key, batch)
        return self.session.materialize(f"SELECT * FROM ({rows}) WHERE {near}")

    def append(self, rows: str, *, bookmark: Any, operation: str) -> int:
        """Append rows; an empty append still makes a commit, which carries the bookmark."""
        prepare_rows = self._prepare(rows)
        return self.draft.append(
            self.contract.table, prepare_rows, bookmark=bookmark, operation=operation
        )

    def replace(self, rows: str, *, bookmark: Any, operation: str) -> int:
        """Replace the whole table by rows."""
        prepare_rows = self._prepare(rows)
        return self.draft.replace(
            self.contract.table, prepare_rows, bookmark=bookmark, operation=operation
        )

    def apply_actions(
        self,
        changes: str,
        *,
        on: Sequence[str],
        columns: Sequence[str],
        bookmark: Any,
        operation: str,
        found: str | None = None,
    ) -> int:
        """Insert, update and delete rows by their ACTION; the columns `on` identify them.

        `changes` names a table with at most one row per value of these columns. `found` names the
        materialized rows of `find_rows`, if there are any.
        """
        names = ", ".join(quote_identifier(name) for name in columns)
        rows = f"SELECT {names} FROM {changes} WHERE {ACTION} IN ('insert', 'update')"
        removed = self._find_positions(changes, on, found)
        if not removed:
            return self.append(rows, bookmark=bookmark, operation=operation)
        counts = f"SELECT {ACTION}, count(*) FROM {changes} GROUP BY ALL"
        counted = row_counts.count_merge(
            dict(self.session.fetch(counts)), sum(map(len, removed.values()))
        )
        return self.draft.replace_rows(
            self.contract.table,
            self._prepare(rows),
            removed,
            on_read=self.contract.updates is UpdateMode.MERGE_ON_READ,
            bookmark=bookmark,
            operation=operation,
            extra_properties=counted.as_properties(),
        )

    def _find_positions(
        self, changes: str, on: Sequence[str], found: str | None
    ) -> dict[str, Positions]:
        """Return the positions of the rows to delete, by the paths of their files."""
        import numpy as np

        removed_rows = f"SELECT * FROM {changes} WHERE {ACTION} IN ('update', 'delete')"
        if not self.session.fetch(f"SELECT 1 FROM ({removed_rows}) LIMIT 1"):
            return {}
        if found is not None:
            source, near = found, "true"
            same = " AND ".join(f"t.{quote_identifier(n)} = s.{quote_identifier(n)}" for n in on)
        else:
            state = self.draft.lake.state(self.contract.table)
            scanned = build_scan(state.metadata_location, self.draft.head(self.contract.table))
            source = f"(SELECT *, {POSITION_COLUMNS} FROM {scanned})"
            near = build_key_filter(self.session, self.contract, on, changes, alias="t")
            same = " AND ".join(
                f"{_key_text(self.contract, n)} = s.{quote_identifier(n)}" for n in on
            )
        at = self.session.connection.execute(
            f"SELECT t.{FILE}, list(t.{ROW}) FROM {source} AS t "
            f"SEMI JOIN ({removed_rows}) AS s ON {same} WHERE {near} GROUP BY t.{FILE}"
        )
        return {path: np.sort(np.asarray(rows, np.int64)) for path, rows in at.fetchall()}

    def _prepare(self, rows: str) -> PreparedRows:
        return PreparedRows(
            self.session, sort_by_partition(rows, self.contract), self.contract, self.model
        )


def _key_text(contract: Contract, name: str) -> str:
    """Return SQL for a key column of the scanned table; the scan does not cast uuids to text."""
    column = contract.column(name)
    uuid = column is not None and str(column.type) == "uuid"
    return f"CAST(t.{quote_identifier(name)} AS VARCHAR)" if uuid else f"t.{quote_identifier(name)}"

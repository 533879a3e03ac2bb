"""Record what the answers of a router scanned, for maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.serve.analysis.time_range import UNBOUNDED
from thermocline.serve.file_sums import day_of
from thermocline.sql.predicate_columns import find_predicate_columns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from thermocline.serve.provenance import EngineResult
    from thermocline.serve.query_preparation import PreparedQuery
    from thermocline.serve.values import TableHead


class ReadRecorder:
    """Counts scans of files. Answers from memory and cached results scan none."""

    def __init__(self, project: Path) -> None:
        from thermocline.lake.read_log import ReadLog

        self._log = ReadLog(project)

    def record(
        self, prepared: PreparedQuery, result: EngineResult, heads: Mapping[str, TableHead]
    ) -> None:
        """Count the tables that an engine scanned for an answer."""
        if result.access_path.engine == "hot":
            return
        known = {table: heads[table] for table in prepared.tables if table in heads}
        if prepared.predicates is None:
            columns = {table: tuple(head.columns) for table, head in known.items()}
            query = prepared.query
            prepared.predicates = find_predicate_columns(query.tree, query.tables, columns)
        ranges = prepared.time_ranges(heads) if len(known) == len(prepared.tables) else {}
        for table, head in known.items():
            seen = ranges.get(table, UNBOUNDED)
            first, last = (None if at is None else day_of(at) for at in (seen.start, seen.end))
            scanned = head.files.within(first, last)
            filtered = prepared.predicates.get(table, frozenset())
            self._log.record(table, scanned.files, scanned.bytes, filtered)

    def close(self) -> None:
        """Write what has been counted."""
        self._log.flush()

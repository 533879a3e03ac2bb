"""Where a step runs: DuckDB, in this process. Rows are queries, computed as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, WriteMode
from thermocline.engine.duck_types import quote_identifier
from thermocline.errors import ThermoclineError
from thermocline.transform.duck import strategies
from thermocline.transform.duck.commits import DraftTable
from thermocline.transform.duck.python_inputs import PolarsInputs
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.session import Session
from thermocline.transform.duck.write_errors import explain_error
from thermocline.transform.executor import Bookmark, StepWrite
from thermocline.transform.inputs import Inputs, SourceSpan
from thermocline.transform.models import Model
from thermocline.transform.write_rules import ACTION

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.draft import Draft


class DuckExecutor:
    """Computes a run's steps in one DuckDB connection, within the configured memory limit."""

    name = "duckdb"

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.session = Session(lake)
        self._reader = DuckReader(self.session)

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """The exceptions that DuckDB raises for a query that it cannot compute."""
        import duckdb

        return (duckdb.Error,)

    def explain_failure(self, error: Exception, contract: Contract) -> ThermoclineError:
        """Return the error for such a failure."""
        return explain_error(error, contract)

    def open_inputs(
        self, model: Model, spans: Mapping[str, SourceSpan]
    ) -> Inputs[str] | PolarsInputs:
        """Open the input of a step."""
        if not model.is_sql:
            return PolarsInputs(model, spans, self.session)
        return self.open_sql_inputs(model, spans)

    def open_sql_inputs(self, model: Model, spans: Mapping[str, SourceSpan]) -> Inputs[str]:
        """Open the input of a SQL model's step."""
        return Inputs(self._lake, model, spans, self._reader)

    def write(self, rows: str, target: StepWrite) -> int:
        """Write a model's rows to the draft as its contract says."""
        model, touched = target.model, target.touched
        more: dict[str, Any] = {}
        if touched is not None and model.contract.write is WriteMode.PARTITIONS:
            more["computed"] = touched.as_dicts()
        elif touched is not None:
            more["affected"] = self.session.materialize(self._reader.register_parts(model, touched))
        return strategies.write(
            self.session, rows, model.contract, target.draft,
            bookmark=target.bookmark, full=target.full, **more,
        )  # fmt: skip

    def apply_changes(
        self, changes: ChangeSet, contract: Contract, draft: Draft, bookmark: Bookmark | None
    ) -> int:
        """Apply inserted, updated and deleted rows to a table of the draft."""
        names = ", ".join(quote_identifier(column.name) for column in contract.table_columns)
        parts = {"update": (changes.inserts, changes.after), "delete": (changes.deletes,)}
        changed_rows = " UNION ALL ".join(
            f"SELECT {names}, '{action}' AS {ACTION} FROM {self.session.register(rows)}"
            for action, some in parts.items()
            for rows in some
        )
        try:
            target = DraftTable(self.session, contract, draft, changed_rows)
            return target.apply_actions(
                self.session.materialize(changed_rows),
                on=contract.shape.key,
                columns=[column.name for column in contract.table_columns],
                bookmark=bookmark,
                operation=str(contract.write),
            )
        finally:
            self.session.clear()

    def close(self) -> None:
        """Close the connection."""
        self.session.close()

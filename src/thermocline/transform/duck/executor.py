"""Where a step runs: DuckDB, in this process. Rows are queries, computed as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, WriteMode
from thermocline.engine.duck_types import quote_identifier
from thermocline.errors import ThermoclineError
from thermocline.transform.duck import strategies
from thermocline.transform.duck.commits import Target
from thermocline.transform.duck.python_inputs import PolarsInputs
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.session import Session
from thermocline.transform.duck.write_errors import judged
from thermocline.transform.inputs import Inputs, Span
from thermocline.transform.models import Model
from thermocline.transform.target_parts import Touched
from thermocline.transform.write_rules import ACTION

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.draft import Draft


class DuckExecutor:
    """Computes steps in one DuckDB connection of the run, with the memory that settings give it."""

    name = "duckdb"

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.session = Session(lake)
        self._reader = DuckReader(self.session)

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What it raises for a query that it cannot compute."""
        import duckdb

        return (duckdb.Error,)

    def failed(self, error: Exception, contract: Contract) -> ThermoclineError:
        """Such a failure in our words."""
        return judged(error, contract)

    def inputs(self, model: Model, spans: Mapping[str, Span]) -> Inputs[str] | PolarsInputs:
        """What a step reads."""
        if not model.is_sql:
            return PolarsInputs(model, spans, self.session)
        return self.sql_inputs(model, spans)

    def sql_inputs(self, model: Model, spans: Mapping[str, Span]) -> Inputs[str]:
        """What a step of a SQL model reads."""
        return Inputs(self._lake, model, spans, self._reader)

    def write(
        self,
        rows: str,
        model: Model,
        draft: Draft,
        *,
        bookmark: Mapping[str, Any] | None,
        full: bool = False,
        touched: Touched | None = None,
    ) -> int:
        """Write a model's rows to the draft as its contract says."""
        more: dict[str, Any] = {}
        if touched is not None and model.contract.write is WriteMode.PARTITIONS:
            more["computed"] = touched.as_dicts()
        elif touched is not None:
            more["affected"] = self.session.keep(self._reader.touched(model, touched))
        return strategies.write(
            self.session, rows, model.contract, draft, bookmark=bookmark, full=full, **more
        )

    def replay(
        self,
        changes: ChangeSet,
        contract: Contract,
        draft: Draft,
        *,
        bookmark: Mapping[str, Any] | None,
    ) -> int:
        """Put rows that were inserted, changed and deleted elsewhere into a table of the draft."""
        names = ", ".join(quote_identifier(column.name) for column in contract.table_columns)
        parts = {"update": (changes.inserts, changes.after), "delete": (changes.deletes,)}
        marked = " UNION ALL ".join(
            f"SELECT {names}, '{action}' AS {ACTION} FROM {self.session.register(rows)}"
            for action, some in parts.items()
            for rows in some
        )
        try:
            target = Target(self.session, contract, draft, marked)
            return target.change(
                self.session.keep(marked),
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

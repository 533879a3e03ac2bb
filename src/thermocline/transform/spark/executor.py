"""Compute steps on Spark. Rows are data frames, which Spark's executors compute and write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.contract.definition import Contract, WriteMode
from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.errors import ThermoclineError
from thermocline.transform import target_parts
from thermocline.transform.executor import Bookmark, StepWrite, build_compute_error
from thermocline.transform.inputs import Inputs, SourceSpan
from thermocline.transform.models import Model
from thermocline.transform.spark import strategies
from thermocline.transform.spark.python_inputs import FunctionInputs
from thermocline.transform.spark.reader import SparkReader, create_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.lake import Lake
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.draft import Draft


class SparkExecutor:
    """Computes steps in the lake's Spark session, which starts with the first step."""

    name = "spark"

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """The exceptions that Spark raises for a query that it cannot compute."""
        from pyspark.errors import PySparkException

        return (PySparkException,)

    def explain_failure(self, error: Exception, contract: Contract) -> ThermoclineError:
        """Return the error for such a failure."""
        return build_compute_error(contract, error)

    def open_inputs(
        self, model: Model, spans: Mapping[str, SourceSpan]
    ) -> Inputs[DataFrame] | FunctionInputs:
        """Open the input of a step."""
        if model.is_sql:
            return Inputs(self._lake, model, spans, SparkReader(self._lake))
        return FunctionInputs(model, spans, self._lake)

    def write(self, rows: DataFrame, target: StepWrite) -> int:
        """Write a model's rows to the draft as its contract says; see `strategies.write`."""
        contract, touched = target.model.contract, target.touched
        more: dict[str, Any] = {}
        if touched is not None and contract.write is WriteMode.PARTITIONS:
            more["computed"] = target_parts.build_condition(target.model, touched)
        elif touched is not None:
            more["affected"] = self._lake.spark.session.createDataFrame(
                [tuple(value) for value in touched.values], schema=_build_key_schema(contract)
            )
        return strategies.write(
            rows, contract, target.draft, bookmark=target.bookmark, full=target.full, **more
        )

    def apply_changes(
        self, changes: ChangeSet, contract: Contract, draft: Draft, bookmark: Bookmark | None
    ) -> int:
        """Apply inserted, updated and deleted rows to a table of the draft."""

        def commit(target: str) -> None:
            _merge_changes(self._lake, contract, changes, target)

        operation = str(contract.write)
        return draft.commit(contract.table, commit, bookmark=bookmark, operation=operation)

    def close(self) -> None:
        """Keep the session open: the lake's owner closes it."""


def _merge_changes(lake: Lake, contract: Contract, changes: ChangeSet, target: str) -> None:
    """Upsert the changed rows and remove the deleted ones, in one commit."""
    import pyarrow as pa

    session = lake.spark.session
    kept, deleted = pa.concat_tables([changes.inserts, changes.after]), changes.deletes
    flags = pa.array([False] * kept.num_rows + [True] * deleted.num_rows)
    rows = pa.concat_tables([kept, deleted]).append_column("_tc_gone", flags)
    names = [column.name for column in contract.table_columns]
    view = f"_tc_replay_{uuid4().hex}"
    create_frame(lake, rows, contract.table, {"_tc_gone": "boolean"}).createTempView(view)
    on = " and ".join(
        f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in contract.shape.key
    )
    columns = ", ".join(map(quote_identifier, names))
    values = ", ".join(f"s.{quote_identifier(name)}" for name in names)
    updates = ", ".join(
        f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in names
    )
    try:
        session.sql(
            f"merge into {target} as t using {view} as s on {on} "
            f"when matched and s._tc_gone then delete "
            f"when matched then update set {updates} "
            f"when not matched and not s._tc_gone then insert ({columns}) values ({values})"
        )
    finally:
        session.catalog.dropTempView(view)


def _build_key_schema(contract: Contract) -> str:
    columns = (contract.column(name) for name in contract.key)
    return ", ".join(
        f"{quote_identifier(c.name)} {to_ddl(c.type)}" for c in columns if c is not None
    )

"""Explain failed writes in terms of the contract: which column, which values.

Finding the rows costs a pass over them, so it happens only after a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.errors import CheckFailed
from thermocline.transform import row_errors
from thermocline.transform.spark.conform import conform_rows
from thermocline.transform.write_rules import DELETED, written_columns

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract

_DATA_EXCEPTION = "22"  # the SQL standard's class of "this value does not fit"


@contextmanager
def explain_errors(rows: DataFrame, contract: Contract) -> Iterator[None]:
    """Turn Spark's errors about values into CheckFailed that names the column and the values.

    Other errors, and errors about values inside the model, are raised unchanged.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = _explain_error(error, rows, contract)
        if found is None:
            raise
        raise found from error


def build_missing_key_error(
    rows: DataFrame, contract: Contract, needed: Sequence[str], count: int
) -> CheckFailed:
    """Build the error for rows without a value in a column that every row needs."""
    return row_errors.missing_values_error(contract, needed, count, _read_examples(rows, contract))


def _explain_error(
    error: PySparkException, rows: DataFrame, contract: Contract
) -> CheckFailed | None:
    condition, state = error.getCondition() or "", error.getSqlState() or ""
    if condition == "NOT_NULL_ASSERT_VIOLATION":
        return _find_nulls(rows, contract)
    if condition == "USER_RAISED_EXCEPTION" and f"{contract.table}: " in str(error):
        message = (error.getMessageParameters() or {}).get("errorMessage", str(error))
        return CheckFailed(message, "Nothing was written.", table=contract.table)
    if state.startswith(_DATA_EXCEPTION):
        return _find_cast_errors(rows, contract)
    return None


def _find_nulls(rows: DataFrame, contract: Contract) -> CheckFailed | None:
    """Build the error for required columns that are null in a row to write; None without any."""
    from pyspark.sql import functions as F

    needed = row_errors.identifying_columns(contract)
    required = row_errors.required_columns(contract)
    every = conform_rows(rows, contract, deletes=True)

    def broken(name: str) -> Expression:
        # A delete may leave all columns null except its key and its time.
        written = F.lit(True) if name in needed else ~F.col(DELETED)
        return F.col(quote_identifier(name)).isNull() & written

    counts = every.agg(*(F.count_if(broken(name)) for name in required)).first() or ()
    empty = {name: count for name, count in zip(required, counts, strict=False) if count}
    if not empty:
        return None
    first = next(iter(empty))
    return row_errors.null_error(
        contract, empty, _read_examples(every.where(broken(first)), contract)
    )


def _find_cast_errors(rows: DataFrame, contract: Contract) -> CheckFailed | None:
    """Build the error for values that cannot be cast to the contract's type; None without any."""
    from pyspark.sql import functions as F

    have = {field.name.lower(): field.name for field in rows.schema.fields}
    columns = row_errors.castable_columns(contract, have)
    aggregates = []
    for column in columns:
        value = F.col(quote_identifier(have[column.name.lower()]))
        bad = value.isNotNull() & value.try_cast(to_ddl(column.type)).isNull()
        aggregates += [F.count_if(bad), F.min(F.when(bad, value.cast("string")))]
    answer = rows.agg(*aggregates).first()
    return None if answer is None else row_errors.cast_error(contract, columns, answer)


def _read_examples(rows: DataFrame, contract: Contract) -> list[str]:
    """Return a few rows as JSON, in the columns that the contract writes."""
    columns = [quote_identifier(column.name) for column in written_columns(contract)]
    return [*rows.select(*columns).limit(row_errors.MAX_EXAMPLES).toJSON().collect()]

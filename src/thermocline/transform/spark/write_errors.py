"""What went wrong in a write, in the contract's words: which column, which values.

Looking for the rows costs a pass over them, so it happens after a failure and never before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.errors import CheckFailed
from thermocline.transform.row_errors import (
    MAX_EXAMPLES,
    cast_error,
    castable_columns,
    identifying_columns,
    missing_values_error,
    null_error,
    required_columns,
)
from thermocline.transform.spark.conform import shaped
from thermocline.transform.write_rules import DELETED, written_columns

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract

_DATA_EXCEPTION = "22"  # the SQL standard's class of "this value does not fit"


@contextmanager
def explained(rows: DataFrame, contract: Contract) -> Iterator[None]:
    """Turn Spark's complaint about a value into CheckFailed that names column and values.

    What is no complaint about a value, or one about a value inside the model, passes unchanged.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = _explanation(error, rows, contract)
        if found is None:
            raise
        raise found from error


def without(rows: DataFrame, contract: Contract, needed: Sequence[str], count: int) -> CheckFailed:
    """Return the error for rows that lack one of the columns they cannot be written without."""
    return missing_values_error(contract, needed, count, _examples(rows, contract))


def _explanation(
    error: PySparkException, rows: DataFrame, contract: Contract
) -> CheckFailed | None:
    condition, state = error.getCondition() or "", error.getSqlState() or ""
    if condition == "NOT_NULL_ASSERT_VIOLATION":
        return _missing(rows, contract)
    if condition == "USER_RAISED_EXCEPTION" and f"{contract.table}: " in str(error):
        said = (error.getMessageParameters() or {}).get("errorMessage", str(error))
        return CheckFailed(said, "Nothing was written.", table=contract.table)
    if state.startswith(_DATA_EXCEPTION):
        return _misfits(rows, contract)
    return None


def _missing(rows: DataFrame, contract: Contract) -> CheckFailed | None:
    """Required columns that have no value in a row that is to be written."""
    from pyspark.sql import functions as F

    needed, required = identifying_columns(contract), required_columns(contract)
    every = shaped(rows, contract, deletes=True)

    def broken(name: str) -> Expression:
        # A delete may leave everything empty but its key and its time.
        written = F.lit(True) if name in needed else ~F.col(DELETED)
        return F.col(quote_identifier(name)).isNull() & written

    counts = every.agg(*(F.count_if(broken(name)) for name in required)).first() or ()
    empty = {name: count for name, count in zip(required, counts, strict=False) if count}
    if not empty:
        return None
    first = next(iter(empty))
    return null_error(contract, empty, _examples(every.where(broken(first)), contract))


def _misfits(rows: DataFrame, contract: Contract) -> CheckFailed | None:
    """Columns with values that cannot be cast to the contract's type; None if there is none."""
    from pyspark.sql import functions as F

    have = {field.name.lower(): field.name for field in rows.schema.fields}
    columns = castable_columns(contract, have)
    asked = []
    for column in columns:
        value = F.col(quote_identifier(have[column.name.lower()]))
        bad = value.isNotNull() & value.try_cast(to_ddl(column.type)).isNull()
        asked += [F.count_if(bad), F.min(F.when(bad, value.cast("string")))]
    answer = rows.agg(*asked).first()
    return None if answer is None else cast_error(contract, columns, answer)


def _examples(rows: DataFrame, contract: Contract) -> list[str]:
    """Return a few rows as JSON, in the columns that the contract writes."""
    columns = [quote_identifier(column.name) for column in written_columns(contract)]
    return [*rows.select(*columns).limit(MAX_EXAMPLES).toJSON().collect()]

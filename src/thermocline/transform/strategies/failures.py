"""What went wrong in a write, in the contract's words: which column, which values.

Looking for the rows costs a pass over them, so it happens after a failure and never before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thermocline.contract.types import List, Map, Struct
from thermocline.engine.spark_types import ddl, quoted
from thermocline.errors import CheckFailed
from thermocline.transform.strategies.shaping import DELETED, shaped, written_columns

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract

_DATA_EXCEPTION = "22"  # the SQL standard's class of "this value does not fit"
_SHOWN = 3


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
    """The error for rows that lack one of the columns they cannot be written without."""
    examples = rows.select(*_shown(contract)).limit(_SHOWN).toJSON().collect()
    return CheckFailed(
        f"{contract.table}: {count:,} rows have no {' or no '.join(needed)}: {', '.join(examples)}",
        "Filter them out in the model, or mend them at the source. Nothing was written.",
        table=contract.table,
        rows=examples,
    )


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

    needed = {*contract.key, *(contract.order_by[:1] if contract.write == "scd2" else ())}
    required = [c.name for c in written_columns(contract) if c.required or c.name in needed]
    every = shaped(rows, contract, deletes=True)

    def broken(name: str) -> Expression:
        # A delete may leave everything empty but its key and its time.
        written = F.lit(True) if name in needed else ~F.col(DELETED)
        return F.col(quoted(name)).isNull() & written

    counts = every.agg(*(F.count_if(broken(name)) for name in required)).first() or ()
    empty = {name: count for name, count in zip(required, counts, strict=False) if count}
    if not empty:
        return None
    first = next(iter(empty))
    examples = every.where(broken(first)).select(*_shown(contract)).limit(_SHOWN).toJSON().collect()
    counted = ", ".join(f"{name} is null in {count:,} rows" for name, count in empty.items())
    return CheckFailed(
        f"{contract.table}: {counted}, which the contract does not allow: {', '.join(examples)}",
        "Fill it in the model, or relax `required` in the contract. Nothing was written.",
        table=contract.table,
        columns=list(empty),
        rows=examples,
    )


def _misfits(rows: DataFrame, contract: Contract) -> CheckFailed | None:
    """Columns with values that cannot be cast to the contract's type; None if there is none."""
    from pyspark.sql import functions as F

    have = {field.name.lower(): field.name for field in rows.schema.fields}
    columns = [
        (column, F.col(quoted(have[column.name.lower()])))
        for column in written_columns(contract)
        if column.name.lower() in have and not isinstance(column.type, Struct | List | Map)
    ]
    asked = []
    for column, value in columns:
        bad = value.isNotNull() & value.try_cast(ddl(column.type)).isNull()
        asked += [F.count_if(bad), F.min(F.when(bad, value.cast("string")))]
    answer = rows.agg(*asked).first()
    if answer is None:
        return None
    found = {
        column.name: f"{column.name}: {answer[2 * i]:,} values are no {column.type}, "
        f"for example {answer[2 * i + 1]!r}"
        for i, (column, _) in enumerate(columns)
        if answer[2 * i]
    }
    if not found:
        return None
    return CheckFailed(
        f"{contract.table}: {'; '.join(found.values())}.",
        "Clean the values in the model, or widen the type in the contract. Nothing was written.",
        table=contract.table,
        columns=list(found),
    )


def _shown(contract: Contract) -> list[str]:
    return [quoted(column.name) for column in written_columns(contract)]

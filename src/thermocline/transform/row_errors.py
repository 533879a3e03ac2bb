"""Errors for rows that do not fit their contract, with the same text on every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thermocline.contract.definition import Column, Contract, WriteMode
from thermocline.contract.types import List, Map, Struct
from thermocline.errors import CheckFailed
from thermocline.transform.write_rules import written_columns

MAX_EXAMPLES = 3
"""How many broken rows an error quotes."""


def identifying_columns(contract: Contract) -> set[str]:
    """Return the columns that need a value in every row, even in a delete: key and instant."""
    instant = contract.order_by[:1] if contract.write is WriteMode.SCD2 else ()
    return {*contract.key, *instant}


def required_columns(contract: Contract) -> list[str]:
    """Return the columns that must have a value in every row that is not a delete."""
    identifying = identifying_columns(contract)
    columns = written_columns(contract)
    return [c.name for c in columns if c.required or c.name in identifying]


def castable_columns(contract: Contract, available: Mapping[str, str]) -> list[Column]:
    """Return the written columns without nested types that are among the `available` names."""
    return [
        column
        for column in written_columns(contract)
        if column.name.lower() in available and not isinstance(column.type, Struct | List | Map)
    ]


def missing_values_error(
    contract: Contract, columns: Sequence[str], count: int, examples: list[str]
) -> CheckFailed:
    """Build the error for rows without a value in one of the columns that identify them."""
    missing = " or no ".join(columns)
    return CheckFailed(
        f"{contract.table}: {count:,} rows have no {missing}: {', '.join(examples)}",
        "Filter them out in the model, or fix them at the source. Nothing was written.",
        table=contract.table,
        rows=examples,
    )


def null_error(contract: Contract, counts: Mapping[str, int], examples: list[str]) -> CheckFailed:
    """Build the error for required columns that hold nulls; `counts` gives the rows of each."""
    counted = ", ".join(f"{name} is null in {count:,} rows" for name, count in counts.items())
    return CheckFailed(
        f"{contract.table}: {counted}, which the contract does not allow: {', '.join(examples)}",
        "Fill it in the model, or relax `required` in the contract. Nothing was written.",
        table=contract.table,
        columns=list(counts),
        rows=examples,
    )


def cast_error(
    contract: Contract, columns: Sequence[Column], counts: Sequence[Any]
) -> CheckFailed | None:
    """Build the error for values that are not of their column's type; None if all are.

    `counts` has for each column how many values cannot be cast, and the least of them.
    """
    found = {
        column.name: f"{column.name}: {counts[2 * i]:,} values are no {column.type}, "
        f"for example {counts[2 * i + 1]!r}"
        for i, column in enumerate(columns)
        if counts[2 * i]
    }
    if not found:
        return None
    return CheckFailed(
        f"{contract.table}: {'; '.join(found.values())}.",
        "Clean the values in the model, or widen the type in the contract. Nothing was written.",
        table=contract.table,
        columns=list(found),
    )

"""Explain failed writes in terms of the contract, as `spark/write_errors.py` does for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract
from thermocline.engine.duck import SPARK_NEXT_STEP, UnsupportedByDuckDB
from thermocline.engine.duck_types import quote_identifier
from thermocline.errors import CheckFailed, Permanent, ThermoclineError, first_line
from thermocline.transform import row_errors
from thermocline.transform.duck.conform import cast_columns, conform_rows
from thermocline.transform.duck.session import UNSUPPORTED_PREFIX, Session
from thermocline.transform.executor import advise_model_fix, build_compute_error
from thermocline.transform.write_rules import DELETED, written_columns

if TYPE_CHECKING:
    import pyarrow as pa

_NEEDS_SPARK = ("Out of Memory Error", "Binder Error", "Catalog Error", "Parser Error",
           "Not implemented Error")  # fmt: skip
"""Beginnings of DuckDB's errors for what it does not support or has no memory for. In the middle of
a result, Arrow passes only the text of an error."""


_MODEL_ERRORS = ("Binder Error: Referenced ", 'Binder Error: Table "', "Binder Error: Ambiguous ",
          "Binder Error: column ", "Catalog Error: Table with name",
          "Catalog Error: Type with name", "Parser Error")  # fmt: skip
"""Beginnings of errors that every engine would raise, mostly for names that do not exist."""
_UNKNOWN_FUNCTIONS = ("Catalog Error: Scalar Function", "Catalog Error: Table Function",
            "Catalog Error: Aggregate Function", "Catalog Error: Function")  # fmt: skip
"""Beginnings of errors for a function that DuckDB does not have; Spark may have it."""


@dataclass(frozen=True)
class PreparedRows:
    """Rows to write into a table: computed while they are read, and checked against its contract.

    `model` are the model's unconverted rows, which errors quote.
    """

    session: Session
    sql: str
    contract: Contract
    model: str

    def __iter__(self) -> Iterator[pa.Table]:
        required = [c.name for c in self.contract.table_columns if c.required]
        with explain_errors(self.session, self.model, self.contract):
            for part in self.session.stream(self.sql):
                if any(part[name].null_count for name in required if name in part.column_names):
                    raise build_null_error(self.session, self.model, self.contract)
                yield part


@contextmanager
def explain_errors(session: Session, rows: str, contract: Contract) -> Iterator[None]:
    """Turn DuckDB's errors about values into CheckFailed that names the column and the values.

    What DuckDB does not support becomes UnsupportedByDuckDB.
    """
    import duckdb

    try:
        yield
    except (duckdb.Error, OSError) as error:  # in the middle of a result, Arrow raises OSError
        found = explain_error(error, contract)
        if type(found) is Permanent:
            found = _find_cast_errors(session, rows, contract) or found
        raise found from error


def explain_error(error: Exception, contract: Contract) -> ThermoclineError:
    """Classify a DuckDB error: unsupported, raised by our own SQL, or an error of the model."""
    text = first_line(error)
    if text.startswith(_MODEL_ERRORS):
        return UnsupportedByDuckDB(
            f"{contract.table}: {text}{_describe_candidates(error)}", advise_model_fix(contract)
        )
    if text.startswith(_UNKNOWN_FUNCTIONS):
        step = f"Correct its name in models/{contract.layer}. If it is a function of Spark: {{}}"
        return UnsupportedByDuckDB(
            f"{contract.table}: {text}",
            step.format(SPARK_NEXT_STEP[0].lower() + SPARK_NEXT_STEP[1:]),
        )
    if text.startswith(_NEEDS_SPARK) or UNSUPPORTED_PREFIX in text:
        return UnsupportedByDuckDB(f"{contract.table}: {text}")
    message = text.partition("Invalid Input Error: ")[2]
    if message.startswith(f"{contract.table}: "):
        return CheckFailed(message, "Nothing was written.", table=contract.table)
    return build_compute_error(contract, error)


def _describe_candidates(error: Exception) -> str:
    """Return the columns that DuckDB suggests for a missing one."""
    lines = (line.strip() for line in str(error).splitlines())
    found = next((line for line in lines if line.startswith("Candidate bindings: ")), "")
    return (
        f" There are: {found.removeprefix('Candidate bindings: ').lstrip(': ')}." if found else ""
    )


def build_missing_key_error(
    session: Session, rows: str, contract: Contract, needed: Sequence[str], count: int
) -> CheckFailed:
    """Build the error for rows without a value in a column that every row needs."""
    return row_errors.missing_values_error(
        contract, needed, count, _read_examples(session, rows, contract)
    )


def build_null_error(session: Session, rows: str, contract: Contract) -> ThermoclineError:
    """Build the error for required columns that are null in a row to write."""
    needed = row_errors.identifying_columns(contract)
    required = row_errors.required_columns(contract)
    every = conform_rows(session, rows, contract, deletes=True)

    def broken(name: str) -> str:
        # A delete may leave all columns null except its key and its time.
        written = "true" if name in needed else f"NOT {DELETED}"
        return f"({quote_identifier(name)} IS NULL AND {written})"

    aggregates = ", ".join(f"count_if({broken(name)})" for name in required)
    counts = session.fetch(f"SELECT {aggregates} FROM ({every})")[0]
    empty = {name: count for name, count in zip(required, counts, strict=True) if count}
    first = next(iter(empty))
    examples = _read_examples(session, f"SELECT * FROM ({every}) WHERE {broken(first)}", contract)
    return row_errors.null_error(contract, empty, examples)


def _find_cast_errors(session: Session, rows: str, contract: Contract) -> CheckFailed | None:
    """Build the error for values that cannot be cast to the contract's type; None without any."""
    import duckdb

    have = {name.lower(): name for name in session.describe(rows)}
    columns = row_errors.castable_columns(contract, have)
    values = cast_columns(session, rows, contract, columns, lenient=True)
    aggregates = []
    for column in columns:
        value = quote_identifier(have[column.name.lower()])
        bad = f"{value} IS NOT NULL AND {values[column.name]} IS NULL"
        aggregates += [
            f"count_if({bad})",
            f"min(CASE WHEN {bad} THEN CAST({value} AS VARCHAR) END)",
        ]
    try:
        answer = (
            session.fetch(f"SELECT {', '.join(aggregates)} FROM ({rows})")[0] if aggregates else ()
        )
    except duckdb.Error:
        return None  # it fails inside the model
    return row_errors.cast_error(contract, columns, answer) if columns else None


def _read_examples(session: Session, rows: str, contract: Contract) -> list[str]:
    names = ", ".join(quote_identifier(column.name) for column in written_columns(contract))
    found = session.connection.execute(
        f"SELECT {names} FROM ({rows}) LIMIT {row_errors.MAX_EXAMPLES}"
    )
    return [_format_json(row) for row in found.to_arrow_table().to_pylist()]


def _format_json(row: dict[str, Any]) -> str:
    """Format a row as Spark does: without nulls, decimals as numbers."""
    import json

    def text(value: Any) -> str:
        return str(value) if isinstance(value, Decimal) else json.dumps(value, default=str)

    members = (f"{json.dumps(k)}:{text(v)}" for k, v in row.items() if v is not None)
    return f"{{{','.join(members)}}}"

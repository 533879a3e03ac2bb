"""What went wrong in a write, in the contract's words, as `strategies.failures` has it of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract
from thermocline.engine.duck_types import quote_identifier
from thermocline.errors import CheckFailed, Permanent, ThermoclineError
from thermocline.transform.duck.conform import fitted, shaped
from thermocline.transform.duck.session import BY_SPARK, UNABLE, Session, Unable
from thermocline.transform.executor import cannot_compute, first_line, wrong_model
from thermocline.transform.row_errors import (
    MAX_EXAMPLES,
    cast_error,
    castable_columns,
    identifying_columns,
    missing_values_error,
    null_error,
    required_columns,
)
from thermocline.transform.write_rules import DELETED, written_columns

if TYPE_CHECKING:
    import pyarrow as pa

_BEYOND = ("Out of Memory Error", "Binder Error", "Catalog Error", "Parser Error",
           "Not implemented Error")  # fmt: skip
"""How DuckDB begins to speak of what it does not know or has no room for; in the midst of a
result, the text is all that Arrow leaves of its errors."""


_WRONG = ("Binder Error: Referenced ", 'Binder Error: Table "', "Binder Error: Ambiguous ",
          "Binder Error: column ", "Catalog Error: Table with name",
          "Catalog Error: Type with name", "Parser Error")  # fmt: skip
"""How it speaks of what no other engine would know either: names that are not there, mostly."""
_UNKNOWN = ("Catalog Error: Scalar Function", "Catalog Error: Table Function",
            "Catalog Error: Aggregate Function", "Catalog Error: Function")  # fmt: skip
"""How it speaks of a function that it does not have; Spark may."""


@dataclass(frozen=True)
class Ready:
    """Rows on their way into a table: computed as they are asked for, and held to its contract.

    `model` are the rows as the model gave them, among which a failure is looked for.
    """

    session: Session
    sql: str
    contract: Contract
    model: str

    def __iter__(self) -> Iterator[pa.Table]:
        with_value = [c.name for c in self.contract.table_columns if c.required]
        with explained(self.session, self.model, self.contract):
            for part in self.session.stream(self.sql):
                if any(part[name].null_count for name in with_value if name in part.column_names):
                    raise missing(self.session, self.model, self.contract)
                yield part


@contextmanager
def explained(session: Session, rows: str, contract: Contract) -> Iterator[None]:
    """Turn DuckDB's complaint into CheckFailed that names column and values, where there is one.

    What it cannot do at all becomes Unable.
    """
    import duckdb

    try:
        yield
    except (duckdb.Error, OSError) as error:  # in the midst of a result, Arrow makes it an OSError
        found = judged(error, contract)
        if type(found) is Permanent:
            found = _misfits(session, rows, contract) or found
        raise found from error


def judged(error: Exception, contract: Contract) -> ThermoclineError:
    """What a failure of DuckDB is: beyond it, told by ourselves, or the model's own."""
    said = first_line(error)
    if said.startswith(_WRONG):
        return Unable(f"{contract.table}: {said}{_meant(error)}", wrong_model(contract))
    if said.startswith(_UNKNOWN):
        step = f"Correct its name in models/{contract.layer}. If it is a function of Spark: {{}}"
        return Unable(f"{contract.table}: {said}", step.format(BY_SPARK[0].lower() + BY_SPARK[1:]))
    if said.startswith(_BEYOND) or UNABLE in said:
        return Unable(f"{contract.table}: {said}")
    told = said.partition("Invalid Input Error: ")[2]
    if told.startswith(f"{contract.table}: "):
        return CheckFailed(told, "Nothing was written.", table=contract.table)
    return cannot_compute(contract, error)


def _meant(error: Exception) -> str:
    """The columns that DuckDB says are there instead of one that is not."""
    lines = (line.strip() for line in str(error).splitlines())
    found = next((line for line in lines if line.startswith("Candidate bindings: ")), "")
    return (
        f" There are: {found.removeprefix('Candidate bindings: ').lstrip(': ')}." if found else ""
    )


def without(
    session: Session, rows: str, contract: Contract, needed: Sequence[str], count: int
) -> CheckFailed:
    """The error for rows that lack one of the columns they cannot be written without."""
    return missing_values_error(contract, needed, count, _examples(session, rows, contract))


def missing(session: Session, rows: str, contract: Contract) -> ThermoclineError:
    """The error for required columns that have no value in a row that is to be written."""
    needed, required = identifying_columns(contract), required_columns(contract)
    every = shaped(session, rows, contract, deletes=True)

    def broken(name: str) -> str:
        # A delete may leave everything empty but its key and its time.
        written = "true" if name in needed else f"NOT {DELETED}"
        return f"({quote_identifier(name)} IS NULL AND {written})"

    asked = ", ".join(f"count_if({broken(name)})" for name in required)
    counts = session.rows(f"SELECT {asked} FROM ({every})")[0]
    empty = {name: count for name, count in zip(required, counts, strict=True) if count}
    first = next(iter(empty))
    examples = _examples(session, f"SELECT * FROM ({every}) WHERE {broken(first)}", contract)
    return null_error(contract, empty, examples)


def _misfits(session: Session, rows: str, contract: Contract) -> CheckFailed | None:
    """Columns with values that cannot be cast to the contract's type; None if there is none."""
    import duckdb

    have = {name.lower(): name for name in session.columns(rows)}
    columns = castable_columns(contract, have)
    values = fitted(session, rows, contract, columns, forgiving=True)
    asked = []
    for column in columns:
        value = quote_identifier(have[column.name.lower()])
        bad = f"{value} IS NOT NULL AND {values[column.name]} IS NULL"
        asked += [f"count_if({bad})", f"min(CASE WHEN {bad} THEN CAST({value} AS VARCHAR) END)"]
    try:
        answer = session.rows(f"SELECT {', '.join(asked)} FROM ({rows})")[0] if asked else ()
    except duckdb.Error:
        return None  # it fails inside the model
    return cast_error(contract, columns, answer) if columns else None


def _examples(session: Session, rows: str, contract: Contract) -> list[str]:
    names = ", ".join(quote_identifier(column.name) for column in written_columns(contract))
    found = session.connection.execute(f"SELECT {names} FROM ({rows}) LIMIT {MAX_EXAMPLES}")
    return [_as_json(row) for row in found.to_arrow_table().to_pylist()]


def _as_json(row: dict[str, Any]) -> str:
    """A row as Spark writes it: without what is null, decimals as numbers."""
    import json

    def said(value: Any) -> str:
        return str(value) if isinstance(value, Decimal) else json.dumps(value, default=str)

    shown = (f"{json.dumps(k)}:{said(v)}" for k, v in row.items() if v is not None)
    return f"{{{','.join(shown)}}}"

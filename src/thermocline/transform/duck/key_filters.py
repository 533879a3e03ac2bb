"""Filters that let DuckDB skip files that cannot hold a key of a batch.

A merge needs only the table's rows that have a key of the batch. DuckDB skips files by comparing
their statistics with literals; a join alone skips none. A file without statistics is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from thermocline.contract.definition import Contract
from thermocline.engine.duck import quote_literal
from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.transform.duck.session import Session

_COMPARABLE = {"int", "long", "date", "string"}
"""Key types to filter by: DuckDB and all writers order their values in the same way."""
MAX_LITERALS = 500
"""For more keys, the filter is the range from the least to the greatest."""


def build_key_filter(
    session: Session, contract: Contract, on: Sequence[str], batch: str, alias: str = ""
) -> str:
    """Build a condition that holds for every row whose columns `on` equal a row of the batch."""
    found = (_build_column_filter(session, contract, name, batch, alias) for name in on)
    return " AND ".join(each for each in found if each is not None) or "true"


def has_few_keys(session: Session, contract: Contract, batch: str) -> bool:
    """Return whether the filter lists every key of a batch, so that it matches few other rows."""
    columns = [contract.column(name) for name in contract.key]
    if not all(column is not None and str(column.type) in _COMPARABLE for column in columns):
        return False
    return len(session.fetch(f"SELECT 1 FROM {batch} LIMIT {MAX_LITERALS + 1}")) <= MAX_LITERALS


def _build_column_filter(
    session: Session, contract: Contract, name: str, batch: str, alias: str
) -> str | None:
    column = contract.column(name)
    if column is None or str(column.type) not in _COMPARABLE:
        return None
    kind, it = (
        to_ddl(column.type),
        f"{alias}.{quote_identifier(name)}" if alias else quote_identifier(name),
    )
    values = f"SELECT DISTINCT CAST({quote_identifier(name)} AS {kind}) AS v FROM {batch}"
    there = f"SELECT v FROM ({values}) WHERE v IS NOT NULL LIMIT {MAX_LITERALS + 1}"
    texts = [text for (text,) in session.fetch(f"SELECT CAST(v AS VARCHAR) FROM ({there})")]
    if not texts:
        return "false"
    many = len(texts) > MAX_LITERALS
    if many:
        least = f"SELECT CAST(min(v) AS VARCHAR), CAST(max(v) AS VARCHAR) FROM ({values})"
        texts = list(session.fetch(least)[0])
    if any("\0" in text for text in texts):
        return None  # no SQL can name it
    named = [f"CAST({quote_literal(text)} AS {kind})" for text in texts]
    return f"{it} BETWEEN {named[0]} AND {named[1]}" if many else f"{it} IN ({', '.join(named)})"

"""Conditions by which DuckDB leaves out the files that cannot hold a key of a batch.

A merge only needs the rows of its table that have a key of the batch. DuckDB opens no file whose
statistics say that it has none of some literals; it does not find that out by joining. A file
without statistics is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from thermocline.contract.definition import Contract
from thermocline.engine.duck import quote_literal
from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.transform.duck.session import Session

_COMPARED = {"int", "long", "date", "string"}
"""Types of keys that are searched for: DuckDB and all writers put their values in one order."""
MOST_NAMED = 500
"""Of more keys only the least and the greatest are named."""


def within(
    session: Session, contract: Contract, on: Sequence[str], batch: str, alias: str = ""
) -> str:
    """A condition that holds for every row whose columns `on` equal those of a row of the batch."""
    found = (_one(session, contract, name, batch, alias) for name in on)
    return " AND ".join(each for each in found if each is not None) or "true"


def few(session: Session, contract: Contract, batch: str) -> bool:
    """Whether `within` names every key of a batch, so that hardly any other row is within."""
    columns = [contract.column(name) for name in contract.key]
    if not all(column is not None and str(column.type) in _COMPARED for column in columns):
        return False
    return len(session.rows(f"SELECT 1 FROM {batch} LIMIT {MOST_NAMED + 1}")) <= MOST_NAMED


def _one(session: Session, contract: Contract, name: str, batch: str, alias: str) -> str | None:
    column = contract.column(name)
    if column is None or str(column.type) not in _COMPARED:
        return None
    kind, it = (
        to_ddl(column.type),
        f"{alias}.{quote_identifier(name)}" if alias else quote_identifier(name),
    )
    values = f"SELECT DISTINCT CAST({quote_identifier(name)} AS {kind}) AS v FROM {batch}"
    there = f"SELECT v FROM ({values}) WHERE v IS NOT NULL LIMIT {MOST_NAMED + 1}"
    texts = [text for (text,) in session.rows(f"SELECT CAST(v AS VARCHAR) FROM ({there})")]
    if not texts:
        return "false"
    many = len(texts) > MOST_NAMED
    if many:
        least = f"SELECT CAST(min(v) AS VARCHAR), CAST(max(v) AS VARCHAR) FROM ({values})"
        texts = list(session.rows(least)[0])
    if any("\0" in text for text in texts):
        return None  # no SQL can name it
    named = [f"CAST({quote_literal(text)} AS {kind})" for text in texts]
    return f"{it} BETWEEN {named[0]} AND {named[1]}" if many else f"{it} IN ({', '.join(named)})"

"""The table that rules check, as relations of one engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError

from thermocline.contract.definition import Contract
from thermocline.contract.problems import quote
from thermocline.engine.query_types import Columns
from thermocline.errors import BadInput


@dataclass(frozen=True)
class CheckedTable:
    """A table, and the other tables ("layer.name") that its rules read, as relations of an engine.

    `columns` are the columns of all these tables.
    """

    contract: Contract
    relation: exp.Table
    references: Mapping[str, exp.Table]
    dialect: str
    columns: Columns


def parse_checked_table(
    contract: Contract,
    relation: str,
    references: Mapping[str, str],
    dialect: str,
    columns: Columns,
) -> CheckedTable:
    """Parse the names of the relations; raise BadInput if one is not a name."""
    others = {name: _parse_relation(other, dialect) for name, other in references.items()}
    return CheckedTable(contract, _parse_relation(relation, dialect), others, dialect, columns)


def _parse_relation(name: str, dialect: str) -> exp.Table:
    """Parse the name of a relation, and quote each part."""
    try:
        found = exp.to_table(name, dialect=dialect)
        parts = found.parts
    except (SqlglotError, AttributeError) as error:
        raise BadInput(f"{quote(name)} is not the name of a table", "Quote its parts.") from error
    if not all(isinstance(part, exp.Identifier) for part in parts):
        raise BadInput(f"{quote(name)} is not the name of a table", "Quote its parts.")
    for part in parts:
        part.set("quoted", True)
    return found

"""What Debezium's connector sends of each type, and what of it can be believed.

Through Kafka Connect values come as Debezium writes them. It leaves out columns of some types,
changes some values without a word, and writes null for a large value that was not sent where it
knows no placeholder. So a type has to be listed here to be captured that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thermocline.contract.definition import Contract
from thermocline.errors import Permanent
from thermocline.ingest.debezium import OP, ROW
from thermocline.ingest.value_expressions import literal

_SHORT = {
    "bool", "int2", "int4", "int8", "oid", "float4", "float8", "money", "date", "time", "timestamp",
    "timestamptz", "interval", "uuid", "inet", "cidr", "macaddr", "macaddr8", "point",
}  # fmt: skip
"""Types whose values are too short to be kept apart from their row."""

_MARKED = {
    "text", "varchar", "bpchar", "citext", "bytea", "json", "jsonb", "numeric", "hstore",
    "tsvector", "ltree", "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
    *(f"{name}[]" for name in (
        "int4", "int8", "text", "varchar", "bpchar", "uuid", "json", "jsonb", "bytea",
    )),
}  # fmt: skip
"""Types for which Debezium writes a placeholder that can be told from a value."""

_SENT = {
    *(f"{name}[]" for name in (
        "int2", "float4", "float8", "numeric", "bool", "date", "timestamp", "timestamptz", "inet",
        "cidr", "macaddr", "citext",
    )),
}  # fmt: skip
"""Further types that are sent, but with null for a value that was not."""

MOST_BITS = 64


@dataclass(frozen=True)
class SourceColumn:
    """A column of a captured table. `type` is that under a domain; `full` says that the replica
    identity has the column."""

    table: str
    name: str
    type: str
    enum: bool
    length: int
    full: bool

    @property
    def is_sent(self) -> bool:
        """Whether Debezium sends the column, and as it is."""
        if self.type == "bit":
            return 0 < self.length <= MOST_BITS
        return self.enum or self.type in _SHORT | _MARKED | _SENT

    @property
    def is_whole(self) -> bool:
        """Whether it is known when a value of the column was not sent."""
        short = self.enum or self.type in _SHORT or (self.type == "bit" and self.is_sent)
        return self.full or short or self.type in _MARKED


def refuse_unknowable(source: str, columns: Sequence[SourceColumn], contract: Contract) -> None:
    """Raise Permanent for columns whose values would be wrong in bronze without a word."""
    named = {column.name for column in contract.columns}
    for column in columns:
        if not column.is_whole:
            raise Permanent(
                f"{source}: the column {column.name} of {column.table} is of type {column.type}, "
                "for which Debezium does not say when a large value was not sent.",
                f"In the source: alter table {column.table} replica identity full. Or capture it "
                "with via: embedded.",
            )
        if column.name in named and not column.is_sent:
            raise Permanent(
                f"{source}: the column {column.name} of {column.table} is of type {column.type}, "
                "which Debezium does not send as it is.",
                "Take the column out of the contract, or capture the table with via: embedded.",
            )


def doubt(columns: Sequence[SourceColumn]) -> str:
    """An expression for why a row cannot be believed, with the value as it came; else null."""
    cases = []
    for column in columns:
        it = f"get_json_object({ROW}, {literal('$.' + _path(column.name))})"
        if column.type.endswith("[]"):
            # So comes a list of several dimensions; one of nulls alone cannot be told from it.
            when = f"{it} rlike {literal(_LISTS)}"
            cases.append(_case(column, it, when, "may be an array of several dimensions"))
        elif column.type in {"date", "timestamp", "timestamptz"}:
            cases.append(_case(column, it, f"{it} rlike '^[-+]'", "may be an infinite one"))
            if column.type == "date":
                # The first state is read through a calendar that knows no years before Christ.
                old = f"{OP} = 'r' and {it} < '1582-10-15'"
                cases.append(_case(column, it, old, "may be another day"))
    return f"coalesce({', '.join(cases)})" if cases else "cast(null as string)"


_LISTS = r'^\[null(,null)*\]$|"\[L?[A-Za-z.]+;?@[0-9a-f]+"'


def _path(name: str) -> str:
    return f"['{name}']" if not name.isidentifier() else name


def _case(column: SourceColumn, it: str, when: str, said: str) -> str:
    words = (
        f"concat({literal(column.name + ': ')}, '\"', left({it}, 60), '\"', {literal(' ' + said)})"
    )
    return f"case when {when} then {words} end"

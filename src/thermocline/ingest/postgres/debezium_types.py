"""Which column types Debezium captures without loss, and which of their values are uncertain.

Through Kafka Connect, values arrive as Debezium writes them. Debezium leaves out columns of some
types, silently changes some values, and writes null for an unsent large value of a type that has no
placeholder. So only the types listed here can be captured through Connect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thermocline.contract.definition import Contract
from thermocline.errors import Permanent
from thermocline.ingest.debezium import OP, ROW
from thermocline.ingest.value_expressions import literal

_SHORT_TYPES = {
    "bool", "int2", "int4", "int8", "oid", "float4", "float8", "money", "date", "time", "timestamp",
    "timestamptz", "interval", "uuid", "inet", "cidr", "macaddr", "macaddr8", "point",
}  # fmt: skip
"""Types whose values are too short to be stored out of line (TOAST)."""

_PLACEHOLDER_TYPES = {
    "text", "varchar", "bpchar", "citext", "bytea", "json", "jsonb", "numeric", "hstore",
    "tsvector", "ltree", "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
    *(f"{name}[]" for name in (
        "int4", "int8", "text", "varchar", "bpchar", "uuid", "json", "jsonb", "bytea",
    )),
}  # fmt: skip
"""Types for which Debezium writes a placeholder that no value can equal."""

_UNMARKED_TYPES = {
    *(f"{name}[]" for name in (
        "int2", "float4", "float8", "numeric", "bool", "date", "timestamp", "timestamptz", "inet",
        "cidr", "macaddr", "citext",
    )),
}  # fmt: skip
"""Types that Debezium sends, but with null in place of an unsent value."""

MAX_BITS = 64


@dataclass(frozen=True)
class SourceColumn:
    """A column of a captured table.

    `type` is the base type of a domain. `full` says that the replica identity has the column.
    """

    table: str
    name: str
    type: str
    enum: bool
    length: int
    full: bool

    @property
    def is_sent(self) -> bool:
        """Whether Debezium sends the column without changing its values."""
        if self.type == "bit":
            return 0 < self.length <= MAX_BITS
        return self.enum or self.type in _SHORT_TYPES | _PLACEHOLDER_TYPES | _UNMARKED_TYPES

    @property
    def detects_unsent(self) -> bool:
        """Whether an unsent value of the column can be recognized."""
        short = self.enum or self.type in _SHORT_TYPES or (self.type == "bit" and self.is_sent)
        return self.full or short or self.type in _PLACEHOLDER_TYPES


def refuse_undetectable_columns(
    source: str, columns: Sequence[SourceColumn], contract: Contract
) -> None:
    """Raise Permanent for columns whose values would be silently wrong in bronze."""
    named = {column.name for column in contract.columns}
    for column in columns:
        if not column.detects_unsent:
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


def doubt_expression(columns: Sequence[SourceColumn]) -> str:
    """Return an expression for why a row is uncertain, quoting the value; null if it is not."""
    cases = []
    for column in columns:
        it = f"get_json_object({ROW}, {literal('$.' + _json_path(column.name))})"
        if column.type.endswith("[]"):
            # Arrays of several dimensions arrive like this, and so does an array of nulls only.
            when = f"{it} rlike {literal(_NESTED_ARRAY)}"
            cases.append(_case(column, it, when, "may be an array of several dimensions"))
        elif column.type in {"date", "timestamp", "timestamptz"}:
            cases.append(_case(column, it, f"{it} rlike '^[-+]'", "may be an infinite one"))
            if column.type == "date":
                # The initial snapshot uses a calendar without years BC.
                old = f"{OP} = 'r' and {it} < '1582-10-15'"
                cases.append(_case(column, it, old, "may be another day"))
    return f"coalesce({', '.join(cases)})" if cases else "cast(null as string)"


_NESTED_ARRAY = r'^\[null(,null)*\]$|"\[L?[A-Za-z.]+;?@[0-9a-f]+"'


def _json_path(name: str) -> str:
    return f"['{name}']" if not name.isidentifier() else name


def _case(column: SourceColumn, it: str, when: str, message: str) -> str:
    prefix, suffix = literal(column.name + ": "), literal(" " + message)
    text = f"concat({prefix}, '\"', left({it}, 60), '\"', {suffix})"
    return f"case when {when} then {text} end"

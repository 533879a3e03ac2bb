"""Parse JSON records into Arrow columns if the result is certainly the same as Spark's.

Spark SQL (`record_reader`, `value_expressions`, `validation`) defines what a record means. This
module is a shortcut to the same rows. It parses all records or raises NeedsSpark: for bad or
unusual records, and for types whose parity with Spark is not proven.
`tests/integration/test_json_parity.py` compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from thermocline.contract.types import Decimal, List, Primitive, Struct, Type
from thermocline.errors import first_line
from thermocline.ingest.row_violations import RowViolations
from thermocline.ingest.value_expressions import EXACT_DIGITS

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.contract.definition import Contract

# Four-digit years on which all calendars agree, and only the zone UTC.
_DATE = "(19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2}"
_TIME = "[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_TIME_PATTERNS = {"date": _DATE, "timestamp": _DATE + _TIME, "timestamptz": f"{_DATE}{_TIME}Z"}

_LONG_NUMBER = 300
"""A longer number may be too small for a double; Arrow would read it as 0."""
_NUMBER = re.compile(rb"[0-9.eE+-]{%d}" % _LONG_NUMBER)
_EXTREME_EXPONENT = re.compile(rb"[:,\[]\s*-?[0-9.]+[eE][+-]?[0-9]{3,}\s*[,}\]]")
"""A number that may be too large or too small for a double. The delimiters exclude similar texts,
such as hexadecimal ids."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escaped surrogate, paired or not."""
_UNPAIRED_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
"""An unpaired surrogate, provided that no backslash is itself escaped."""


class NeedsSpark(Exception):
    """The Arrow lane cannot read the input with certainty. The message is for the log."""


class UnambiguousJsonReader:
    """Reads JSON records for one contract. Raises NeedsSpark for an unsupported contract."""

    def __init__(self, contract: Contract) -> None:
        import pyarrow as pa
        import pyarrow.json as pj

        if not contract.columns:
            raise NeedsSpark("a contract without columns")
        self._types = {column.name: column.type for column in contract.columns}
        written = [(name, _arrow_input_type(name, type_)) for name, type_ in self._types.items()]
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema(written), unexpected_field_behavior="error"
        )
        self._contract = contract

    @cached_property
    def _violations(self) -> RowViolations:
        return RowViolations(self._contract)

    def read_payloads(self, payloads: Sequence[bytes | None]) -> pa.Table:
        """Return the contract's columns with a row per payload, in order, or raise NeedsSpark.

        No row violates a rule.
        """
        try:
            text = b"\n".join(payloads)  # type: ignore[arg-type]
        except TypeError:
            raise NeedsSpark("a message without a value") from None
        table = self.read_lines(text, len(payloads))
        if len(self._violations.find(table)):
            raise NeedsSpark("a row that breaks a rule")
        return table

    def read_lines(self, text: bytes, count: int) -> pa.Table:
        """Do the same for `count` lines, without checking rules."""
        import pyarrow as pa
        import pyarrow.json as pj

        _refuse_ambiguous_text(text, count)
        # One block and one thread: the text is not split, and other cores stay free.
        whole = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            found = pj.read_json(pa.BufferReader(text), whole, self._options)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise NeedsSpark(first_line(error)[:120]) from error
        # Each line starts an object, no object spans lines (its next line would start an object
        # inside a column), and there are as many objects as lines: so each line is one object.
        if found.num_rows != count:
            raise NeedsSpark("more than one value on a line")
        return pa.table(
            {
                name: _convert_column(name, type_, found.column(name).combine_chunks())
                for name, type_ in self._types.items()
            }
        )


def _arrow_input_type(name: str, type_: Type, *, inside: bool = False) -> pa.DataType:
    """Return the type as which Arrow parses a column; dates and times are texts at first."""
    import pyarrow as pa

    read: dict[str, pa.DataType] = {
        "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "double": pa.float64(),
        "string": pa.string(), **dict.fromkeys(_TIME_PATTERNS, pa.string()),
    }  # fmt: skip
    match type_:
        # Inside a column Spark reads a number through a double.
        case Decimal(precision, scale) if not inside or precision <= EXACT_DIGITS:
            return pa.decimal128(precision, scale)
        case Primitive(kind) if kind in read:
            return read[kind]
        case Struct(fields) if fields:
            return pa.struct(
                [(f.name, _arrow_input_type(name, f.type, inside=True)) for f in fields]
            )
        case List(element):
            return pa.list_(_arrow_input_type(name, element, inside=True))
    raise NeedsSpark(f"{name} is of type {type_}")


def _refuse_ambiguous_text(text: bytes, count: int) -> None:
    """Raise NeedsSpark for lines that start without a brace, and text on which parsers differ."""
    more = count - 1
    if not text.startswith(b"{") or text.count(b"\n{") != more or text.count(b"\n") != more:
        raise NeedsSpark("a record that is not one line of an object")
    if b"\0" in text:
        raise NeedsSpark("a zero byte, which ends a text for some parsers")
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            raise NeedsSpark("not UTF-8") from None
    if max(map(len, text.split(b"\n"))) > _LONG_NUMBER and _NUMBER.search(text):
        raise NeedsSpark(f"a run of {_LONG_NUMBER} digits")
    if _EXTREME_EXPONENT.search(text):
        raise NeedsSpark("a number that may be too small or too large")
    if _SURROGATE.search(text) and (rb"\\" in text or _UNPAIRED_SURROGATE.search(text)):
        raise NeedsSpark("an escape that may be half of a character")


def _convert_column(name: str, type_: Type, column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    from thermocline.engine.arrow import build_list_array, build_struct_array

    def all_are(good: pa.Array) -> None:
        if pc.all(good).as_py() is False:
            raise NeedsSpark(f"{name} has an ambiguous value")

    match type_:
        case Decimal(precision, scale):
            # Arrow checks the digits as written, not after scaling.
            bounds = pc.min_max(column).as_py().values()
            if any(abs(each) >= 10 ** (precision - scale) for each in bounds if each is not None):
                raise NeedsSpark(f"{name} has a value of too many digits")
        case Primitive("double"):
            # Spark reads -0 as 0 and -0.0 as -0.0.
            all_are(pc.is_finite(column))
            all_are(pc.or_(pc.not_equal(column, 0.0), pc.greater(pc.divide(1.0, column), 0.0)))
        case Primitive(kind) if kind in _TIME_PATTERNS:
            all_are(match_unambiguous_time(kind, column))
            return parse_times(name, kind, column)
        case Struct(fields):
            members = []
            for field, member in zip(fields, column.flatten(), strict=True):
                if field.required and member.null_count > column.null_count:
                    raise NeedsSpark(f"{name}.{field.name} is missing")
                members.append(_convert_column(name, field.type, member))
            kinds = [(f.name, m.type) for f, m in zip(fields, members, strict=True)]
            return build_struct_array(members, pa.struct(kinds), column)
        case List(element, required):
            elements = column.flatten()
            if required and elements.null_count:
                raise NeedsSpark(f"{name} has an element that is missing")
            return build_list_array(_convert_column(name, element, elements), column)
    return column


def match_unambiguous_time(kind: str, column: pa.Array) -> pa.Array:
    """Return which texts are a date or a time that every parser reads the same way."""
    import pyarrow.compute as pc

    return pc.match_substring_regex(column, f"^({_TIME_PATTERNS[kind]})$")


def parse_times(name: str, kind: str, column: pa.Array) -> pa.Array:
    """Parse unambiguous dates or times; raise NeedsSpark if a day does not exist."""
    import pyarrow as pa

    into = {"date": pa.date32(), "timestamp": pa.timestamp("us")}
    try:
        return column.cast(into.get(kind, pa.timestamp("us", "UTC")))
    except pa.ArrowInvalid as error:
        raise NeedsSpark(f"{name}: {str(error)[:80]}") from error

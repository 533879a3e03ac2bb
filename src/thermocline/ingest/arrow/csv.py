"""Read blocks of CSV lines: unambiguous ones as Arrow columns, others as positions.

A line is unambiguous if it has no quotes, or quotes only around whole cells. A cell is unambiguous
if every parser reads the same value.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract
from thermocline.contract.types import Decimal, Primitive, Type
from thermocline.errors import first_line
from thermocline.ingest.arrow.rescue import refuse_unknown_fields, rescue_fields
from thermocline.ingest.arrow.text_blocks import TextBlock
from thermocline.ingest.layout import Layout
from thermocline.ingest.unambiguous_json import NeedsSpark, match_unambiguous_time, parse_times
from thermocline.ingest.validation import RESCUED

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_DELIMITERS = ",;|\t"
_NUMBERS = {
    "boolean": "true|false",
    "int": "-?[0-9]{1,9}",
    "long": "-?[0-9]{1,18}",
    "double": "-?[0-9]{1,15}([.][0-9]{1,15})?([eE][+-]?[0-9]{1,2})?",
}
_TIME_TYPES = ("date", "timestamp", "timestamptz")


class CellSplitter:
    """Splits lines of one layout into cells. Raises NeedsSpark for an ambiguous layout."""

    def __init__(self, layout: Layout) -> None:
        ends = {layout.quote, layout.escape}
        if layout.delimiter not in _DELIMITERS or not all(
            char.isascii() and char.isprintable() and not char.isalnum() and char not in " -+."
            for char in ends
        ):
            raise NeedsSpark("an unusual delimiter or quote")
        if layout.delimiter in ends or layout.null:
            raise NeedsSpark("an unusual form of a missing value")
        if not layout.fields:
            raise NeedsSpark("no columns")
        self.quote, self.delimiter = layout.quote.encode(), layout.delimiter.encode()
        self.doubles_quotes = layout.escape == layout.quote
        self._escape = b"" if self.doubles_quotes else layout.escape.encode()
        quote = re.escape(self.quote)
        inner = (
            b"(?:[^%b]|%b%b)*+" % (quote, quote, quote)
            if self.doubles_quotes
            else b"[^%b]*+" % quote
        )
        cell = b"(?:%b%b%b|[^%b%b]*+)" % (quote, inner, quote, quote, re.escape(self.delimiter))
        self._quoted = re.compile(b"%b%b%b" % (quote, inner, quote), re.DOTALL)
        self._line = re.compile(
            b"%b(?:%b%b)*+" % (cell, re.escape(self.delimiter), cell), re.DOTALL
        )

    def is_certain(self, line: bytes) -> bool:
        """Whether every parser finds the same cells in the line."""
        if b"\r" in line or b"\0" in line or (self._escape and self._escape in line):
            return False
        if not line.isascii():
            try:
                line.decode()
            except UnicodeDecodeError:
                return False
        return self.quote not in line or bool(self._line.fullmatch(line))

    def count_cells(self, line: bytes) -> int:
        """Count the cells of an unambiguous line."""
        if self.quote in line:
            line = self._quoted.sub(b"", line)
        return line.count(self.delimiter) + 1


class CsvReader:
    """Reads CSV lines of one layout. Raises NeedsSpark for an unsupported layout."""

    def __init__(self, layout: Layout, contract: Contract) -> None:
        self._layout, self._splitter = layout, CellSplitter(layout)
        self._types = {column.name: column.type for column in contract.columns}
        for name, type_ in self._types.items():
            if name in layout.fields:
                _value_pattern(name, type_)
        self._unknown_fields = [name for name in layout.fields if name not in self._types]
        refuse_unknown_fields(self._unknown_fields, contract)

    def read(self, block: TextBlock) -> tuple[pa.Table | None, list[int], list[int]]:
        """Return the unambiguous records, their positions, and the positions of the others."""
        import numpy as np
        import pyarrow as pa

        positions, lines, ambiguous = [], [], []
        for position, line in block.iter_filled():
            text = line.rstrip(b"\r")
            if self._is_unambiguous(text):
                positions.append(position)
                lines.append(text)
            else:
                ambiguous.append(position)
        if not lines:
            return None, [], ambiguous
        table, unambiguous = self._convert(self._parse_cells(lines))
        if unambiguous.all():
            return table, positions, ambiguous
        numbers = np.asarray(positions)
        ambiguous += numbers[~unambiguous].tolist()
        return table.filter(pa.array(unambiguous)), numbers[unambiguous].tolist(), ambiguous

    def _is_unambiguous(self, line: bytes) -> bool:
        """Whether the line has as many cells as there are columns, for every parser."""
        splitter = self._splitter
        return splitter.is_certain(line) and splitter.count_cells(line) == len(self._layout.fields)

    def _parse_cells(self, lines: list[bytes]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.csv as pacsv

        text = b"\n".join(lines)
        fields = list(self._layout.fields)
        try:
            table = pacsv.read_csv(
                pa.BufferReader(text),
                pacsv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=fields),
                pacsv.ParseOptions(
                    delimiter=self._layout.delimiter,
                    quote_char=self._layout.quote,
                    double_quote=self._splitter.doubles_quotes,
                    ignore_empty_lines=False,
                ),
                pacsv.ConvertOptions(
                    column_types=dict.fromkeys(fields, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid as error:
            raise NeedsSpark(first_line(error)[:120]) from error
        if table.num_rows != len(lines):
            raise NeedsSpark("more or fewer records than lines")
        return table

    def _convert(self, cells: pa.Table) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Return the contract's columns, and which rows have only unambiguous cells."""
        import numpy as np
        import pyarrow as pa

        from thermocline.ingest.arrow.column_types import arrow_type

        unambiguous = np.ones(cells.num_rows, dtype=bool)
        columns: dict[str, Any] = {}
        for name, type_ in self._types.items():
            if name in self._layout.fields:
                column = cells.column(name).combine_chunks()
                columns[name], is_unambiguous = _convert_cells(name, type_, column)
                unambiguous &= is_unambiguous
            else:
                columns[name] = pa.nulls(cells.num_rows, arrow_type(type_))
        if self._unknown_fields:
            texts = {name: cells.column(name).combine_chunks() for name in self._unknown_fields}
            columns[RESCUED] = rescue_fields(texts, cells.num_rows)
        return pa.table(columns), unambiguous


def _value_pattern(name: str, type_: Type) -> str:
    """Return the pattern of an unambiguous number or boolean; "" for other supported types."""
    match type_:
        case Primitive(kind) if kind in _NUMBERS:
            return _NUMBERS[kind]
        case Decimal(precision, scale):
            whole = f"[0-9]{{1,{precision - scale}}}" if precision > scale else "0"
            return f"-?{whole}([.][0-9]{{1,{scale}}})?" if scale else f"-?{whole}"
        case Primitive(kind) if kind in _TIME_TYPES or kind == "string":
            return ""
    raise NeedsSpark(f"{name} is of type {type_}")


def _convert_cells(
    name: str, type_: Type, cells: pa.Array
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return a column's values, and in which rows the cell is unambiguous or missing."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from thermocline.ingest.arrow.column_types import arrow_type

    if type_ == Primitive("string"):
        return cells, np.ones(len(cells), dtype=bool)
    # An empty cell is a missing value: writers that quote all cells write it as "".
    texts = pc.utf8_trim(cells, " ")
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    kind = str(type_)
    if kind in _TIME_TYPES:
        is_unambiguous = _match_real_times(kind, texts)
    else:
        is_unambiguous = pc.match_substring_regex(texts, f"^({_value_pattern(name, type_)})$")
    texts = pc.if_else(is_unambiguous, texts, pa.scalar(None, pa.string()))
    if kind in _TIME_TYPES:
        values = parse_times(name, kind, texts)
    else:
        values = texts.cast(arrow_type(type_))
    if kind == "double":  # a double keeps the sign of a zero
        negative = pc.and_(pc.equal(values, 0.0), pc.starts_with(texts, "-"))
        # An ambiguous cell is null here, and must stay ambiguous.
        is_unambiguous = pc.and_not(is_unambiguous, pc.fill_null(negative, False))
    return values, pc.fill_null(is_unambiguous, True).to_numpy(zero_copy_only=False)


def _match_real_times(kind: str, texts: pa.Array) -> pa.Array:
    """Return which texts are unambiguous and name an existing time; null for a missing text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_unambiguous = match_unambiguous_time(kind, texts)
    try:
        parse_times("", kind, pc.if_else(is_unambiguous, texts, pa.scalar(None, pa.string())))
    except NeedsSpark:
        pairs = zip(texts.to_pylist(), is_unambiguous.to_pylist(), strict=True)
        return pa.array(
            [
                None if text is None else unambiguous and _is_real_time(text)
                for text, unambiguous in pairs
            ]
        )
    return is_unambiguous


def _is_real_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True

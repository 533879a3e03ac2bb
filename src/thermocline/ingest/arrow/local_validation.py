"""Validate a few records in this process, with the same results and reasons as Spark.

This is for the few ambiguous records of a batch and for replayed quarantine rows, because starting
Spark takes longer than everything else. It validates all given records or raises NeedsSpark.
`tests/integration/test_local_validation.py` compares every result with Spark's.
"""

from __future__ import annotations

import csv
import decimal
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from thermocline.check.violating_rows import compile_row_reasons
from thermocline.contract.definition import Contract, DriftMode
from thermocline.contract.types import Decimal, Primitive, Type
from thermocline.ingest.arrow.column_types import arrow_type
from thermocline.ingest.arrow.scalars import NO_VALUE, parse_scalar
from thermocline.ingest.layout import Layout
from thermocline.ingest.unambiguous_json import NeedsSpark, UnambiguousJsonReader
from thermocline.ingest.validation import (
    BAD,
    FILE,
    HAS_DRIFT,
    POSITION,
    RAW,
    REASONS,
    RESCUED,
    UNKNOWN_FIELDS,
)
from thermocline.ingest.value_expressions import EXACT_DIGITS, is_nested

if TYPE_CHECKING:
    import pyarrow as pa

RawLine = tuple[int, int, str | None, str | None]
"""A record's FILE, POSITION, RAW and FLAW."""

NOT_OBJECT = "not a JSON object"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONG_NUMBER = re.compile(rf"[0-9][0-9.]{{{EXACT_DIGITS}}}|[0-9][eE]")


class NumberToken(str):
    """A number exactly as written in a JSON text."""

    __slots__ = ()


@dataclass
class ParsedRecord:
    """One record: its flaws, its fields as texts or nested JSON, and its unknown fields."""

    flaws: list[str] = field(default_factory=list)
    texts: dict[str, str | None] = field(default_factory=dict)
    nested: dict[str, Any] = field(default_factory=dict)
    unknown_fields: dict[str, str | None] | None = None


class LocalValidator:
    """Validates records of one contract. `refuse_unknown`: an unknown field makes a record bad."""

    def __init__(self, contract: Contract, *, refuse_unknown: bool = False) -> None:
        self._contract = contract
        self._refuse_unknown = refuse_unknown and contract.drift is DriftMode.REFUSE
        self._types = {column.name: column.type for column in contract.columns}
        self._nested_readers: dict[str, UnambiguousJsonReader] = {}

    def validate_lines(self, lines: Sequence[RawLine], layout: Layout) -> pa.Table:
        """Validate lines of one layout, or raise NeedsSpark."""
        import pyarrow as pa

        if layout.format == "csv" and any("\n" in (raw or "") for _, _, raw, _ in lines):
            raise NeedsSpark("a record over several lines")
        read = (
            self._parse_object_line
            if layout.format == "jsonl"
            else _CsvParser(layout, self._types).record
        )
        records = [read(raw) if flaw is None else self._flawed_record(layout, raw, flaw)
                   for _, _, raw, flaw in lines]  # fmt: skip
        columns = {
            name: self._build_column(name, type_, records) for name, type_ in self._types.items()
        }
        reasons = self._find_reasons(records, pa.table(columns) if columns else None)
        provenance = list(zip(*(line[:3] for line in lines), strict=True)) or [(), (), ()]
        drifted = [each.unknown_fields is not None for each in records]
        if self._refuse_unknown:
            reasons = [
                _add_unknown_fields(each, reason)
                for each, reason in zip(records, reasons, strict=True)
            ]
        rescued = [
            None if each.unknown_fields is None or self._contract.drift is DriftMode.REFUSE
            else list(each.unknown_fields.items()) for each in records
        ]  # fmt: skip
        return pa.table(
            {
                FILE: pa.array(provenance[0], pa.int32()),
                POSITION: pa.array(provenance[1], pa.int64()),
                RAW: pa.array(provenance[2], pa.string()),
                BAD: pa.array([bool(reason) for reason in reasons], pa.bool_()),
                REASONS: pa.array(reasons, pa.list_(pa.string())),
                HAS_DRIFT: pa.array([d and not self._refuse_unknown for d in drifted], pa.bool_()),
                UNKNOWN_FIELDS: pa.array(
                    [
                        None if each.unknown_fields is None else list(each.unknown_fields)
                        for each in records
                    ],
                    pa.list_(pa.string()),
                ),
                RESCUED: pa.array(rescued, pa.map_(pa.string(), pa.string())),
                **columns,
            }
        )

    def validate_rows(self, rows: pa.Table, typed: pa.Table) -> pa.Table:
        """Validate rows of Parquet files (with FILE and POSITION); `typed` has their columns."""
        import pyarrow as pa

        own = [name for name in rows.column_names if name not in (FILE, POSITION)]
        unknown_fields = [name for name in own if name not in self._types] or None
        reasons = self._find_reasons(
            [ParsedRecord() for _ in range(rows.num_rows)], typed.select([*self._types])
        )
        count = rows.num_rows
        nothing = pa.nulls(count, pa.map_(pa.string(), pa.string()))
        return pa.table(
            {
                FILE: rows.column(FILE),
                POSITION: rows.column(POSITION),
                RAW: pa.array(
                    [_row_to_json(row) for row in rows.select(own).to_pylist()], pa.string()
                ),
                BAD: pa.array([bool(reason) for reason in reasons], pa.bool_()),
                REASONS: pa.array(reasons, pa.list_(pa.string())),
                HAS_DRIFT: pa.array([unknown_fields is not None] * count, pa.bool_()),
                UNKNOWN_FIELDS: pa.array([unknown_fields] * count, pa.list_(pa.string())),
                RESCUED: typed.column(RESCUED) if RESCUED in typed.column_names else nothing,
                **{name: typed.column(name) for name in self._types},
            }
        )

    def _flawed_record(self, layout: Layout, raw: str | None, flaw: str) -> ParsedRecord:
        """Return the record of a line with a flaw; none of its fields is read."""
        if raw is not None and _SURROGATE.search(raw):
            raise NeedsSpark("an escape that may be half of a character")
        if layout.format == "jsonl":
            return ParsedRecord([flaw])
        unknown_fields = [name for name in layout.fields if name not in self._types]
        return ParsedRecord(
            [flaw], unknown_fields=dict.fromkeys(unknown_fields) if unknown_fields else None
        )

    def _parse_object_line(self, raw: str | None) -> ParsedRecord:
        if raw is None:
            return ParsedRecord()
        found = parse_object(raw)
        if found is None:
            return ParsedRecord([NOT_OBJECT])
        record, unknown_fields = ParsedRecord(), {}
        for name, value in found.items():
            type_ = self._types.get(name)
            if type_ is not None and is_nested(type_):
                record.nested[name] = value
            elif type_ is not None:
                record.texts[name] = _member_text(value, exact=not _is_number(type_))
            else:
                unknown_fields[name] = _member_text(value, exact=True)
        record.unknown_fields = unknown_fields or None
        return record

    def _build_column(self, name: str, type_: Type, records: Sequence[ParsedRecord]) -> pa.Array:
        """Return a column's values. A text that is no value of its type becomes a flaw."""
        import pyarrow as pa

        if is_nested(type_):
            return self._build_nested(name, type_, [record.nested.get(name) for record in records])
        values: list[Any] = []
        for record in records:
            text = record.texts.get(name)
            value = None if text is None else parse_scalar(type_, text)
            if value is NO_VALUE:
                record.flaws.append(f'{name}: "{(text or "")[:60]}" is not of type {type_}')
            values.append(None if value is NO_VALUE else value)
        return pa.array(values, arrow_type(type_))

    def _build_nested(self, name: str, type_: Type, values: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        present = [number for number, value in enumerate(values) if value is not None]
        if not present:
            return pa.nulls(len(values), arrow_type(type_))
        values = [_parse_nested(value) for value in values]
        if name not in self._nested_readers:
            only = [column for column in self._contract.columns if column.name == name]
            self._nested_readers[name] = UnambiguousJsonReader(
                replace(self._contract, columns=tuple(only), rules=())
            )
        text = "\n".join(f'{{"{name}":{to_json(values[number])}}}' for number in present)
        if json.dumps(name) != f'"{name}"':
            raise NeedsSpark(f"{name} is an unusual name")
        found = self._nested_readers[name].read_lines(
            text.encode("utf-8", "surrogatepass"), len(present)
        )
        row_numbers: list[int | None] = [None] * len(values)
        for row, number in enumerate(present):
            row_numbers[number] = row
        selected = found.column(name).combine_chunks().take(pa.array(row_numbers, pa.int64()))
        return selected.cast(arrow_type(type_))

    def _find_reasons(
        self, records: Sequence[ParsedRecord], typed: pa.Table | None
    ) -> list[list[str]]:
        """Return the flaws of each record; of a record without flaws, the rules it violates."""
        if typed is None:
            raise NeedsSpark("a contract without columns")
        import duckdb
        import pyarrow as pa

        whole = [number for number, record in enumerate(records) if not record.flaws]
        reasons = [list(record.flaws) for record in records]
        if whole:
            rows = typed.take(pa.array(whole, pa.int64()))
            with duckdb.connect(config={"threads": 1}) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute("SET preserve_insertion_order = true")
                connection.register("records", rows)
                found = connection.execute(
                    f"SELECT {compile_row_reasons(self._contract, 'duckdb')} FROM records"
                ).fetchall()
            for number, (reason,) in zip(whole, found, strict=True):
                reasons[number] = [str(each) for each in reason]
        return reasons


class _CsvParser:
    """Splits CSV lines of one layout if every parser splits them the same way."""

    def __init__(self, layout: Layout, types: Mapping[str, Type]) -> None:
        from thermocline.ingest.arrow.csv import CellSplitter

        self._layout = layout
        self._types = types
        self._splitter = CellSplitter(layout)

    def record(self, raw: str | None) -> ParsedRecord:
        """Return a line's cells by the layout's column names."""
        if raw is None or not self._splitter.is_certain(raw.encode("utf-8", "surrogatepass")):
            raise NeedsSpark("a line that parsers may split differently")
        layout = self._layout
        options: dict[str, Any] = {"delimiter": layout.delimiter, "quotechar": layout.quote}
        try:
            (cells,) = csv.reader([raw], doublequote=True, strict=True, **options)
        except (csv.Error, ValueError) as error:
            raise NeedsSpark("a line that this process cannot split") from error
        names = layout.fields
        flaws = [] if len(cells) == len(names) else [f"not {len(names)} cells"]
        found: list[str | None] = [cell or None for cell in cells[: len(names)]]
        found += [None] * (len(names) - len(found))
        record = ParsedRecord(flaws)
        for name, text in zip(names, found, strict=True):
            type_ = self._types.get(name)
            if type_ is None:
                record.unknown_fields = {**(record.unknown_fields or {}), name: text}
            elif is_nested(type_):
                if text is not None:
                    raise NeedsSpark(f"{name} is nested")
            elif type_ == Primitive("string"):
                record.texts[name] = text
            else:
                record.texts[name] = (text or "").strip(" ") or None
        return record


def parse_fields(raw: str | None, layout: Layout) -> dict[str, Any] | None:
    """Return all fields of a record regardless of a contract; None if it has none.

    Numbers are tokens. Raises NeedsSpark if the fields are ambiguous.
    """
    if raw is None:
        return None
    if layout.format == "jsonl":
        return parse_object(raw)
    return dict(_CsvParser(layout, {}).record(raw).unknown_fields or {})


def parse_object(raw: str) -> dict[str, Any] | None:
    """Return the members of a JSON object with numbers as tokens; None if it is not JSON."""
    if _SURROGATE.search(raw):
        raise NeedsSpark("an escape that may be half of a character")
    if "\0" in raw or "\ufeff" in raw:
        raise NeedsSpark("a character that parsers may treat differently")
    try:
        found = _load_exact_json(raw)
    except json.JSONDecodeError as error:
        # Spark quotes long numbers before parsing, including some that JSON does not allow.
        if _LONG_NUMBER.search(raw) or not raw.isprintable():
            raise NeedsSpark("a record that Spark may still parse") from error
        return None
    except RecursionError as error:
        raise NeedsSpark("a record that is nested too deeply") from error
    if not isinstance(found, dict):
        raise NeedsSpark("JSON that is no object")
    return found


def to_json(value: Any) -> str:
    """Format parsed JSON again, with every number as it was written."""
    match value:
        case NumberToken():
            return str(value)
        case dict():
            pairs = (f"{json.dumps(k, ensure_ascii=False)}:{to_json(v)}" for k, v in value.items())
            return f"{{{','.join(pairs)}}}"
        case list():
            return f"[{','.join(map(to_json, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _parse_nested(value: Any) -> Any:
    """Return a nested value; parse it if it is JSON inside a text."""
    if not isinstance(value, str) or isinstance(value, NumberToken):
        return value
    if _LONG_NUMBER.search(value) or _SURROGATE.search(value):
        raise NeedsSpark("a text whose numbers may lose digits")
    try:
        found = _load_exact_json(value)
    except (json.JSONDecodeError, RecursionError) as error:
        raise NeedsSpark("a text that holds no JSON") from error
    if not isinstance(found, dict | list):
        raise NeedsSpark("a text that holds neither object nor list")
    return found


def _load_exact_json(text: str) -> Any:
    """Parse JSON with numbers as tokens; raise NeedsSpark for duplicate names and constants."""
    return json.loads(
        text, parse_int=NumberToken, parse_float=NumberToken, parse_constant=_refuse_constant,
        object_pairs_hook=_refuse_duplicates,
    )  # fmt: skip


def _row_to_json(row: Mapping[str, Any]) -> str:
    """Format a row as Spark's `to_json` does, without nulls."""
    fields = (
        f"{_value_to_json(name)}:{_value_to_json(value)}"
        for name, value in row.items()
        if value is not None
    )
    return f"{{{','.join(fields)}}}"


def _value_to_json(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | decimal.Decimal():
            return str(value)
        case str() if value.isprintable():
            return json.dumps(value, ensure_ascii=False)
        case datetime():
            zone = "" if value.tzinfo is None else "Z"
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return f'"{moment.strftime("%Y-%m-%dT%H:%M:%S.%f")}{zone}"'
        case date():
            return f'"{value.isoformat()}"'
    raise NeedsSpark("a value with several representations")


def _member_text(value: Any, *, exact: bool) -> str | None:
    """Return a member's text as in Spark. `exact`: a number's digits matter, not only its value."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case NumberToken():
            return _number_text(value, exact=exact)
        case str():
            return value
    raise NeedsSpark("an object or a list for a text")


def _number_text(number: NumberToken, *, exact: bool) -> str:
    """Return a number's text as in Spark, where short ones with a fraction become doubles."""
    digits = number.removeprefix("-")
    if len(digits) > EXACT_DIGITS or "e" in number.lower():
        return str(number)
    if digits.isdigit():
        if digits == "0" != number:
            raise NeedsSpark("a number that may lose its sign")
        return str(number)
    value = float(number)
    if exact or not 1e-3 <= abs(value) < 1e7:
        raise NeedsSpark("a number whose digits may be written differently")
    return repr(value)


def _is_number(type_: Type) -> bool:
    return isinstance(type_, Decimal) or type_ == Primitive("double")


def _refuse_constant(name: str) -> Any:
    raise NeedsSpark(f"{name} as a number")


def _refuse_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise NeedsSpark("a field that is there twice")
        found[name] = value
    return found


def _add_unknown_fields(record: ParsedRecord, reasons: list[str]) -> list[str]:
    if reasons or record.unknown_fields is None:
        return reasons
    return [f"fields that the contract does not name: {', '.join(record.unknown_fields)}"]

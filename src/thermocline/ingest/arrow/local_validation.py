"""A few records judged in this process, in the form of `judge`, and in Spark's very words.

For the handful of odd records of a batch, and for those that come back from quarantine: a Spark
that has to start takes longer than all the rest. It takes all records that it is given or none;
`tests/integration/test_local_validation.py` holds each verdict against Spark's.
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

from thermocline.check.violating_rows import row_reasons
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
"""A record's FILE, POSITION and RAW, and what is wrong with it as a line."""

NOT_OBJECT = "not a JSON object"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONG_NUMBER = re.compile(rf"[0-9][0-9.]{{{EXACT_DIGITS}}}|[0-9][eE]")


class NumberToken(str):
    """A number of a JSON text as it is written."""

    __slots__ = ()


@dataclass
class ParsedRecord:
    """One record's fields as texts (None is null), nested ones as JSON, and what it has beyond."""

    flaws: list[str] = field(default_factory=list)
    texts: dict[str, str | None] = field(default_factory=dict)
    nested: dict[str, Any] = field(default_factory=dict)
    stray: dict[str, str | None] | None = None


class LocalValidator:
    """Judges records of one contract. `refusing` says that a field beyond it makes a record bad."""

    def __init__(self, contract: Contract, *, refusing: bool = False) -> None:
        self._contract = contract
        self._refusing = refusing and contract.drift is DriftMode.REFUSE
        self._types = {column.name: column.type for column in contract.columns}
        self._plain: dict[str, UnambiguousJsonReader] = {}

    def judged(self, lines: Sequence[RawLine], layout: Layout) -> pa.Table:
        """Lines of one layout, or Declined."""
        import pyarrow as pa

        if layout.format == "csv" and any("\n" in (raw or "") for _, _, raw, _ in lines):
            raise NeedsSpark("a record over several lines")
        read = self._object if layout.format == "jsonl" else _CsvParser(layout, self._types).record
        records = [read(raw) if flaw is None else self._cut(layout, raw, flaw)
                   for _, _, raw, flaw in lines]  # fmt: skip
        columns = {name: self._column(name, type_, records) for name, type_ in self._types.items()}
        said = self._reasons(records, pa.table(columns) if columns else None)
        places = list(zip(*(line[:3] for line in lines), strict=True)) or [(), (), ()]
        drifted = [each.stray is not None for each in records]
        if self._refusing:
            said = [_add_unknown_fields(each, why) for each, why in zip(records, said, strict=True)]
        rescued = [
            None if each.stray is None or self._contract.drift is DriftMode.REFUSE
            else list(each.stray.items()) for each in records
        ]  # fmt: skip
        return pa.table(
            {
                FILE: pa.array(places[0], pa.int32()),
                POSITION: pa.array(places[1], pa.int64()),
                RAW: pa.array(places[2], pa.string()),
                BAD: pa.array([bool(why) for why in said], pa.bool_()),
                REASONS: pa.array(said, pa.list_(pa.string())),
                HAS_DRIFT: pa.array([d and not self._refusing for d in drifted], pa.bool_()),
                UNKNOWN_FIELDS: pa.array(
                    [None if each.stray is None else list(each.stray) for each in records],
                    pa.list_(pa.string()),
                ),
                RESCUED: pa.array(rescued, pa.map_(pa.string(), pa.string())),
                **columns,
            }
        )

    def judged_rows(self, rows: pa.Table, typed: pa.Table) -> pa.Table:
        """Rows of Parquet files (FILE and POSITION among their columns) that have their types."""
        import pyarrow as pa

        own = [name for name in rows.column_names if name not in (FILE, POSITION)]
        stray = [name for name in own if name not in self._types] or None
        said = self._reasons(
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
                BAD: pa.array([bool(why) for why in said], pa.bool_()),
                REASONS: pa.array(said, pa.list_(pa.string())),
                HAS_DRIFT: pa.array([stray is not None] * count, pa.bool_()),
                UNKNOWN_FIELDS: pa.array([stray] * count, pa.list_(pa.string())),
                RESCUED: typed.column(RESCUED) if RESCUED in typed.column_names else nothing,
                **{name: typed.column(name) for name in self._types},
            }
        )

    def _cut(self, layout: Layout, raw: str | None, flaw: str) -> ParsedRecord:
        """A record that is wrong as a line, so that nothing is read from it."""
        if raw is not None and _SURROGATE.search(raw):
            raise NeedsSpark("an escape that may be half of a character")
        if layout.format == "jsonl":
            return ParsedRecord([flaw])
        stray = [name for name in layout.fields if name not in self._types]
        return ParsedRecord([flaw], stray=dict.fromkeys(stray) if stray else None)

    def _object(self, raw: str | None) -> ParsedRecord:
        if raw is None:
            return ParsedRecord()
        found = parse_object(raw)
        if found is None:
            return ParsedRecord([NOT_OBJECT])
        record, stray = ParsedRecord(), {}
        for name, value in found.items():
            type_ = self._types.get(name)
            if type_ is not None and is_nested(type_):
                record.nested[name] = value
            elif type_ is not None:
                record.texts[name] = _member_text(value, exact=not _is_number(type_))
            else:
                stray[name] = _member_text(value, exact=True)
        record.stray = stray or None
        return record

    def _column(self, name: str, type_: Type, records: Sequence[ParsedRecord]) -> pa.Array:
        """A column's values; texts that are none of its type become flaws of their records."""
        import pyarrow as pa

        if is_nested(type_):
            return self._nested(name, type_, [record.nested.get(name) for record in records])
        values: list[Any] = []
        for record in records:
            text = record.texts.get(name)
            value = None if text is None else parse_scalar(type_, text)
            if value is NO_VALUE:
                record.flaws.append(f'{name}: "{(text or "")[:60]}" is not of type {type_}')
            values.append(None if value is NO_VALUE else value)
        return pa.array(values, arrow_type(type_))

    def _nested(self, name: str, type_: Type, values: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        there = [number for number, value in enumerate(values) if value is not None]
        if not there:
            return pa.nulls(len(values), arrow_type(type_))
        values = [_parse_nested(value) for value in values]
        if name not in self._plain:
            only = [column for column in self._contract.columns if column.name == name]
            self._plain[name] = UnambiguousJsonReader(
                replace(self._contract, columns=tuple(only), rules=())
            )
        text = "\n".join(f'{{"{name}":{to_json(values[number])}}}' for number in there)
        if json.dumps(name) != f'"{name}"':
            raise NeedsSpark(f"{name} is an unusual name")
        found = self._plain[name].lines(text.encode("utf-8", "surrogatepass"), len(there))
        place: list[int | None] = [None] * len(values)
        for row, number in enumerate(there):
            place[number] = row
        taken = found.column(name).combine_chunks().take(pa.array(place, pa.int64()))
        return taken.cast(arrow_type(type_))

    def _reasons(self, records: Sequence[ParsedRecord], typed: pa.Table | None) -> list[list[str]]:
        """The flaws of each record; of one that has none, the rules that it breaks."""
        if typed is None:
            raise NeedsSpark("a contract without columns")
        import duckdb
        import pyarrow as pa

        whole = [number for number, record in enumerate(records) if not record.flaws]
        said = [list(record.flaws) for record in records]
        if whole:
            rows = typed.take(pa.array(whole, pa.int64()))
            with duckdb.connect(config={"threads": 1}) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute("SET preserve_insertion_order = true")
                connection.register("records", rows)
                found = connection.execute(
                    f"SELECT {row_reasons(self._contract, 'duckdb')} FROM records"
                ).fetchall()
            for number, (why,) in zip(whole, found, strict=True):
                said[number] = [str(each) for each in why]
        return said


class _CsvParser:
    """How CSV lines of one layout are parted, where every parser parts them alike."""

    def __init__(self, layout: Layout, types: Mapping[str, Type]) -> None:
        from thermocline.ingest.arrow.csv import CellSplitter

        self._layout = layout
        self._types = types
        self._parting = CellSplitter(layout)

    def record(self, raw: str | None) -> ParsedRecord:
        """A line's cells by the names of the layout."""
        if raw is None or not self._parting.is_certain(raw.encode("utf-8", "surrogatepass")):
            raise NeedsSpark("a line that parsers may part in several ways")
        layout = self._layout
        how: dict[str, Any] = {"delimiter": layout.delimiter, "quotechar": layout.quote}
        try:
            (cells,) = csv.reader([raw], doublequote=True, strict=True, **how)
        except (csv.Error, ValueError) as error:
            raise NeedsSpark("a line that this process cannot part") from error
        names = layout.fields
        flaws = [] if len(cells) == len(names) else [f"not {len(names)} cells"]
        found: list[str | None] = [cell or None for cell in cells[: len(names)]]
        found += [None] * (len(names) - len(found))
        record = ParsedRecord(flaws)
        for name, text in zip(names, found, strict=True):
            type_ = self._types.get(name)
            if type_ is None:
                record.stray = {**(record.stray or {}), name: text}
            elif is_nested(type_):
                if text is not None:
                    raise NeedsSpark(f"{name} is nested")
            elif type_ == Primitive("string"):
                record.texts[name] = text
            else:
                record.texts[name] = (text or "").strip(" ") or None
        return record


def parse_fields(raw: str | None, layout: Layout) -> dict[str, Any] | None:
    """All fields of a record, whatever a contract says of them; None where it has none.

    Numbers are tokens. Declined where it is not certain which they are.
    """
    if raw is None:
        return None
    if layout.format == "jsonl":
        return parse_object(raw)
    return dict(_CsvParser(layout, {}).record(raw).stray or {})


def parse_object(raw: str) -> dict[str, Any] | None:
    """The members of a JSON object, numbers as tokens; None when it certainly is no object."""
    if _SURROGATE.search(raw):
        raise NeedsSpark("an escape that may be half of a character")
    if "\0" in raw or "\ufeff" in raw:
        raise NeedsSpark("a character that parsers may take otherwise")
    try:
        found = json.loads(
            raw, parse_int=NumberToken, parse_float=NumberToken, parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_duplicates,
        )  # fmt: skip
    except json.JSONDecodeError as error:
        # Long numbers are made texts before Spark parses, also such as JSON does not allow.
        if _LONG_NUMBER.search(raw) or not raw.isprintable():
            raise NeedsSpark("a record that may yet be read") from error
        return None
    except RecursionError as error:
        raise NeedsSpark("a record that is nested too deeply") from error
    if not isinstance(found, dict):
        raise NeedsSpark("JSON that is no object")
    return found


def to_json(value: Any) -> str:
    """JSON of what was parsed, with every number as it was."""
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
    """A nested value, which may be written as a text that holds it."""
    if not isinstance(value, str) or isinstance(value, NumberToken):
        return value
    if _LONG_NUMBER.search(value) or _SURROGATE.search(value):
        raise NeedsSpark("a text whose numbers may lose digits")
    try:
        found = json.loads(
            value, parse_int=NumberToken, parse_float=NumberToken, parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_duplicates,
        )  # fmt: skip
    except (json.JSONDecodeError, RecursionError) as error:
        raise NeedsSpark("a text that holds no JSON") from error
    if not isinstance(found, dict | list):
        raise NeedsSpark("a text that holds neither object nor list")
    return found


def _row_to_json(row: Mapping[str, Any]) -> str:
    """A row as Spark's `to_json` writes it, without what is null."""
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
    raise NeedsSpark("a value that may be written in several ways")


def _member_text(value: Any, *, exact: bool) -> str | None:
    """A member's text as Spark has it. `exact`: the digits of a number matter, not its value."""
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
    """A number's text. Short ones with a fraction go through a double in Spark."""
    digits = number.removeprefix("-")
    if len(digits) > EXACT_DIGITS or "e" in number.lower():
        return str(number)
    if digits.isdigit():
        if digits == "0" != number:
            raise NeedsSpark("a number that may lose its sign")
        return str(number)
    value = float(number)
    if exact or not 1e-3 <= abs(value) < 1e7:
        raise NeedsSpark("a number whose digits may be written otherwise")
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


def _add_unknown_fields(record: ParsedRecord, said: list[str]) -> list[str]:
    if said or record.stray is None:
        return said
    return [f"fields that the contract does not name: {', '.join(record.stray)}"]

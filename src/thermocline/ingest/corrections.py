"""Write quarantined rows to a file for correction, and read the corrected file.

Each row has its own fields and quarantine's fields, whose names begin with `_quarantine_`. A row's
field with such a name gets an additional underscore, so names cannot collide.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from thermocline.contract.problems import quote
from thermocline.errors import BadInput, first_line
from thermocline.ingest.arrow.local_validation import NumberToken, parse_fields, to_json
from thermocline.ingest.layout import Layout
from thermocline.ingest.unambiguous_json import NeedsSpark

if TYPE_CHECKING:
    from thermocline.contract.definition import Contract

MAX_FILE_BYTES = 256 << 20
PREFIX = "_quarantine_"
ID, REASON, FILE, POSITION, RAW = (
    PREFIX + name for name in ("id", "reason", "file", "position", "raw")
)
_RESERVED = re.compile(r"_+quarantine_(id|reason|file|position|raw)")
_ID_PREFIX = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True)
class Correction:
    """A row's corrected fields. If `is_whole`, they replace the row; else other fields stay."""

    fields: Mapping[str, Any]
    is_whole: bool = False

    def to_json(self) -> str:
        """Format the fields as JSON with numbers as texts, which keep their digits in Spark."""
        return json.dumps(self.fields, ensure_ascii=False)

    def is_same_as(self, fields: Mapping[str, Any]) -> bool:
        """Whether the fields equal those that were exported."""
        own, theirs = (
            {k: _to_text(v) for k, v in each.items() if v is not None}
            for each in (self.fields, fields)
        )
        return own == theirs


def export_row(row: Mapping[str, Any], contract: Contract) -> dict[str, Any]:
    """Return the export of a quarantined row.

    A row that cannot be parsed into fields has its text, and the contract's columns to fill in.
    """
    exported: dict[str, Any] = {
        ID: row["id"],
        REASON: "; ".join(row["reasons"]),
        FILE: row["file"],
        POSITION: row["position"],
    }
    fields = editable_fields(row, contract)
    if row["raw"] is not None and (_parse_row(row) is None or row["reasons"][0].startswith("not ")):
        exported[RAW] = row["raw"]
    return exported | {_escape(name): _to_python(value) for name, value in fields.items()}


def editable_fields(row: Mapping[str, Any], contract: Contract) -> dict[str, Any]:
    """Return a row's fields, with null for the contract's columns that it lacks."""
    found = _parse_row(row) or _parse_partial_row(row) or {}
    return {**found, **{c.name: None for c in contract.columns if c.name not in found}}


def write(rows: Iterable[Mapping[str, Any]], out: IO[str], *, as_csv: bool) -> int:
    """Write exported rows and return their number."""
    count = 0
    if not as_csv:
        for row in rows:
            out.write(to_json(row) + "\n")
            count += 1
        return count
    exported_rows = list(rows)
    names = list(dict.fromkeys(name for row in exported_rows for name in row))
    # Only quotes distinguish an empty text from a missing value.
    out.write(",".join(_quote_cell(name) for name in names) + "\n")
    for row in exported_rows:
        out.write(",".join(_quote_cell(_to_cell_text(row.get(name))) for name in names) + "\n")
    return len(exported_rows)


def read(path: Path) -> dict[str, Correction]:
    """Read corrections by quarantine id or id prefix.

    An exported JSON line or CSV row is the whole record. In JSON lines, `{"id": …, "field": …}`
    corrects some fields and leaves the others; if the table has a field `id`, use
    `{"id": …, "row": {"id": …}}`. All problems are reported together.
    """
    if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        raise BadInput(f"{path} is no file of at most 256 MiB.", "Check the path, or split it.")
    corrections: dict[str, Correction] = {}
    problems: list[str] = []
    entries = _csv_entries(path) if path.suffix.lower() == ".csv" else _json_entries(path)
    for number, entry in entries:
        try:
            _add_correction(entry() if callable(entry) else entry, corrections)
        except ValueError as error:
            problems.append(f"{path.name}:{number}  {error}")
    if problems:
        more = f"\n… and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise BadInput("\n".join(problems[:20]) + more, "Fix the file. Nothing was replayed.")
    return corrections


def _json_entries(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            yield (
                number,
                lambda line=line: json.loads(line, parse_float=NumberToken, parse_int=NumberToken),
            )


def _csv_entries(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
        if len(set(header)) != len(header) or ID not in header:
            raise ValueError(f"the header needs {ID} and each name once")
        table = pacsv.read_csv(
            path,
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, ValueError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path.name} cannot be read as CSV: {first_line(error)}",
            "Export it again: thermo quarantine export.",
        ) from error
    for number, row in enumerate(table.to_pylist(), start=2):
        yield number, {name: value for name, value in row.items() if value is not None}


def _add_correction(entry: object, corrections: dict[str, Correction]) -> None:
    if not isinstance(entry, dict):
        raise ValueError("not a JSON object")
    is_whole = ID in entry
    name = entry.pop(ID if is_whole else "id", None)
    if not isinstance(name, str) or isinstance(name, NumberToken) or not _ID_PREFIX.fullmatch(name):
        raise ValueError(f"{quote(name)} is no id of a quarantined row")
    if name in corrections:
        raise ValueError(f"{name} is there twice")
    if is_whole:
        entry = {_unescape(k): v for k, v in entry.items() if not _is_reserved(k)}
    elif entry.keys() == {"row"} and isinstance(entry["row"], dict):
        entry = entry["row"]
    corrections[name] = Correction(entry, is_whole)


def _parse_row(row: Mapping[str, Any]) -> dict[str, Any] | None:
    if row["raw"] is None or row["layout"] is None:
        return None
    try:
        return parse_fields(row["raw"], Layout.read(row["layout"]))
    except NeedsSpark:
        return None


def _parse_partial_row(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Parse what is readable of a record that is not whole."""
    try:
        return None if row["layout"] is not None else parse_fields(row["raw"], Layout("jsonl"))
    except NeedsSpark:
        return None


def _to_python(value: Any) -> Any:
    """Convert a value to Python; a number with a fraction stays as written."""
    match value:
        case NumberToken():
            is_whole = value.removeprefix("-").isdigit() and value != "-0"
            return int(value) if is_whole else value
        case dict():
            return {name: _to_python(each) for name, each in value.items()}
        case list():
            return [_to_python(each) for each in value]
    return value


def _is_reserved(name: str) -> bool:
    return name.startswith(PREFIX) and _RESERVED.fullmatch(name) is not None


def _escape(name: str) -> str:
    return f"_{name}" if _RESERVED.fullmatch(name) else name


def _unescape(name: str) -> str:
    return name[1:] if _RESERVED.fullmatch(name) else name


def _to_text(value: Any) -> str:
    """Return a field as text, so that JSON values and CSV cells compare equal."""
    return value if isinstance(value, str) else to_json(value)


def _to_cell_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return to_json(value)


def _quote_cell(text: str | None) -> str:
    if text is None:
        return ""
    return '"' + text.replace('"', '""') + '"' if not text or re.search(r'[",\r\n]', text) else text

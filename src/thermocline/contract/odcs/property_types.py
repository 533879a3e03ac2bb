"""Parse the type of an ODCS property: physical, logical or nested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thermocline.contract.identifiers import check_column_name
from thermocline.contract.odcs.custom_properties import read_settings
from thermocline.contract.problems import DocumentPath, ProblemReport, did_you_mean, quote
from thermocline.contract.type_syntax import parse_type
from thermocline.contract.types import Field, List, Map, Primitive, Struct, Type
from thermocline.errors import BadInput

if TYPE_CHECKING:
    from open_data_contract_standard.model import SchemaProperty

# Placeholder for an invalid type that was reported, so that the remaining checks can continue.
UNKNOWN = Primitive("unknown")

_LOGICAL = {
    "string": "string", "boolean": "boolean", "date": "date", "time": "time",
}  # fmt: skip
_LOGICAL_NAMES = (*_LOGICAL, "integer", "number", "timestamp", "array", "object", "map")
_NARROW_FORMATS = {"integer": {"i8", "i16", "i32", "int32"}, "number": {"f32", "float", "float32"}}
_BARE_NESTED = {"struct": "object", "object": "object", "row": "object", "record": "object",
         "list": "array", "array": "array", "map": "map"}  # fmt: skip
_RULE_OPTIONS = (
    "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum",
)  # fmt: skip
_OPTIONS = (*_RULE_OPTIONS, "format", "timezone", "defaultTimezone")
_UNSUPPORTED_OPTIONS = (
    "multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
    "required",
)  # fmt: skip


def read_type(entry: SchemaProperty, at: DocumentPath, where: str, report: ProblemReport) -> Type:
    """Return the type of a property, or UNKNOWN after reporting a problem."""
    _check_options(entry.logicalTypeOptions or {}, at, where, report)
    nested = _read_nested_type(entry, at, where, report)
    if entry.physicalType is None:
        return nested or _read_logical_type(entry, at, where, report)
    if nested is not None and entry.physicalType.strip().lower() in _BARE_NESTED:
        return nested
    try:
        physical = parse_type(entry.physicalType)
    except BadInput as error:
        report.add_broken((*at, "physicalType"), where, error.cause, error.next_step)
        return UNKNOWN
    if nested is None:
        return physical
    if _strip_nullability(nested) != _strip_nullability(physical):
        what = f"physicalType is {physical}, but the nested properties define {nested}"
        report.add((*at, "physicalType"), where, what, "remove physicalType")
    return nested


def _check_options(
    options: dict[str, Any], at: DocumentPath, where: str, report: ProblemReport
) -> None:
    for key in options:
        place = (*at, "logicalTypeOptions", key)
        if key in _UNSUPPORTED_OPTIONS:
            report.add(place, where, f"{key} is not supported", "write it as a rule of type: sql")
        elif key not in _OPTIONS:
            report.add(place, where, f"unknown option {quote(key)}", did_you_mean(key, _OPTIONS))


def _read_logical_type(
    entry: SchemaProperty, at: DocumentPath, where: str, report: ProblemReport
) -> Type:
    logical, options = entry.logicalType, entry.logicalTypeOptions or {}
    if logical is None:
        report.add_missing(at, where, "has no type", "add physicalType or logicalType")
    elif logical in _LOGICAL:
        return Primitive(_LOGICAL[logical])
    elif logical in ("integer", "number"):
        narrow = str(options.get("format", "")).lower() in _NARROW_FORMATS[logical]
        wide = {"integer": ("long", "int"), "number": ("double", "float")}[logical]
        return Primitive(wide[narrow])
    elif logical == "timestamp":
        return Primitive("timestamptz" if options.get("timezone") is True else "timestamp")
    elif logical in _LOGICAL_NAMES:
        needs = {"array": "items", "object": "properties", "map": "map with key and value"}[logical]
        report.add((*at, "logicalType"), where, f"{logical} needs {needs}")
    else:
        hint = did_you_mean(logical, _LOGICAL_NAMES) or f"one of {', '.join(_LOGICAL_NAMES)}"
        report.add((*at, "logicalType"), where, f"unknown logicalType {quote(logical)}", hint)
    return UNKNOWN


def _read_nested_type(
    entry: SchemaProperty, at: DocumentPath, where: str, report: ProblemReport
) -> Type | None:
    keys = [key for key in ("properties", "items", "map") if getattr(entry, key) is not None]
    if not keys:
        return None
    if len(keys) > 1:
        report.add((*at, keys[1]), where, f"has both {keys[0]} and {keys[1]}")
        return UNKNOWN
    expected = {"properties": "object", "items": "array", "map": "map"}[keys[0]]
    if entry.logicalType not in (None, expected):
        what = f"{keys[0]} belong to logicalType {expected}, not {quote(entry.logicalType)}"
        report.add((*at, "logicalType"), where, what)
    if entry.properties is not None:
        return _read_struct(entry.properties, (*at, "properties"), where, report)
    if entry.items is not None:
        path = f"{where}.element"
        _refuse_column_only(entry.items, (*at, "items"), path, report)
        element = read_type(entry.items, (*at, "items"), path, report)
        return UNKNOWN if element == UNKNOWN else List(element, bool(entry.items.required))
    return _read_map(entry, (*at, "map"), where, report)


def _read_map(entry: SchemaProperty, at: DocumentPath, where: str, report: ProblemReport) -> Type:
    assert entry.map is not None
    if entry.map.key is None or entry.map.value is None:
        report.add(at, where, "a map needs key and value")
        return UNKNOWN
    key = read_type(entry.map.key, (*at, "key"), f"{where}.key", report)
    value = read_type(entry.map.value, (*at, "value"), f"{where}.value", report)
    if isinstance(key, Struct | List | Map):
        report.add((*at, "key"), where, "a map's key must not be a nested type")
        return UNKNOWN
    if UNKNOWN in (key, value):
        return UNKNOWN
    return Map(key, value, bool(entry.map.value.required))


def _read_struct(
    entries: list[SchemaProperty], at: DocumentPath, where: str, report: ProblemReport
) -> Type:
    fields: list[Field] = []
    broken = not entries
    if not entries:
        report.add(at, where, "an object needs at least one property")
    for index, entry in enumerate(entries):
        place, name = (*at, index), entry.name or ""
        if not name:
            report.add_missing(place, where, "the property has no name")
            broken = True
            continue
        flaw = check_column_name(name)
        twin = next((f.name for f in fields if f.name.lower() == name.lower()), None)
        if flaw is None and twin is not None:
            flaw = (f"property {quote(name)} is defined twice", "")
        if flaw is not None:
            report.add_broken((*place, "name"), where, *flaw)
            broken = True
            continue
        path = f"{where}.{name}"
        _refuse_column_only(entry, place, path, report)
        type_ = read_type(entry, place, path, report)
        broken = broken or type_ == UNKNOWN
        renamed = read_settings(entry.customProperties, place, path, "column", report)
        old = renamed["renamedFrom"].value if "renamedFrom" in renamed else None
        fields.append(
            Field(
                name, type_, bool(entry.required), (entry.description or "").strip() or None,
                classification=entry.classification,
                renamed_from=old if isinstance(old, str) else None,
                line=report.line_of(place),
            )
        )  # fmt: skip
    return UNKNOWN if broken else Struct(tuple(fields))


def _refuse_column_only(
    entry: SchemaProperty, at: DocumentPath, where: str, report: ProblemReport
) -> None:
    for key in ("primaryKey", "partitioned", "unique", "quality", "relationships", "enum"):
        if getattr(entry, key):
            hint = "write it as a rule of type: sql" if key != "partitioned" else ""
            report.add(
                (*at, key), where, f"{key} applies to columns, not to nested properties", hint
            )
    for key in entry.logicalTypeOptions or {}:
        if key in _RULE_OPTIONS:
            place = (*at, "logicalTypeOptions", key)
            hint = "write it as a rule of type: sql"
            report.add(place, where, f"{key} applies to columns, not to nested properties", hint)


def _strip_nullability(type_: Type) -> Type:
    """Return the type without the parts that its text may omit: docs and nullability."""
    match type_:
        case Struct(fields):
            return Struct(tuple(Field(f.name, _strip_nullability(f.type)) for f in fields))
        case List(element, _):
            return List(_strip_nullability(element))
        case Map(key, value, _):
            return Map(key, _strip_nullability(value))
    return type_

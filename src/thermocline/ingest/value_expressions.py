"""Spark SQL expressions that convert text to typed values and report unreadable text.

A JSON object is a `map<string,string>` of its members' texts, so unknown members are detected and
numbers keep their digits. For each type there are three kinds of expressions: the typed value, its
flaws, and its members that the contract does not name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from thermocline.contract.definition import Contract
from thermocline.contract.problems import Problem
from thermocline.contract.types import Decimal, Fixed, List, Map, Primitive, Struct, Type
from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.errors import ContractError

STRICT_JSON = (
    "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false', "
    # The source bounds a record; the parser's own limit is 20 million characters a text.
    "'maxStringLen', '2147483647')"
)
EXACT_DIGITS = 15
"""Spark converts a JSON number to a double's text, which keeps this many digits exactly."""

_MAY_BE_LONG = f"[0-9][0-9.]{{{EXACT_DIGITS}}}|[0-9][eE]"
_NUMBER = f"-?[0-9][-+.0-9eE]{{{EXACT_DIGITS},}}|-?[0-9][.0-9]*[eE][-+]?[0-9]+"
_STRING_OR_REST = r'"(?:[^"\\]|\\.)*+"|[^"]++|"'
"""A JSON string, or the text between two strings."""

_SURROGATE = r"(?i)\\u(d[89a-f][0-9a-f]{2})"
_SURROGATE_PAIR = r"(?i)\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}"

_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6}0*)?)?"
_ZONE = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)?"
PATTERNS = {
    "float": "[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?|NaN|[+-]?Infinity",
    # A date or a local time may only have the zone Z, which change data capture writes.
    "date": f"{_DATE}Z?",
    "timestamp": f"{_DATE}({_TIME}Z?)?",
    "timestamptz": f"{_DATE}({_TIME}{_ZONE})?",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
PATTERNS["double"] = PATTERNS["float"]


@dataclass(frozen=True)
class FlawExpression:
    """A condition under which a value is bad, and an expression for the reason."""

    condition: str
    reason: str


def refuse_unwritable_types(contract: Contract) -> None:
    """Raise ContractError for columns of a type that Spark cannot write to Iceberg."""
    path = str(contract.path or contract.table)
    problems = [
        Problem(path, column.line, column.name, "Spark cannot write a time", "use a string")
        for column in contract.columns
        if _has_time(column.type)
    ]
    if problems:
        raise ContractError(list(problems), "Nothing was ingested.")


def exact_numbers(json: str) -> str:
    """Return JSON in which numbers that a double would change are quoted."""
    parts = f"regexp_extract_all({json}, {literal(_STRING_OR_REST)}, 0)"
    quoted = f"regexp_replace(x, {literal(f'({_NUMBER})')}, '\"$1\"')"
    every = f"transform({parts}, x -> if(startswith(x, '\"'), x, {quoted}))"
    return f"if({json} rlike {literal(_MAY_BE_LONG)}, array_join({every}, ''), {json})"


def unpaired_surrogate(json: str) -> FlawExpression:
    """Return the flaw of JSON with an unpaired surrogate, which no text can hold."""
    # An escaped backslash does not start another escape.
    escapes = f"replace({json}, {literal(chr(92) * 2)}, '')"
    halves = f"regexp_replace({escapes}, {literal(_SURROGATE_PAIR)}, '')"
    condition = f"({json} rlike {literal(_SURROGATE)} and {halves} rlike {literal(_SURROGATE)})"
    half = f"regexp_extract({halves}, {literal(_SURROGATE)}, 1)"
    slash = literal(chr(92) + "u")
    return FlawExpression(condition, f"concat('\"', {slash}, {half}, '\" is half of a character')")


def literal(text: str) -> str:
    """Format a text as a SQL literal. The session's parser reads backslashes as escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def instant(moment: datetime) -> str:
    """Format a time as a SQL expression, to the microsecond."""
    whole = int(moment.timestamp()) * 1_000_000 + moment.microsecond
    return f"timestamp_micros({whole})"


def shape(type_: Type) -> str:
    """Return the type into which JSON of this type is parsed before its members are converted."""
    match type_:
        case Struct():
            return "map<string,string>"
        case List(element):
            return f"array<{shape(element)}>"
        case Map(_, value):
            return f"map<string,{shape(value)}>"
    return "string"


def is_nested(type_: Type) -> bool:
    """Whether the type is written as JSON inside a text."""
    return isinstance(type_, Struct | List | Map)


def parse(type_: Type, text: str) -> str:
    """Return an expression that parses a text into the shape of its type."""
    return f"from_json({text}, '{shape(type_)}', {STRICT_JSON})" if is_nested(type_) else text


def value(type_: Type, it: str, depth: int = 0) -> str:
    """Return an expression for the typed value of a shape; null if it cannot be read."""
    x = f"x{depth}"
    match type_:
        case Struct(fields):
            members = ", ".join(
                f"{literal(f.name)}, {value(f.type, parse(f.type, member(it, f.name)), depth)}"
                for f in fields
            )
            return f"if({it} is null, null, named_struct({members}))"
        case List(element):
            return f"transform({it}, {x} -> {value(element, x, depth + 1)})"
        case Map(key, inner):
            pair = f"{value(key, f'{x}.key', depth + 1)}, {value(inner, f'{x}.value', depth + 1)}"
            read = f"map_from_entries(transform(map_entries({it}), {x} -> struct({pair})))"
            if key == Primitive("string"):
                return read
            # Spark would fail the whole job because of a null or repeated key.
            return f"if({_keys_clash(key, it, x)}, null, {read})"
    return scalar(type_, it)


def scalar(type_: Type, text: str) -> str:
    """Return an expression for the typed value of a text; null if it cannot be read exactly."""
    target = to_ddl(type_)
    match type_:
        case Decimal(_, scale):
            # A cast rounds numbers with too many decimals. The length of most texts shows that they
            # have few; for others the significant decimals are counted.
            read = f"try_cast({text} as {target})"
            point = f"instr({text}, '.')"
            short = (
                f"({point} = 0 or length({text}) - {point} <= {scale}) "
                f"and instr({text}, 'e') = 0 and instr({text}, 'E') = 0"
            )
            return f"case when {short} or {_digits_after_point(text)} <= {scale} then {read} end"
        case Fixed(length):
            read = f"try_to_binary({text}, 'base64')"
            return f"case when octet_length({read}) = {length} then {read} end"
        case Primitive("string"):
            return text
        case Primitive("binary"):
            return f"try_to_binary({text}, 'base64')"
        case Primitive("float" | "double" as name):
            # A cast turns too large numbers into infinity, and too small ones into zero.
            read = f"try_cast({text} as {target})"
            digits = f"{text} rlike '[0-9]'"
            zero = f"not regexp_extract({text}, '^[^eE]*', 0) rlike '[1-9]'"
            kept = (
                f"case when {digits} and abs({read}) = double('Infinity') then false "
                f"when {read} = 0 then {zero} else true end"
            )
            return f"case when {_matches(text, name)} and {kept} then {read} end"
        case Primitive("uuid"):
            return f"case when {_matches(text, 'uuid')} then lower({text}) end"
        case Primitive(name) if name in PATTERNS:
            trimmed = f"rtrim('Z', {text})" if name in {"date", "timestamp"} else text
            return f"case when {_matches(text, name)} then try_cast({trimmed} as {target}) end"
    return f"try_cast({text} as {target})"


def to_text(type_: Type, it: str) -> str:
    """Return an expression for a text that converts back to the same value."""
    if not is_nested(type_):
        return _scalar_to_text(type_, it)
    return f"to_json({_nested_to_text(type_, it)}, map('ignoreNullFields', 'false'))"


def _nested_to_text(type_: Type, it: str, depth: int = 0) -> str:
    x = f"w{depth}"
    match type_:
        case Struct(fields):
            texts = (
                _nested_to_text(f.type, f"{it}.{quote_identifier(f.name)}", depth) for f in fields
            )
            members = ", ".join(
                f"{literal(f.name)}, {text}" for f, text in zip(fields, texts, strict=True)
            )
            return f"if({it} is null, null, named_struct({members}))"
        case List(element):
            return f"transform({it}, {x} -> {_nested_to_text(element, x, depth + 1)})"
        case Map(key, inner):
            keyed = f"transform_keys({it}, ({x}, _) -> {_nested_to_text(key, x, depth + 1)})"
            return f"transform_values({keyed}, (_, {x}) -> {_nested_to_text(inner, x, depth + 1)})"
    # All values as texts: a number would be read through a double and lose digits.
    return _scalar_to_text(type_, it)


def _scalar_to_text(type_: Type, it: str) -> str:
    match type_:
        case Fixed() | Primitive("binary"):
            return f"base64({it})"
        case Primitive("timestamptz"):
            return f"date_format({it}, {literal(_TIMESTAMP_FORMAT)})"
        case Primitive("string" | "uuid"):
            return it
    return f"cast({it} as string)"


_TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


def _digits_after_point(text: str) -> str:
    """Return an expression for a number's significant decimals; null if the text is no number."""
    parts = literal(r"^[+-]?([0-9]*)[.]?([0-9]*)(?:[eE]([+-]?[0-9]{1,9}))?$")
    whole, after, power = (f"regexp_extract(trim({text}), {parts}, {n})" for n in (1, 2, 3))
    digits = f"concat({whole}, {after})"
    needed = (
        f"length({after}) - length({digits}) + length(rtrim('0', {digits})) "
        f"- if({power} = '', 0, cast({power} as int))"
    )
    return (
        f"case when not trim({text}) rlike {parts} then null "
        f"when rtrim('0', {digits}) = '' then 0 else {needed} end"
    )


def unreadable_flaw(path: str, type_: Type, text: str, typed: str) -> FlawExpression:
    """Return the flaw of a text without a typed value."""
    kind = "a list" if isinstance(type_, List) else "an object" if is_nested(type_) else None
    suffix = f" is not {kind}" if kind else f" is not of type {type_}"
    shown = f"concat({literal(path + ': ')}, '\"', left({text}, 60), '\"', {literal(suffix)})"
    return FlawExpression(f"({text} is not null and {typed} is null)", shown)


def flaws(type_: Type, it: str, path: str, depth: int = 0) -> Iterator[FlawExpression]:
    """Yield the flaws inside a shape."""
    x = f"x{depth}"
    match type_:
        case Struct(fields):
            for field in fields:
                yield from _member_flaws(field.type, it, field.name, f"{path}.{field.name}", depth)
                if field.required:
                    is_missing = f"({it} is not null and {member(it, field.name)} is null)"
                    yield FlawExpression(is_missing, literal(f"{path}.{field.name} is missing"))
        case List(element, required):
            if required:
                empty = f"exists({it}, {x} -> {x} is null)"
                yield FlawExpression(empty, literal(f"{path} has an element that is missing"))
            for flaw in _item_flaws(element, x, path, depth + 1):
                yield _lift_flaw(flaw, it, x)
        case Map(key, inner, required):
            entries = f"map_entries({it})"
            if required:
                empty = f"exists({entries}, {x} -> {x}.value is null)"
                yield FlawExpression(empty, literal(f"{path} has a value that is missing"))
            if key != Primitive("string"):
                clash = _keys_clash(key, it, x)
                yield FlawExpression(
                    clash, literal(f"{path} has a key that is there twice or unreadable")
                )
            for flaw in _item_flaws(key, f"{x}.key", f"{path} key", depth + 1):
                yield _lift_flaw(flaw, entries, x)
            for flaw in _item_flaws(inner, f"{x}.value", path, depth + 1):
                yield _lift_flaw(flaw, entries, x)


def unknown_members(type_: Type, it: str, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield conditions for members that the contract does not name, and their names."""
    x, k = f"x{depth}", f"k{depth}"
    match type_:
        case Struct(fields):
            known = ", ".join(literal(field.name) for field in fields)
            keys, is_unknown = f"map_keys({it})", f"{k} -> {k} not in ({known})"
            prefix = literal(path + ".")
            named = f"transform(filter({keys}, {is_unknown}), {k} -> concat({prefix}, {k}))"
            yield f"exists({keys}, {is_unknown})", named
            for field in fields:
                inner = parse(field.type, member(it, field.name))
                yield from unknown_members(field.type, inner, f"{path}.{field.name}", depth + 1)
        case List(element):
            for flag, names in unknown_members(element, x, path, depth + 1):
                yield f"exists({it}, {x} -> {flag})", f"flatten(transform({it}, {x} -> {names}))"
        case Map(_, inner):
            of = f"map_values({it})"
            for flag, names in unknown_members(inner, x, path, depth + 1):
                yield f"exists({of}, {x} -> {flag})", f"flatten(transform({of}, {x} -> {names}))"


def member(it: str, name: str) -> str:
    """Return an expression for a member's text in an object's shape."""
    return f"{it}[{literal(name)}]"


def _member_flaws(
    type_: Type, it: str, name: str, path: str, depth: int
) -> Iterator[FlawExpression]:
    text = member(it, name)
    if not is_nested(type_):
        if type_ != Primitive("string"):
            yield unreadable_flaw(path, type_, text, scalar(type_, text))
        return
    inner = parse(type_, text)
    yield unreadable_flaw(path, type_, text, inner)
    yield from flaws(type_, inner, path, depth)


def _item_flaws(type_: Type, item: str, path: str, depth: int) -> Iterator[FlawExpression]:
    if is_nested(type_):
        yield from flaws(type_, item, path, depth)
    elif type_ != Primitive("string"):
        yield unreadable_flaw(path, type_, item, scalar(type_, item))


def _lift_flaw(flaw: FlawExpression, items: str, x: str) -> FlawExpression:
    first = f"element_at(filter({items}, {x} -> {flaw.condition}), 1)"
    reason = f"element_at(transform(array({first}), {x} -> {flaw.reason}), 1)"
    return FlawExpression(f"exists({items}, {x} -> {flaw.condition})", reason)


def _keys_clash(key: Type, it: str, x: str) -> str:
    keys = f"transform(map_keys({it}), {x} -> {scalar(key, x)})"
    return f"(exists({keys}, {x} -> {x} is null) or size(array_distinct({keys})) <> size({keys}))"


def _matches(text: str, name: str) -> str:
    return f"{text} rlike {literal(f'^({PATTERNS[name]})$')}"


def _has_time(type_: Type) -> bool:
    match type_:
        case Struct(fields):
            return any(_has_time(field.type) for field in fields)
        case List(element):
            return _has_time(element)
        case Map(key, inner):
            return _has_time(key) or _has_time(inner)
    return type_ == Primitive("time")

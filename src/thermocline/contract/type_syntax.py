"""Parse types from text: Iceberg's names, common SQL names, and nested types."""

from __future__ import annotations

import re

from thermocline.contract.identifiers import check_column_name
from thermocline.contract.problems import did_you_mean, quote
from thermocline.contract.types import (
    PRIMITIVES,
    Decimal,
    Field,
    Fixed,
    List,
    Map,
    Primitive,
    Struct,
    Type,
)
from thermocline.errors import BadInput

MAX_LENGTH = 20_000
MAX_DEPTH = 30
MAX_PRECISION = 38
_MAX_FIXED = 2**31 - 1

SYNONYMS = {
    "bool": "boolean", "byte": "int", "tinyint": "int", "short": "int", "smallint": "int",
    "integer": "int", "int32": "int", "bigint": "long", "int64": "long", "real": "float",
    "float32": "float", "float64": "double", "double precision": "double", "text": "string",
    "varchar": "string", "char": "string", "bytes": "binary", "blob": "binary",
    "varbinary": "binary", "bytea": "binary", "datetime": "timestamp",
    "timestamp_ntz": "timestamp", "timestamp without time zone": "timestamp",
    "timestamp_ltz": "timestamptz", "timestamp with time zone": "timestamptz",
    "timestamp with local time zone": "timestamptz",
}  # fmt: skip
_NANOSECONDS = {"timestamp_ns", "timestamptz_ns"}
_DECIMALS = {"decimal", "numeric", "dec", "number"}
_LISTS = {"list", "array"}
_KNOWN = sorted({*PRIMITIVES, *SYNONYMS, "decimal", "numeric", "fixed", "struct", "list", "array",
                 "map"})  # fmt: skip
_SPELLINGS = f"{', '.join(sorted(PRIMITIVES))}, decimal(p,s), fixed[n], struct<…>, list<…>, map<…>"
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[<>()\[\],:])", re.ASCII)


class _TypeSyntaxError(Exception):
    """A syntax error in the text of a type."""


def parse_type(text: str) -> Type:
    """Return the type that a text names. `parse_type(str(type)) == type` for types without docs.

    Raises BadInput: the cause quotes the text, the next step explains the error.
    """
    try:
        if len(text) > MAX_LENGTH:
            raise _TypeSyntaxError(f"longer than {MAX_LENGTH:,} characters")
        return _TypeParser(text).parse()
    except _TypeSyntaxError as flaw:
        raise BadInput(f"unknown type {quote(text)}", str(flaw)) from None


class _TypeParser:
    """A recursive-descent parser of the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _TypeSyntaxError(f"unexpected {quote(text[position:].strip()[0])}")
            self._tokens.append(match[1])
            position = match.end()
        self._at = 0

    def parse(self) -> Type:
        type_ = self._parse_type(1)
        if self._peek():
            raise _TypeSyntaxError(f"unexpected {quote(self._peek())} after {type_}")
        return type_

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _accept(self, *words: str) -> bool:
        """Consume the words if they come next."""
        if all(self._peek(i).lower() == word for i, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            found = quote(self._peek()) if self._peek() else "the end"
            raise _TypeSyntaxError(f'expected "{token}" instead of {found}')

    def _parse_type(self, depth: int) -> Type:
        if depth > MAX_DEPTH:
            raise _TypeSyntaxError(f"nested more than {MAX_DEPTH} levels deep")
        word = self._next()
        name = word.lower()
        if not name[:1].isalpha():
            raise _TypeSyntaxError("a type is missing" if not name else f"unexpected {quote(word)}")
        if name == "struct":
            return self._parse_struct(depth)
        if name in _LISTS:
            self._expect("<")
            element, required = self._parse_member(depth)
            self._expect(">")
            return List(element, required)
        if name == "map":
            return self._parse_map(depth)
        if name in _DECIMALS:
            return self._parse_decimal(name)
        if name == "fixed":
            return self._parse_fixed()
        return self._parse_primitive(name)

    def _parse_member(self, depth: int) -> tuple[Type, bool]:
        type_ = self._parse_type(depth + 1)
        return type_, self._accept("not", "null")

    def _parse_struct(self, depth: int) -> Struct:
        self._expect("<")
        fields: list[Field] = []
        while not fields or self._accept(","):
            name = self._next()
            flaw = check_column_name(name)
            if flaw:
                raise _TypeSyntaxError(f"{flaw[0]} inside struct<…>")
            if name.lower() in {field.name.lower() for field in fields}:
                raise _TypeSyntaxError(f"field {quote(name)} is defined twice")
            self._accept(":")
            type_, required = self._parse_member(depth)
            fields.append(Field(name, type_, required))
        self._expect(">")
        return Struct(tuple(fields))

    def _parse_map(self, depth: int) -> Map:
        self._expect("<")
        key = self._parse_type(depth + 1)
        if isinstance(key, Struct | List | Map):
            raise _TypeSyntaxError("a map's key must not be a nested type")
        self._expect(",")
        value, required = self._parse_member(depth)
        self._expect(">")
        return Map(key, value, required)

    def _parse_decimal(self, name: str) -> Decimal:
        if not self._accept("("):
            raise _TypeSyntaxError(f"add precision and scale, such as {name}(12,2)")
        precision = self._parse_number()
        scale = self._parse_number() if self._accept(",") else 0
        self._expect(")")
        if not 1 <= precision <= MAX_PRECISION:
            raise _TypeSyntaxError(
                f"precision must be at {f'most {MAX_PRECISION}' if precision else 'least 1'}"
            )
        if scale > precision:
            raise _TypeSyntaxError("scale must not exceed precision")
        return Decimal(precision, scale)

    def _parse_fixed(self) -> Fixed:
        opening = self._next()
        closing = {"[": "]", "(": ")"}.get(opening)
        if closing is None:
            raise _TypeSyntaxError("add a length, such as fixed[16]")
        length = self._parse_number()
        self._expect(closing)
        if not 1 <= length <= _MAX_FIXED:
            raise _TypeSyntaxError(f"length must be between 1 and {_MAX_FIXED:,}")
        return Fixed(length)

    def _parse_primitive(self, name: str) -> Primitive:
        name = self._join_phrase(name)
        if name in _NANOSECONDS:
            raise _TypeSyntaxError("timestamps have microseconds (Iceberg v2)")
        primitive = name if name in PRIMITIVES else SYNONYMS.get(name)
        if primitive is None:
            raise _TypeSyntaxError(did_you_mean(name, _KNOWN) or f"types are {_SPELLINGS}")
        if self._accept("("):
            self._check_parameter(primitive)
        return Primitive(primitive)

    def _join_phrase(self, name: str) -> str:
        """Join SQL type names of several words: double precision, timestamp with time zone."""
        if name == "double" and self._accept("precision"):
            return "double precision"
        if name == "timestamp":
            for phrase in ("with time zone", "without time zone", "with local time zone"):
                if self._accept(*phrase.split()):
                    return f"timestamp {phrase}"
        return name

    def _check_parameter(self, primitive: str) -> None:
        value = self._parse_number()
        self._expect(")")
        if primitive == "string":
            option = f"logicalTypeOptions: {{maxLength: {value}}}"
            raise _TypeSyntaxError(f"use string, and set the length with {option}")
        if primitive not in {"time", "timestamp", "timestamptz"}:
            raise _TypeSyntaxError(f"{primitive} takes no parameter")
        if value != 6:
            raise _TypeSyntaxError("times have microseconds; use 6 or no parameter")

    def _parse_number(self) -> int:
        token = self._next()
        if not token.isdigit() or len(token) > 10:
            raise _TypeSyntaxError(
                f"expected a number instead of {quote(token) if token else 'the end'}"
            )
        return int(token)

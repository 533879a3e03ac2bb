"""Convert a Parquet file's types to the contract's: kept, widened, or checked value by value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from thermocline.contract.types import Decimal, Fixed, List, Map, Primitive, Struct, Type
from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.ingest.value_expressions import FlawExpression, literal, scalar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_WIDENABLE_FROM = {
    "int": {"byte", "short", "integer"},
    "long": {"byte", "short", "integer", "long"},
    "float": {"float"},
    "double": {"float", "double", "byte", "short", "integer"},
    "timestamptz": {"timestamp", "timestamp_ntz"},
    "timestamp": {"timestamp_ntz"},
    "date": {"date"},
    "boolean": {"boolean"},
    "binary": {"binary"},
}


def convert(type_: Type, it: str, found: DataType, depth: int = 0) -> str:
    """Return an expression for a value as the contract's type; null if it does not fit."""
    from pyspark.sql import types as spark

    if found.simpleString() == to_ddl(type_).replace("`", "") and not _needs_check(type_):
        return it
    x = f"x{depth}"
    match type_, found:
        case Struct(fields), spark.StructType():
            file_types = {member.name: member.dataType for member in found.fields}
            members = ", ".join(
                f"{literal(f.name)}, {_member_expression(f.type, it, f.name, file_types, depth)}"
                for f in fields
            )
            return f"if({it} is null, null, named_struct({members}))"
        case List(element), spark.ArrayType():
            return f"transform({it}, {x} -> {convert(element, x, found.elementType, depth + 1)})"
        case Map(key, inner), spark.MapType():
            pair = (
                f"{convert(key, f'{x}.key', found.keyType, depth + 1)}, "
                f"{convert(inner, f'{x}.value', found.valueType, depth + 1)}"
            )
            return f"map_from_entries(transform(map_entries({it}), {x} -> struct({pair})))"
    return _convert_scalar(type_, it, found)


def to_spark_type(kind: pa.DataType) -> DataType | None:
    """Return the type as which Spark reads a file's type, or None if it cannot."""
    import pyarrow as pa
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_type

    larger = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }  # fmt: skip
    try:
        return from_arrow_type(larger.get(kind, kind))
    except PySparkTypeError:
        return None


def explain_type_mismatch(type_: Type, found: DataType) -> str | None:
    """Return why no value of the file's type can convert to the contract's, or None."""
    from pyspark.sql import types as spark

    match type_, found:
        case _, spark.NullType():
            return None
        case Struct(fields), spark.StructType():
            file_types = {member.name: member.dataType for member in found.fields}
            inner = (
                explain_type_mismatch(f.type, file_types[f.name])
                for f in fields
                if f.name in file_types
            )
            return next((reason for reason in inner if reason), None)
        case List(element), spark.ArrayType():
            return explain_type_mismatch(element, found.elementType)
        case Map(key, value), spark.MapType():
            return explain_type_mismatch(key, found.keyType) or explain_type_mismatch(
                value, found.valueType
            )
    name = found.typeName()
    if isinstance(type_, Struct | List | Map) or name not in _CONVERTIBLE_FROM[_type_family(type_)]:
        return f"{found.simpleString()} cannot become {type_}"
    return None


def _type_family(type_: Type) -> str:
    if isinstance(type_, Decimal | Fixed):
        return "number" if isinstance(type_, Decimal) else "binary"
    name = str(type_)
    return "number" if name in {"int", "long", "float", "double"} else name


_NUMBERS = {"byte", "short", "integer", "long", "float", "double", "decimal", "string"}
_TIMES = {"timestamp", "timestamp_ntz", "date", "string"}
_CONVERTIBLE_FROM = {
    "number": {*_NUMBERS, "boolean"},
    "boolean": {*_NUMBERS, "boolean"},
    "string": {*_NUMBERS, *_TIMES, "boolean", "binary"},
    "uuid": {"string"},
    "binary": {"binary", "string"},
    **dict.fromkeys(("date", "timestamp", "timestamptz"), _TIMES),
    "time": set(),
}
"""The file types whose values may convert to a column's type family, checked value by value."""


def conversion_flaws(
    type_: Type, it: str, found: DataType, path: str, depth: int = 0
) -> Iterator[FlawExpression]:
    """Yield the flaws of values that may not fit."""
    from pyspark.sql import types as spark

    x = f"x{depth}"
    match type_, found:
        case Struct(fields), spark.StructType():
            file_types = {member.name: member.dataType for member in found.fields}
            for field in fields:
                here, name = f"{it}.{quote_identifier(field.name)}", f"{path}.{field.name}"
                if field.required:
                    is_missing = f"{it} is not null" + (
                        f" and {here} is null" if field.name in file_types else ""
                    )
                    yield FlawExpression(f"({is_missing})", literal(f"{name} is missing"))
                if field.name in file_types:
                    yield from conversion_flaws(
                        field.type, here, file_types[field.name], name, depth
                    )
        case List(element), spark.ArrayType():
            for flaw in conversion_flaws(element, x, found.elementType, path, depth + 1):
                yield FlawExpression(
                    f"exists({it}, {x} -> {flaw.condition})",
                    literal(f"{path}: {_mismatch_text(element)}"),
                )
        case Map(_, inner), spark.MapType():
            of = f"map_values({it})"
            for flaw in conversion_flaws(inner, x, found.valueType, path, depth + 1):
                condition = f"exists({of}, {x} -> {flaw.condition})"
                yield FlawExpression(condition, literal(f"{path}: a value {_mismatch_text(inner)}"))
        case _ if not _always_fits(type_, found):
            typed = _convert_scalar(type_, it, found)
            text = f"base64({it})" if found.typeName() == "binary" else f"cast({it} as string)"
            quoted = f"left({text}, 60)"
            suffix = literal(f" {_mismatch_text(type_)}")
            reason = f"concat({literal(path + ': ')}, '\"', {quoted}, '\"', {suffix})"
            yield FlawExpression(f"({it} is not null and {typed} is null)", reason)


def _mismatch_text(type_: Type) -> str:
    return f"is not of type {type_}"


def _member_expression(
    type_: Type, it: str, name: str, file_types: dict[str, DataType], depth: int
) -> str:
    if name not in file_types:
        return f"cast(null as {to_ddl(type_)})"
    return convert(type_, f"{it}.{quote_identifier(name)}", file_types[name], depth)


def _convert_scalar(type_: Type, it: str, found: DataType) -> str:
    target = to_ddl(type_)
    if found.typeName() == "string":
        return scalar(type_, it)
    if found.typeName() == "void":
        return f"cast(null as {target})"
    if _always_fits(type_, found):
        return it if found.simpleString() == target else f"cast({it} as {target})"
    if isinstance(type_, Fixed):
        return f"case when octet_length({it}) = {type_.length} then {it} end"
    if type_ == Primitive("string"):
        return f"case when is_valid_utf8(cast({it} as string)) then cast({it} as string) end"
    # A cast may round, cut or overflow; a value is kept if casting it back gives the same.
    read, back = f"try_cast({it} as {target})", found.simpleString()
    same = f"try_cast({read} as {back}) = {it}"
    # 2^63 is a double but no long: it casts to the largest long, which casts back to 2^63.
    floating = {"float", "double"}
    if str(type_) == "long" and found.typeName() in floating:
        same += f" and {it} < 9223372036854775807D"
    if str(type_) in floating and found.typeName() == "long":
        same += f" and {read} < 9223372036854775807D"
    return f"case when {same} then {read} end"


def _needs_check(type_: Type) -> bool:
    return isinstance(type_, Fixed) or type_ == Primitive("uuid")


def _always_fits(type_: Type, found: DataType) -> bool:
    from pyspark.sql import types as spark

    if type_ == Primitive("string"):
        return found.typeName() != "binary"
    if isinstance(type_, Decimal) and isinstance(found, spark.DecimalType):
        digits = type_.precision - type_.scale >= found.precision - found.scale
        return digits and type_.scale >= found.scale
    return found.typeName() in _WIDENABLE_FROM.get(str(type_), set())

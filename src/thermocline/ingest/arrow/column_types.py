"""Map a contract's types to Arrow's, and widen Arrow values to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.contract.types import Decimal, List, Map, Primitive, Struct, Type
from thermocline.ingest.unambiguous_json import NeedsSpark

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_type(type_: Type) -> pa.DataType:
    """Return the canonical Arrow type (`engine.arrow`) of a column."""
    import pyarrow as pa

    from thermocline.engine.arrow import list_type, map_type

    match type_:
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Struct(fields):
            return pa.struct([(field.name, arrow_type(field.type)) for field in fields])
        case List(element):
            return list_type(arrow_type(element))
        case Map(key, value):
            return map_type(arrow_type(key), arrow_type(value))
        case Primitive("boolean"):
            return pa.bool_()
        case Primitive("int"):
            return pa.int32()
        case Primitive("long"):
            return pa.int64()
        case Primitive("float"):
            return pa.float32()
        case Primitive("double"):
            return pa.float64()
        case Primitive("string"):
            return pa.string()
        case Primitive("binary"):
            return pa.binary()
        case Primitive("date"):
            return pa.date32()
        case Primitive("timestamp"):
            return pa.timestamp("us")
        case Primitive("timestamptz"):
            return pa.timestamp("us", "UTC")
    raise NeedsSpark(f"a column of type {type_}")


def widen(type_: Type, array: pa.Array) -> pa.Array:
    """Convert canonical values to the contract's type if that changes none of them."""
    import pyarrow as pa
    import pyarrow.types as pt

    from thermocline.engine.arrow import build_list_array, build_struct_array

    target = arrow_type(type_)
    if array.type == target:
        return array
    match type_:
        case Struct(fields) if pt.is_struct(array.type):
            members_by_name = dict(zip(array.type.names, array.flatten(), strict=True))
            members = [
                widen(field.type, members_by_name[field.name])
                if field.name in members_by_name
                else pa.nulls(len(array), arrow_type(field.type))
                for field in fields
            ]
            return build_struct_array(members, target, array)
        case List(element) if pt.is_list(array.type):
            return build_list_array(widen(element, array.flatten()), array)
        case _ if _is_wider(type_, array.type):
            return array.cast(target)
    raise NeedsSpark(f"{array.type} for {type_}")


def _is_wider(type_: Type, found: pa.DataType) -> bool:
    import pyarrow as pa
    import pyarrow.types as pt

    small = (pa.int8(), pa.int16(), pa.int32())
    match type_:
        case Primitive("int" | "long"):
            return found in small
        case Primitive("double"):
            return found in (*small, pa.float32())
        case Primitive("timestamptz"):
            return bool(pt.is_timestamp(found) and found.unit == "us")
        case Decimal(precision, scale) if pt.is_decimal128(found):
            digits = precision - scale >= found.precision - found.scale
            return bool(digits and scale >= found.scale)
    return False

"""Read and write Avro files without interpreting values, by the file's own schema.

PyIceberg reads only the parts of a manifest that it knows. A manifest that is rewritten with other
paths must keep the rest exactly: dates stay numbers, decimals bytes, unknown fields unchanged.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

_MAGIC = b"Obj\x01"
_SCHEMA, _CODEC = "avro.schema", "avro.codec"
_SIZES = {"float": 4, "double": 8}
_BLOCK_RECORDS = 4000
"""Records in a block: readers hold one block in memory."""

Schema = Any
NamedSchemas = dict[str, Schema]
Read = Callable[[BytesIO], Any]
Write = Callable[[BytesIO, Any], None]


@dataclass(frozen=True)
class AvroFile:
    """A file's records, and its header's metadata with the schema."""

    metadata: Mapping[str, bytes]
    records: list[Any]

    @property
    def fields(self) -> dict[str, Schema]:
        """The schema of each field of a record."""
        return fields_of(json.loads(self.metadata[_SCHEMA]))


def fields_of(schema: Schema) -> dict[str, Schema]:
    """Return the schema of each field of a record; `schema` may be an optional record."""
    if isinstance(schema, list):
        schema = next(each for each in schema if each != "null")
    return {field["name"]: field["type"] for field in schema["fields"]}


def read(content: bytes) -> AvroFile:
    """Parse a file. Raise ValueError for content that is not a complete Avro file."""
    stream = BytesIO(content)
    if stream.read(4) != _MAGIC:
        raise ValueError("it is not an Avro file")
    try:
        header: dict[str, bytes] = dict(_read_map(stream, _read_bytes))
        codec = header.get(_CODEC, b"null")
        if codec not in (b"null", b"deflate"):
            raise ValueError(f"it is compressed by {codec.decode()}")
        marker, one = stream.read(16), make_reader(json.loads(header[_SCHEMA]), {})
        records = []
        while stream.tell() < len(content):
            count, size = _read_long(stream), _read_long(stream)
            block = _read_exactly(stream, size)
            inner = BytesIO(block if codec == b"null" else zlib.decompress(block, -15))
            records += [one(inner) for _ in range(count)]
            if _read_exactly(stream, 16) != marker:
                raise ValueError("a block does not end where it says")
    except (IndexError, KeyError, EOFError, zlib.error) as error:
        raise ValueError(f"it is damaged: {error}") from error
    return AvroFile(header, records)


def dump(file: AvroFile) -> bytes:
    """Serialize a file. Equal records give equal bytes."""
    stream, one = BytesIO(), make_writer(json.loads(file.metadata[_SCHEMA]), {})
    stream.write(_MAGIC)
    _write_array(stream, list(file.metadata.items()), _write_entry)
    marker = bytes(16)
    stream.write(marker)
    for start in range(0, len(file.records), _BLOCK_RECORDS):
        block, some = BytesIO(), file.records[start : start + _BLOCK_RECORDS]
        for record in some:
            one(block, record)
        content = block.getvalue()
        if file.metadata.get(_CODEC) == b"deflate":
            packer = zlib.compressobj(wbits=-15)
            content = packer.compress(content) + packer.flush()
        _write_long(stream, len(some))
        _write_bytes(stream, content)
        stream.write(marker)
    return stream.getvalue()


def make_reader(schema: Schema, named: dict[str, Read]) -> Read:
    """Return a function that reads one value. A union is read as (branch, value)."""
    if isinstance(schema, list):
        branches = [make_reader(each, named) for each in schema]

        def union(stream: BytesIO) -> Any:
            number = _read_long(stream)
            return number, branches[number](stream)

        return union
    if isinstance(schema, str):
        return named[schema] if schema in named else _READERS[schema]
    match schema["type"]:
        case "record":
            fields: list[tuple[str, Read]] = []

            def record(stream: BytesIO) -> Any:
                return {name: each(stream) for name, each in fields}

            named[schema["name"]] = record
            fields += [
                (field["name"], make_reader(field["type"], named)) for field in schema["fields"]
            ]
            return record
        case "array":
            item = make_reader(schema["items"], named)
            return lambda stream: _read_array(stream, item)
        case "map":
            value = make_reader(schema["values"], named)
            return lambda stream: _read_map(stream, value)
        case "fixed":
            size = schema["size"]
            found: Read = lambda stream: _read_exactly(stream, size)  # noqa: E731
        case "enum":
            found = _read_long
        case inner:
            return make_reader(inner, named)
    named[schema["name"]] = found
    return found


def make_writer(schema: Schema, named: dict[str, Write]) -> Write:
    """Return a function that writes one value in the form that `make_reader` reads."""
    if isinstance(schema, list):
        branches = [make_writer(each, named) for each in schema]

        def union(stream: BytesIO, value: Any) -> None:
            _write_long(stream, value[0])
            branches[value[0]](stream, value[1])

        return union
    if isinstance(schema, str):
        return named[schema] if schema in named else _WRITERS[schema]
    match schema["type"]:
        case "record":
            fields: list[tuple[str, Write]] = []

            def record(stream: BytesIO, value: Any) -> None:
                for name, each in fields:
                    each(stream, value[name])

            named[schema["name"]] = record
            fields += [
                (field["name"], make_writer(field["type"], named)) for field in schema["fields"]
            ]
            return record
        case "array":
            item = make_writer(schema["items"], named)
            return lambda stream, value: _write_array(stream, value, item)
        case "map":
            inside = make_writer(schema["values"], named)

            def entry(stream: BytesIO, value: Any) -> None:
                _write_bytes(stream, value[0].encode())
                inside(stream, value[1])

            return lambda stream, value: _write_array(stream, value, entry)
        case "fixed":
            found: Write = _write_raw
        case "enum":
            found = _write_long
        case inner:
            return make_writer(inner, named)
    named[schema["name"]] = found
    return found


def _read_exactly(stream: BytesIO, size: int) -> bytes:
    found = stream.read(size)
    if size < 0 or len(found) != size:
        raise EOFError("it ends too early")
    return found


def _read_long(stream: BytesIO) -> int:
    number = shift = 0
    while True:
        byte = stream.read(1)[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1)
        shift += 7


def _read_bytes(stream: BytesIO) -> bytes:
    return _read_exactly(stream, _read_long(stream))


def _read_array(stream: BytesIO, item: Read) -> list[Any]:
    found: list[Any] = []
    while count := _read_long(stream):
        if count < 0:  # the block's size follows, for readers that skip it
            count, _ = -count, _read_long(stream)
        found += [item(stream) for _ in range(count)]
    return found


def _read_map(stream: BytesIO, value: Read) -> list[tuple[str, Any]]:
    return _read_array(stream, lambda inner: (_read_bytes(inner).decode(), value(inner)))


def _write_long(stream: BytesIO, value: int) -> None:
    number = (value << 1) ^ (value >> 63)
    while number > 0x7F:
        stream.write(bytes((number & 0x7F | 0x80,)))
        number >>= 7
    stream.write(bytes((number,)))


def _write_bytes(stream: BytesIO, value: bytes) -> None:
    _write_long(stream, len(value))
    stream.write(value)


def _write_raw(stream: BytesIO, value: bytes) -> None:
    stream.write(value)


def _write_array(stream: BytesIO, values: list[Any], item: Write) -> None:
    if values:
        _write_long(stream, len(values))
        for value in values:
            item(stream, value)
    _write_long(stream, 0)


def _write_entry(stream: BytesIO, value: tuple[str, bytes]) -> None:
    _write_bytes(stream, value[0].encode())
    _write_bytes(stream, value[1])


_READERS: Mapping[str, Read] = {
    "null": lambda stream: None,
    "boolean": lambda stream: _read_exactly(stream, 1),
    "int": _read_long,
    "long": _read_long,
    "bytes": _read_bytes,
    "string": lambda stream: _read_bytes(stream).decode(),
    # The exact bits, for NaN as well.
    **{
        name: lambda stream, size=size: _read_exactly(stream, size)  # type: ignore[misc]
        for name, size in _SIZES.items()
    },
}
_WRITERS: Mapping[str, Write] = {
    "null": lambda stream, value: None,
    "boolean": _write_raw,
    "int": _write_long,
    "long": _write_long,
    "bytes": _write_bytes,
    "string": lambda stream, value: _write_bytes(stream, value.encode()),
    **dict.fromkeys(_SIZES, _write_raw),
}

"""An entry as bytes and back, to the last bit.

JSON in which every value says its own kind, so that reading it back needs no table: a decimal keeps
its scale, a bound its bytes, and a type that was promoted meanwhile changes nothing.
"""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from thermocline.errors import BadInput
from thermocline.lake.groupcommit.entry import (
    CommitEntry,
    PartitionId,
    ReplaceFiles,
    ReplacePartitions,
)

_FORMAT = 1


def encode_entry(entry: CommitEntry) -> bytes:
    """The entry, but for key, table and branch, which the queue keeps beside it."""
    said = {
        "format": _FORMAT,
        "uuid": entry.uuid,
        "schema": entry.schema,
        "files": [_encode_file(file) for file in entry.files],
        "replaces": _encode_replaces(entry.replaces),
        "properties": dict(entry.properties),
    }
    return zlib.compress(json.dumps(said, separators=(",", ":")).encode(), 1)


def decode_entry(key: str, table: str, branch: str, data: bytes) -> CommitEntry:
    """The entry that `to_bytes` was given."""
    said = json.loads(zlib.decompress(data))
    if said["format"] != _FORMAT:
        raise ValueError("it was handed over by another version of Thermocline")
    return CommitEntry(
        key=key,
        table=table,
        uuid=said["uuid"],
        schema=said["schema"],
        files=tuple(_decode_file(*file) for file in said["files"]),
        replaces=_decode_replaces(said["replaces"]),
        branch=branch,
        properties=said["properties"],
    )


def _encode_file(file: DataFile) -> list[Any]:
    values = list(file._data)
    values[0], values[2] = file.content.value, file.file_format.value
    return [file.spec_id, [_encode_value(value) for value in values]]


def _decode_file(spec: int, said: list[Any]) -> DataFile:
    values = [_decode_value(each) for each in said]
    values[0], values[2] = DataFileContent(values[0]), FileFormat(values[2])
    file = DataFile(*values)
    file.spec_id = spec
    return file


def _encode_replaces(replaces: ReplacePartitions | ReplaceFiles | None) -> Any:
    match replaces:
        case ReplacePartitions(places):
            return {"partitions": [_encode_partition(each) for each in places]}
        case ReplaceFiles(files, seen):
            return {
                "files": [[_encode_partition(where), path] for where, path in files],
                "seen": seen,
            }
    return None


def _decode_replaces(said: Any) -> ReplacePartitions | ReplaceFiles | None:
    if said is None:
        return None
    if "partitions" in said:
        return ReplacePartitions(frozenset(_decode_partition(each) for each in said["partitions"]))
    files = frozenset((_decode_partition(where), path) for where, path in said["files"])
    return ReplaceFiles(files, said["seen"])


def _encode_partition(where: PartitionId) -> list[Any]:
    spec, values = where
    return [spec, [_encode_value(value) for value in values]]


def _decode_partition(said: list[Any]) -> PartitionId:
    spec, values = said
    return spec, tuple(_decode_value(value) for value in values)


def _encode_value(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"bits": struct.pack("<d", value).hex()}  # of NaN as well, its sign too
        case bytes():
            return {"bytes": b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
        case UUID():
            return {"uuid": value.hex}
        case list():
            return [_encode_value(each) for each in value]
        case Mapping():  # a dict, or what PyIceberg reads from a manifest when asked
            return {"map": [[key, _encode_value(each)] for key, each in value.items()]}
        case Record():
            return {"record": [_encode_value(each) for each in value._data]}
    raise BadInput(
        f"A {type(value).__name__} is no value that Iceberg keeps of a data file.",
        "Give dates and times as the numbers that Iceberg stores.",
    )


def _decode_value(said: Any) -> Any:
    if isinstance(said, list):
        return [_decode_value(each) for each in said]
    if not isinstance(said, dict):
        return said
    [(kind, inner)] = said.items()
    match kind:
        case "bits":
            return struct.unpack("<d", bytes.fromhex(inner))[0]
        case "float":  # of entries that an earlier version left in the queue
            return float.fromhex(inner)
        case "bytes":
            return b64decode(inner)
        case "decimal":
            return Decimal(inner)
        case "uuid":
            return UUID(inner)
        case "map":
            return {key: _decode_value(each) for key, each in inner}
    return Record(*(_decode_value(each) for each in inner))

"""Encode an entry as bytes and decode it without loss.

The format is JSON in which every value carries its own type, so decoding needs no table: a decimal
keeps its scale, a bound its bytes, and a type promotion in between changes nothing.
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
from thermocline.lake.pyiceberg_internals import data_file_values, record_values

_FORMAT = 1


def encode_entry(entry: CommitEntry) -> bytes:
    """Encode an entry without its key, table and branch, which the queue stores in columns."""
    content = {
        "format": _FORMAT,
        "uuid": entry.uuid,
        "schema": entry.schema,
        "files": [_encode_file(file) for file in entry.files],
        "replaces": _encode_replaces(entry.replaces),
        "properties": dict(entry.properties),
    }
    return zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 1)


def decode_entry(key: str, table: str, branch: str, data: bytes) -> CommitEntry:
    """Decode an entry that `encode_entry` encoded."""
    content = json.loads(zlib.decompress(data))
    if content["format"] != _FORMAT:
        raise ValueError("it was submitted by another version of Thermocline")
    return CommitEntry(
        key=key,
        table=table,
        uuid=content["uuid"],
        schema=content["schema"],
        files=tuple(_decode_file(*file) for file in content["files"]),
        replaces=_decode_replaces(content["replaces"]),
        branch=branch,
        properties=content["properties"],
    )


def _encode_file(file: DataFile) -> list[Any]:
    values = data_file_values(file)
    values[0], values[2] = file.content.value, file.file_format.value
    return [file.spec_id, [_encode_value(value) for value in values]]


def _decode_file(spec: int, encoded: list[Any]) -> DataFile:
    values = [_decode_value(each) for each in encoded]
    values[0], values[2] = DataFileContent(values[0]), FileFormat(values[2])
    file = DataFile(*values)
    file.spec_id = spec
    return file


def _encode_replaces(replaces: ReplacePartitions | ReplaceFiles | None) -> Any:
    match replaces:
        case ReplacePartitions(partitions):
            return {"partitions": [_encode_partition(each) for each in partitions]}
        case ReplaceFiles(files, snapshot):
            return {
                "files": [[_encode_partition(where), path] for where, path in files],
                "seen": snapshot,
            }
    return None


def _decode_replaces(encoded: Any) -> ReplacePartitions | ReplaceFiles | None:
    if encoded is None:
        return None
    if "partitions" in encoded:
        return ReplacePartitions(
            frozenset(_decode_partition(each) for each in encoded["partitions"])
        )
    files = frozenset((_decode_partition(where), path) for where, path in encoded["files"])
    return ReplaceFiles(files, encoded["seen"])


def _encode_partition(where: PartitionId) -> list[Any]:
    spec, values = where
    return [spec, [_encode_value(value) for value in values]]


def _decode_partition(encoded: list[Any]) -> PartitionId:
    spec, values = encoded
    return spec, tuple(_decode_value(value) for value in values)


def _encode_value(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"bits": struct.pack("<d", value).hex()}  # exact for NaN and its sign, too
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
            return {"record": [_encode_value(each) for each in record_values(value)]}
    raise BadInput(
        f"A {type(value).__name__} is not a value that Iceberg stores for a data file.",
        "Give dates and times as the numbers that Iceberg stores.",
    )


def _decode_value(encoded: Any) -> Any:
    if isinstance(encoded, list):
        return [_decode_value(each) for each in encoded]
    if not isinstance(encoded, dict):
        return encoded
    [(kind, inner)] = encoded.items()
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

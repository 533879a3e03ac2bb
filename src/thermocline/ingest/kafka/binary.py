"""Avro and Protobuf values as JSON text, decoded record by record in Spark's Python workers.

One that cannot be decoded is a flaw of that record, said in words, and not of the batch.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from thermocline.ingest.kafka.registry import Registry, Schema, Unknown, file_schema
from thermocline.ingest.lines import FLAW
from thermocline.ingest.validation import PAYLOAD, RAW

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.ingest.kafka.source import KafkaReach

MAGIC, HEAD = 0, 5
_ID = f"cast(conv(hex(substring({PAYLOAD}, 2, 4)), 16, 10) as bigint)"
_NAMES_A_SCHEMA = f"length({PAYLOAD}) > {HEAD} and hex(substring({PAYLOAD}, 1, 1)) = '00'"

Decode = Callable[[bytes], str]


def decoded(messages: DataFrame, reach: KafkaReach, registry: Registry | None) -> DataFrame:
    """Messages with RAW and FLAW. With a registry, the schemas they name are fetched first."""
    if registry is None:
        by_number: dict[int, Schema] = {-1: file_schema(reach)}
    else:
        by_number = _named(messages, registry)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        readers = Readers(by_number)
        for batch in batches:
            yield readers.read(batch)

    fields = [f"{f.name} {f.dataType.simpleString()}" for f in messages.schema.fields]
    return messages.mapInArrow(work, ", ".join([*fields, f"{RAW} string", f"{FLAW} string"]))


def _named(messages: DataFrame, registry: Registry) -> dict[int, Schema]:
    numbers = messages.where(_NAMES_A_SCHEMA).selectExpr(f"{_ID} as number").distinct().collect()
    found = {}
    for row in numbers:
        try:
            found[row["number"]] = registry.schema(row["number"])
        except Unknown:
            continue  # the record says so, and is set aside
    return found


class Readers:
    """Decoders by schema number; -1 stands for the one schema of values without a number."""

    def __init__(self, schemas: Mapping[int, Schema]) -> None:
        self._schemas = schemas
        self._made: dict[int, Decode] = {}

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with two columns more: the text, and what stands against it."""
        import pyarrow as pa

        found = [self.one(value) for value in batch.column(PAYLOAD).to_pylist()]
        texts = pa.array([text for text, _ in found], pa.string())
        flaws = pa.array([flaw for _, flaw in found], pa.string())
        names = [*batch.schema.names, RAW, FLAW]
        return pa.RecordBatch.from_arrays([*batch.columns, texts, flaws], names=names)

    def one(self, value: bytes | None) -> tuple[str | None, str | None]:
        """A value's text and flaw. What cannot be decoded is kept as base64."""
        if value is None:
            return None, None
        number, body = -1, value
        if -1 not in self._schemas:
            if len(value) < HEAD or value[0] != MAGIC:
                return _kept(value), "does not begin with a schema's number"
            number, body = struct.unpack(">I", value[1:HEAD])[0], value[HEAD:]
            if number not in self._schemas:
                return _kept(value), f"names schema {number}, which the registry does not have"
        try:
            return self._reader(number)(body), None
        except Exception as error:  # noqa: BLE001  whatever a hostile value makes of a decoder
            kind = "Avro" if self._schemas[number].avro else "Protobuf"
            said = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            return _kept(value), f"not readable as {kind}: {said}"

    def _reader(self, number: int) -> Decode:
        if number not in self._made:
            schema = self._schemas[number]
            self._made[number] = _avro(schema) if schema.avro else _protobuf(schema)
        return self._made[number]


def _kept(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _avro(schema: Schema) -> Decode:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(schema.avro))

    def decode(body: bytes) -> str:
        stream = io.BytesIO(body)
        record = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow the record")
        return json.dumps(record, default=_plain, ensure_ascii=False, allow_nan=False)

    return decode


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _protobuf(schema: Schema) -> Decode:
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        json_format,
        message_factory,
    )

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(schema.descriptor).file
    for file in files:
        pool.Add(file)
    last = pool.FindFileByName(files[-1].name)
    made: dict[str, Any] = {}

    def decode(body: bytes) -> str:
        name = schema.message
        if not name:
            path, body = _indexes(body)
            names = list(last.message_types_by_name.values())
            described = names[path[0]]
            for index in path[1:]:
                described = described.nested_types[index]
            name = described.full_name
        if name not in made:
            made[name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        message = made[name].FromString(body)
        fields = json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)

    return decode


def _indexes(body: bytes) -> tuple[list[int], bytes]:
    """Which message a value is, as the registry's format writes it, and the rest of the value."""
    count, body = _varint(body)
    if count == 0:
        return [0], body  # the usual case, written short
    path = []
    for _ in range(min(count, 16)):
        index, body = _varint(body)
        path.append(index)
    return path, body


def _varint(body: bytes) -> tuple[int, bytes]:
    shift = value = 0
    for position, byte in enumerate(body[:10]):
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), body[position + 1 :]
    raise ValueError("a number that does not end")

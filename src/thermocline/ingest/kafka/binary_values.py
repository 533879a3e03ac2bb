"""Decode Avro and Protobuf values to JSON text, record by record in Spark's Python workers.

A value that cannot be decoded is a flaw of its record and does not fail the batch.
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

from thermocline.errors import first_line
from thermocline.ingest.kafka.schema_registry import (
    SchemaRegistry,
    UnknownSchema,
    ValueSchema,
    load_schema_file,
)
from thermocline.ingest.lines import FLAW
from thermocline.ingest.validation import PAYLOAD, RAW

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.ingest.kafka.source import KafkaSettings

MAGIC_BYTE, HEADER_BYTES = 0, 5
_SCHEMA_ID = f"cast(conv(hex(substring({PAYLOAD}, 2, 4)), 16, 10) as bigint)"
_HAS_SCHEMA_ID = f"length({PAYLOAD}) > {HEADER_BYTES} and hex(substring({PAYLOAD}, 1, 1)) = '00'"

Decoder = Callable[[bytes], str]


def decode_values(
    messages: DataFrame, settings: KafkaSettings, registry: SchemaRegistry | None
) -> DataFrame:
    """Return the messages with RAW and FLAW. Schemas of a registry are fetched first."""
    if registry is None:
        schemas: dict[int, ValueSchema] = {-1: load_schema_file(settings)}
    else:
        schemas = _fetch_named_schemas(messages, registry)

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoders = ValueDecoders(schemas)
        for batch in batches:
            yield decoders.decode_batch(batch)

    fields = [f"{f.name} {f.dataType.simpleString()}" for f in messages.schema.fields]
    return messages.mapInArrow(decode, ", ".join([*fields, f"{RAW} string", f"{FLAW} string"]))


def _fetch_named_schemas(messages: DataFrame, registry: SchemaRegistry) -> dict[int, ValueSchema]:
    schema_ids = (
        messages.where(_HAS_SCHEMA_ID).selectExpr(f"{_SCHEMA_ID} as schema_id").distinct().collect()
    )
    found = {}
    for row in schema_ids:
        try:
            found[row["schema_id"]] = registry.load_schema(row["schema_id"])
        except UnknownSchema:
            continue  # its records are quarantined with this reason
    return found


class ValueDecoders:
    """Decoders by schema id; -1 stands for the single schema of values without an id."""

    def __init__(self, schemas: Mapping[int, ValueSchema]) -> None:
        self._schemas = schemas
        self._decoders: dict[int, Decoder] = {}

    def decode_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with two more columns: RAW and FLAW."""
        import pyarrow as pa

        found = [self.decode(value) for value in batch.column(PAYLOAD).to_pylist()]
        texts = pa.array([text for text, _ in found], pa.string())
        flaws = pa.array([flaw for _, flaw in found], pa.string())
        names = [*batch.schema.names, RAW, FLAW]
        return pa.RecordBatch.from_arrays([*batch.columns, texts, flaws], names=names)

    def decode(self, value: bytes | None) -> tuple[str | None, str | None]:
        """Return a value's text and flaw. A value that cannot be decoded is kept as base64."""
        if value is None:
            return None, None
        schema_id, body = -1, value
        if -1 not in self._schemas:
            if len(value) < HEADER_BYTES or value[0] != MAGIC_BYTE:
                return _to_base64(value), "does not begin with a schema's number"
            schema_id, body = struct.unpack(">I", value[1:HEADER_BYTES])[0], value[HEADER_BYTES:]
            if schema_id not in self._schemas:
                return _to_base64(
                    value
                ), f"names schema {schema_id}, which the registry does not have"
        try:
            return self._find_decoder(schema_id)(body), None
        except Exception as error:  # noqa: BLE001  a hostile value may raise anything
            kind = "Avro" if self._schemas[schema_id].avro else "Protobuf"
            message = first_line(error)[:120]
            return _to_base64(value), f"not readable as {kind}: {message}"

    def _find_decoder(self, schema_id: int) -> Decoder:
        if schema_id not in self._decoders:
            schema = self._schemas[schema_id]
            self._decoders[schema_id] = (
                _make_avro_decoder(schema) if schema.avro else _make_protobuf_decoder(schema)
            )
        return self._decoders[schema_id]


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _make_avro_decoder(schema: ValueSchema) -> Decoder:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(schema.avro))

    def decode(body: bytes) -> str:
        stream = io.BytesIO(body)
        record = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow the record")
        return json.dumps(record, default=_to_json_value, ensure_ascii=False, allow_nan=False)

    return decode


def _to_json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _make_protobuf_decoder(schema: ValueSchema) -> Decoder:
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
    classes: dict[str, Any] = {}

    def decode(body: bytes) -> str:
        name = schema.message
        if not name:
            path, body = _read_message_path(body)
            names = list(last.message_types_by_name.values())
            described = names[path[0]]
            for index in path[1:]:
                described = described.nested_types[index]
            name = described.full_name
        if name not in classes:
            classes[name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        message = classes[name].FromString(body)
        fields = json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)

    return decode


def _read_message_path(body: bytes) -> tuple[list[int], bytes]:
    """Read the path of a value's message in the registry's format; return it and the rest."""
    count, body = _read_varint(body)
    if count == 0:
        return [0], body  # the usual case has a short form
    path = []
    for _ in range(min(count, 16)):
        index, body = _read_varint(body)
        path.append(index)
    return path, body


def _read_varint(body: bytes) -> tuple[int, bytes]:
    shift = value = 0
    for position, byte in enumerate(body[:10]):
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), body[position + 1 :]
    raise ValueError("a number that does not end")

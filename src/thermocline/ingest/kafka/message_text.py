"""Decode a message's bytes to the text of a JSON object, or to the reason why that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.ingest.lines import FLAW, NOT_TEXT
from thermocline.ingest.validation import PAYLOAD, RAW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.ingest.kafka.schema_registry import SchemaRegistry
    from thermocline.ingest.kafka.source import KafkaSettings

_TEXT = f"cast({PAYLOAD} as string)"
_NOT_UTF8 = f"not is_valid_utf8({_TEXT})"


def add_text(
    messages: DataFrame,
    settings: KafkaSettings,
    registry: SchemaRegistry | None,
    contract: Contract,
) -> DataFrame:
    """Return the messages with RAW and FLAW, decoded by the format of their values."""
    if settings.format in {"avro", "protobuf"}:
        from thermocline.ingest.kafka.binary_values import decode_values

        return decode_values(messages, settings, registry)
    lines = messages.selectExpr(
        "*",
        # A value that is not UTF-8 is kept byte by byte as Latin-1.
        f"if({_NOT_UTF8}, decode({PAYLOAD}, 'ISO-8859-1'), {_TEXT}) as {RAW}",
        f"case when {_NOT_UTF8} then '{NOT_TEXT}' end as {FLAW}",
    )
    if settings.format == "debezium":
        from thermocline.ingest.debezium import flatten_events

        return flatten_events(lines, contract)
    return lines

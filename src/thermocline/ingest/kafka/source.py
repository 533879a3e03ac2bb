"""The settings of a Kafka source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.contract.problems import quote
from thermocline.ingest import secret
from thermocline.ingest.source import LANES

if TYPE_CHECKING:
    from thermocline.contract.definition import Contract
    from thermocline.ingest.feed import Feed
    from thermocline.ingest.source import SettingsReader, Source
    from thermocline.lake import Lake

KEYS = (
    "servers", "topic", "topics", "format", "schema", "message", "registry", "registryOptions",
    "start", "options", "lane",
)  # fmt: skip
FORMATS = ("json", "avro", "protobuf", "debezium")
STARTS = ("earliest", "latest")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

# Options that Thermocline sets, or that would make a client run arbitrary code.
_RESERVED_OPTIONS = {
    "bootstrap.servers", "group.id", "enable.auto.commit", "auto.offset.reset", "key.deserializer",
    "value.deserializer", "interceptor.classes", "metric.reporters", "isolation.level",
}  # fmt: skip
_SECRET_NAME = re.compile(r"(?i)jaas|password|secret|token|credential|[.]key$")


@dataclass(frozen=True)
class KafkaSettings:
    """The connection to topics, and the format of their values.

    `options` are settings of Kafka's own Java client (security.protocol, sasl.…, ssl.…); secret
    values only name an environment variable. `lane` is "spark" to read every batch with Spark.
    """

    servers: str
    topics: tuple[str, ...]
    format: str = "json"
    schema: Path | None = None
    message: str = ""
    registry: str = ""
    registry_options: Mapping[str, Any] = field(default_factory=dict)
    start: str = "earliest"
    options: Mapping[str, Any] = field(default_factory=dict)
    lane: str = "auto"

    def client_options(self) -> dict[str, str]:
        """Return the client's settings with revealed secrets, which are redacted in all output."""
        revealed = {key: secret.reveal(value) for key, value in self.options.items()}
        return {"bootstrap.servers": self.servers, **{k: str(v) for k, v in revealed.items()}}


def read(fields: SettingsReader) -> KafkaSettings:
    """Read the settings and report every flaw."""
    topics = fields.texts("topics") or fields.texts("topic")
    if not topics:
        fields.report.add_missing((), "topic", "is missing", "name the topic")
    for topic in topics:
        if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
            fields.report_flaw(
                "topics" if "topics" in fields.data else "topic", _explain_topic(topic)
            )
    format_ = fields.one_of("format", "json", FORMATS)
    settings = KafkaSettings(
        servers=fields.required_text("servers", "name the brokers, as host:9092"),
        topics=tuple(dict.fromkeys(topics)),
        format=format_,
        schema=fields.file("schema"),
        message=fields.text("message", ""),
        registry=fields.text("registry", ""),
        registry_options=fields.mapping("registryOptions"),
        start=fields.one_of("start", "earliest", STARTS),
        options=_read_options(fields),
        lane=fields.one_of("lane", "auto", LANES),
    )
    _refuse_literal_secrets(fields, "registryOptions", settings.registry_options)
    if settings.registry and not settings.registry.startswith(("http://", "https://")):
        fields.report_flaw("registry", f"{quote(settings.registry)} is no http(s) address")
    if format_ in {"avro", "protobuf"} and not (settings.schema or settings.registry):
        hint = "name a schema file of the project, or the registry's address"
        fields.report.add_missing((), "schema", f"is missing: {format_} needs one", hint)
    if settings.schema and settings.registry:
        fields.report_flaw("schema", "is there beside a registry", "keep one of the two")
    return settings


def open_feed(lake: Lake, source: Source, contract: Contract) -> Feed:
    """Return a feed of the topics."""
    from thermocline.ingest.kafka.feed import KafkaFeed

    return KafkaFeed(lake, source, contract)


def _explain_topic(topic: str) -> str:
    return f"{quote(topic)} is no name of a topic"


def _read_options(fields: SettingsReader) -> dict[str, Any]:
    values = fields.mapping("options")
    for key, value in values.items():
        where = ("options", key)
        if key in _RESERVED_OPTIONS:
            fields.report.add(where, f"options.{key}", "cannot be set here", "leave it out")
        elif secret.is_reference(value):
            continue
        elif not isinstance(value, str | int | float | bool):
            fields.report.add(where, f"options.{key}", f"{quote(value)} is not a text")
    _refuse_literal_secrets(fields, "options", values)
    return {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in values.items()
    }


def _refuse_literal_secrets(fields: SettingsReader, key: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if _SECRET_NAME.search(name) and not secret.is_reference(value):
            what = "holds a secret, and this file is shared"
            hint = "write {secret: NAME} and set the environment variable NAME"
            fields.report.add((key, name), f"{key}.{name}", what, hint)

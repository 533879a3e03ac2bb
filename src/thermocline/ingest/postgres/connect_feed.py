"""Change data capture through Kafka Connect: Debezium writes topics, and this feed reads them.

The feed registers the connector with the source's settings. Connect runs it, and other consumers
may read its topics too.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from thermocline.errors import Permanent, Transient
from thermocline.ingest import debezium, unchanged_toast
from thermocline.ingest.feed import LostData
from thermocline.ingest.kafka.broker import MissingTopic
from thermocline.ingest.kafka.feed import KafkaFeed
from thermocline.ingest.kafka.source import KafkaSettings
from thermocline.ingest.landed_changes import LandedChanges
from thermocline.ingest.postgres.database import CapturedTable, Database
from thermocline.ingest.postgres.debezium_types import (
    SourceColumn,
    doubt_expression,
    refuse_undetectable_columns,
)
from thermocline.ingest.postgres.events import OUTBOX_TOPIC_PREFIX
from thermocline.ingest.postgres.replication_slot import check_tables
from thermocline.ingest.secret import reveal
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract.definition import Contract
    from thermocline.ingest.feed import Feed, Pull
    from thermocline.ingest.marks import Position
    from thermocline.ingest.postgres.source import Outbox, PostgresSource
    from thermocline.ingest.source import BatchLimits, Source
    from thermocline.lake import Lake

TIMEOUT_SECONDS = 30

KAFKA_OPTION_PREFIX = "kafka."
"""The prefix of options for the Kafka client; all others are for Debezium."""

_HEADERS = {
    # The header of a changed key holds the old key in the same form as a key.
    "header.converter": "org.apache.kafka.connect.json.JsonConverter",
    "header.converter.schemas.enable": "false",
}
_PLACEHOLDER = "unavailable.value.placeholder"
_JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


def open_connect_feed(lake: Lake, source: Source, contract: Contract) -> Feed:
    """Return a feed of the topics that the source's connector writes."""
    return ConnectFeed(lake, source, contract)


class ConnectFeed:
    """A Kafka feed of Debezium's topics, and the connector that writes them."""

    def __init__(self, lake: Lake, source: Source, contract: Contract) -> None:
        self._source = source
        self._settings = source.connection
        topics = tuple(topic_name(self.name, table) for table in self._settings.tables)
        if self._settings.outbox is not None:
            topics = tuple(OUTBOX_TOPIC_PREFIX + event for event in self._settings.outbox.events)
        options = {
            key.removeprefix(KAFKA_OPTION_PREFIX): value
            for key, value in self._settings.options.items()
            if key.startswith(KAFKA_OPTION_PREFIX)
        }
        # Only Spark parses the envelopes of tables, since values in them may be unsent.
        lane = "auto" if self._settings.outbox is not None else "spark"
        kafka = KafkaSettings(self._settings.servers, topics, lane=lane, options=options)
        topic = replace(source, kind="kafka", connection=kafka)
        self._kafka = KafkaFeed(lake, topic, contract)
        self._lake = lake
        self._contract = contract
        self._tables: list[CapturedTable] = []
        self._columns: list[SourceColumn] = []

    @cached_property
    def name(self) -> str:
        """The connector's name; also the prefix of its topics and the name of its slot."""
        own = f"thermocline_{self._source.name}".replace("-", "_").lower()
        return self._settings.topic_prefix or own

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """Register the connector if needed, and check its topics. See Feed.begin."""
        self._ensure_connector(first=position is None)
        try:
            return self._kafka.begin(position, accept_loss=accept_loss)
        except MissingTopic as error:
            raise Transient(
                f"{self._source.name}: Debezium has written nothing yet. {error.cause}",
                "A table without rows has no topic. Its first row creates the topic.",
            ) from error

    def pull(self, position: Position | None, limits: BatchLimits) -> Pull | None:
        """Return the changes in a range of offsets. See Feed.pull."""
        found = self._kafka.pull(position, limits)
        if found is None:
            self._check_status()
            return None
        if self._settings.outbox is not None:
            return found
        origins = [origin.name.rpartition("/")[0] for origin in found.origins]
        return replace(found, lines=lambda only: self._to_rows(found.lines(only), origins))

    def _to_rows(self, lines: DataFrame, origins: list[str]) -> DataFrame:
        """Return the events as rows, with unsent values filled in."""
        marked = debezium.Placeholders(self.placeholder)
        parts = debezium.parse_events(lines, placeholders=marked)
        whole = {table.name: table.whole_deletes for table in self._tables}
        topics = {topic_name(self.name, table): whole[table] for table in self._settings.tables}
        if keyed := [number for number, topic in enumerate(origins) if not topics[topic]]:
            parts = debezium.reduce_deletes_to_keys(parts, keyed)
        if debezium.has_order_columns(self._contract):
            history = LandedChanges(self._lake, self._source, self._contract)
            parts = unchanged_toast.fill_unsent_values(parts, origins, history)
        return debezium.to_lines(parts, self._contract, doubt_expression(self._columns))

    @cached_property
    def placeholder(self) -> str:
        """The text that Debezium writes for an unsent value: unguessable, so no value equals it."""
        table = str(self._lake.iceberg(self._source.target).metadata.table_uuid)
        return "tc_" + hashlib.sha256(f"unsent {self.name} {table}".encode()).hexdigest()

    def acknowledge(self, position: Position) -> None:
        """Do nothing: Debezium advances its slot once the broker has the changes."""
        self._kafka.acknowledge(position)

    def close(self) -> None:
        """Close the broker connections. The connector keeps running."""
        self._kafka.close()

    def settings(self) -> dict[str, str]:
        """Return the configuration of the connector."""
        slot = self._settings.slot or self.name
        publication = self._settings.publication or self.name
        debezium_options = {
            key: str(value)
            for key, value in reveal(self._settings.options).items()
            if not key.startswith(KAFKA_OPTION_PREFIX)
        }
        return {
            **connector_config(self._settings, self.name, slot, publication),
            "snapshot.mode": "initial",
            _PLACEHOLDER: self.placeholder,
            "tombstones.on.delete": "true",
            "provide.transaction.metadata": "true",
            "key.converter": _JSON_CONVERTER,
            "key.converter.schemas.enable": "false",
            "value.converter": _JSON_CONVERTER,
            "value.converter.schemas.enable": "false",
            **({} if self._settings.outbox is not None else _HEADERS),
            # Without these, Connect waits forever for missing topics. -1: the broker's default.
            "topic.creation.default.partitions": "-1",
            "topic.creation.default.replication.factor": "-1",
            **debezium_options,
        }

    def _ensure_connector(self, *, first: bool) -> None:
        """Register the connector if it is missing or differs from the source's settings."""
        path, expected = f"/connectors/{urllib.parse.quote(self.name)}", self.settings()
        registered = self._request("GET", f"{path}/config")
        database = Database(self._settings)
        if self._settings.outbox is None:
            self._check_tables(database, registered)
        if (
            registered is not None
            and not first
            and database.find_slot(expected["slot.name"]) is None
        ):
            raise LostData(
                self._source.name,
                f"the replication slot {expected['slot.name']} was dropped. Changes since then are "
                f"in no topic. Delete the connector {self.name} and its offsets, so that Debezium "
                "reads the tables again.",
            )
        if self._settings.publication is None:
            database.publish(expected["publication.name"], self._settings.tables)
        if registered is None or {k: registered.get(k) for k in expected} != expected:
            self._request("PUT", f"{path}/config", expected)
        self._check_status()

    def _check_tables(self, database: Database, registered: Mapping[str, str] | None) -> None:
        """Refuse tables whose values could be silently wrong."""
        self._tables = check_tables(database, self._source, self._contract)
        self._columns = database.list_columns(self._settings.tables)
        refuse_undetectable_columns(self._source.name, self._columns, self._contract)
        placeholder = (registered or {}).get(_PLACEHOLDER)
        if registered is not None and placeholder != self.placeholder:
            partly = {column.table for column in self._columns if not column.full}
            if partly:
                raise Permanent(
                    f"{self._source.name}: in the topics of the connector {self.name}, unsent "
                    f"values cannot be distinguished from texts, for {', '.join(sorted(partly))}.",
                    "Delete the connector, its offsets and topics, so that the tables are read "
                    "again; or set their replica identity to full.",
                )

    def _check_status(self) -> None:
        """Raise Permanent if the connector or one of its tasks failed."""
        status = self._request("GET", f"/connectors/{urllib.parse.quote(self.name)}/status") or {}
        parts = [status.get("connector", {}), *status.get("tasks", [])]
        for part in parts:
            if part.get("state") == "FAILED":
                message = one_line(str(part.get("trace", "")).splitlines()[0] if part else "")
                raise Permanent(
                    f"{self._source.name}: the connector {self.name} failed: "
                    f"{redact(message)[:400]}",
                    "Fix the cause and restart it: POST /connectors/NAME/restart?onlyFailed=true.",
                )

    def _request(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        """Return Connect's response, or None for a 404."""
        address = self._settings.connect.rstrip("/")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  http only, see source
            address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            message = redact(one_line(error.read(2000).decode(errors="replace")))
            kind = Transient if error.code in {409, 500, 503} else Permanent
            raise kind(f"Kafka Connect refuses: {message[:400]}", "See its log.") from error
        except OSError as error:
            raise Transient(
                f"Kafka Connect at {one_line(address)} cannot be reached: {error}", "Is it running?"
            ) from error


def connector_config(
    settings: PostgresSource, prefix: str, slot: str, publication: str
) -> dict[str, str]:
    """Return Debezium's settings: the source, and the forms in which it writes values."""
    tls = settings.tls
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": settings.host,
        "database.port": str(settings.port),
        "database.dbname": settings.database,
        "database.user": settings.user,
        "database.password": reveal(settings.password) if settings.password else "",
        "database.sslmode": tls.mode,
        "database.sslrootcert": tls.root_cert,
        "database.sslcert": tls.cert,
        "database.sslkey": tls.key,
        "topic.prefix": prefix,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": publication,
        "publication.autocreate.mode": "disabled",
        "table.include.list": ",".join(_to_table_regex(table) for table in settings.tables),
        "skipped.operations": "none",
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "binary.handling.mode": "bytes",
        "hstore.handling.mode": "json",
        "interval.handling.mode": "string",
    }
    if settings.outbox is not None:
        config |= _outbox_config(settings.outbox)
    return {key: value for key, value in config.items() if value != ""}


def _outbox_config(outbox: Outbox) -> dict[str, str]:
    """Return the settings of the outbox router: each row is an event for the topic it names."""
    router = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "table.field.event.id": outbox.id,
        "table.field.event.key": outbox.key,
        "table.field.event.payload": outbox.payload,
        "table.field.event.timestamp": outbox.timestamp,
        "route.by.field": outbox.type,
        "route.topic.replacement": OUTBOX_TOPIC_PREFIX + "${routedByValue}",
        "table.expand.json.payload": "true",
    }
    return {
        "transforms": "outbox",
        **{f"transforms.outbox.{key}": value for key, value in router.items()},
    }


def topic_name(prefix: str, table: str) -> str:
    """Return the topic of a table's changes. Debezium replaces invalid characters."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", f"{prefix}.{table}")


def _to_table_regex(table: str) -> str:
    """Escape a table's name, which Debezium reads as a regular expression."""
    return re.escape(table).replace("\\_", "_")

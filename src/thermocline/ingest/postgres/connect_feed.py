"""Change data capture for a team: Debezium in Kafka Connect writes topics, and we read those.

We see to it that the connector is there and as the source says. Who keeps it running, and for
whom else it writes, is Connect's business.
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
from thermocline.ingest.postgres.database import Captured, Database
from thermocline.ingest.postgres.debezium_types import SourceColumn, doubt, refuse_unknowable
from thermocline.ingest.postgres.events import ROUTED
from thermocline.ingest.postgres.replication_slot import fit_tables
from thermocline.ingest.secret import reveal
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract.definition import Contract
    from thermocline.ingest.feed import Feed, Pull
    from thermocline.ingest.marks import Position
    from thermocline.ingest.postgres.source import Outbox, Postgres
    from thermocline.ingest.source import BatchLimits, Source
    from thermocline.lake import Lake

TIMEOUT = 30

CLIENT = "kafka."
"""How options begin that are for the Kafka client and not for Debezium."""

_HEADERS = {
    # A changed key names the old one in a header, to be found as it is written in a key.
    "header.converter": "org.apache.kafka.connect.json.JsonConverter",
    "header.converter.schemas.enable": "false",
}
_PLACEHOLDER = "unavailable.value.placeholder"
_JSON = "org.apache.kafka.connect.json.JsonConverter"


def open_topic(lake: Lake, source: Source, contract: Contract) -> Feed:
    """The topics that a connector of ours writes, as a feed."""
    return TopicFeed(lake, source, contract)


class TopicFeed:
    """A Kafka feed over Debezium's topics, and the connector behind it."""

    def __init__(self, lake: Lake, source: Source, contract: Contract) -> None:
        self._source = source
        self._settings = source.connection
        topics = tuple(topic_of(self.name, table) for table in self._settings.tables)
        if self._settings.outbox is not None:
            topics = tuple(ROUTED + event for event in self._settings.outbox.events)
        given = self._settings.options.items()
        options = {k.removeprefix(CLIENT): v for k, v in given if k.startswith(CLIENT)}
        # Events are opened here, where it is known what may be missing in them.
        lane = "auto" if self._settings.outbox is not None else "spark"
        kafka = KafkaSettings(self._settings.servers, topics, lane=lane, options=options)
        topic = replace(source, kind="kafka", connection=kafka)
        self._kafka = KafkaFeed(lake, topic, contract)
        self._lake = lake
        self._contract = contract
        self._tables: list[Captured] = []
        self._columns: list[SourceColumn] = []

    @cached_property
    def name(self) -> str:
        """The connector's name, which its topics and its slot bear too."""
        own = f"thermocline_{self._source.name}".replace("-", "_").lower()
        return self._settings.topic_prefix or own

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """Have the connector there, and its topics."""
        self._ensure(first=position is None)
        try:
            return self._kafka.begin(position, accept_loss=accept_loss)
        except MissingTopic as error:
            raise Transient(
                f"{self._source.name}: Debezium has written nothing yet. {error.cause}",
                "A table without rows has no topic. It comes with the first row.",
            ) from error

    def pull(self, position: Position | None, limits: BatchLimits) -> Pull | None:
        """The changes in a range of offsets."""
        found = self._kafka.pull(position, limits)
        if found is None:
            self._check()
            return None
        if self._settings.outbox is not None:
            return found
        origins = [origin.name.rpartition("/")[0] for origin in found.origins]
        return replace(found, lines=lambda only: self._rows(found.lines(only), origins))

    def _rows(self, lines: DataFrame, origins: list[str]) -> DataFrame:
        """The events as rows, with values that were left out."""
        marked = debezium.Placeholders(self.placeholder)
        parts = debezium.parse_events(lines, placeholders=marked)
        whole = {table.name: table.whole_deletes for table in self._tables}
        topics = {topic_of(self.name, table): whole[table] for table in self._settings.tables}
        if keyed := [number for number, topic in enumerate(origins) if not topics[topic]]:
            parts = debezium.reduce_deletes_to_keys(parts, keyed)
        if debezium.has_order_columns(self._contract):
            history = LandedChanges(self._lake, self._source, self._contract)
            parts = unchanged_toast.fill_unsent_values(parts, origins, history)
        return debezium.to_lines(parts, self._contract, doubt(self._columns))

    @cached_property
    def placeholder(self) -> str:
        """What Debezium writes for a value that was not sent: a text that nobody else can know."""
        table = str(self._lake.iceberg(self._source.target).metadata.table_uuid)
        return "tc_" + hashlib.sha256(f"unsent {self.name} {table}".encode()).hexdigest()

    def acknowledge(self, position: Position) -> None:
        """Nothing to tell: Debezium moves its slot on by what the broker has."""
        self._kafka.acknowledge(position)

    def close(self) -> None:
        """Let go of the broker. The connector goes on."""
        self._kafka.close()

    def settings(self) -> dict[str, str]:
        """What the connector is told."""
        slot = self._settings.slot or self.name
        publication = self._settings.publication or self.name
        given = reveal(self._settings.options).items()
        more = {key: str(value) for key, value in given if not key.startswith(CLIENT)}
        return {
            **connector(self._settings, self.name, slot, publication),
            "snapshot.mode": "initial",
            _PLACEHOLDER: self.placeholder,
            "tombstones.on.delete": "true",
            "provide.transaction.metadata": "true",
            "key.converter": _JSON,
            "key.converter.schemas.enable": "false",
            "value.converter": _JSON,
            "value.converter.schemas.enable": "false",
            **({} if self._settings.outbox is not None else _HEADERS),
            # Without these, Connect waits forever for topics that nobody makes. -1: as the broker.
            "topic.creation.default.partitions": "-1",
            "topic.creation.default.replication.factor": "-1",
            **more,
        }

    def _ensure(self, *, first: bool) -> None:
        """Register the connector where it is missing or other than the source says."""
        path, wanted = f"/connectors/{urllib.parse.quote(self.name)}", self.settings()
        there = self._ask("GET", f"{path}/config")
        database = Database(self._settings)
        if self._settings.outbox is None:
            self._fit(database, there)
        if there is not None and not first and database.slot(wanted["slot.name"]) is None:
            raise LostData(
                self._source.name,
                f"the replication slot {wanted['slot.name']} was dropped. Changes since then are "
                f"in no topic. Delete the connector {self.name} and its offsets, so that Debezium "
                "reads the tables anew.",
            )
        if self._settings.publication is None:
            database.publish(wanted["publication.name"], self._settings.tables)
        if there is None or {k: there.get(k) for k in wanted} != wanted:
            self._ask("PUT", f"{path}/config", wanted)
        self._check()

    def _fit(self, database: Database, there: Mapping[str, str] | None) -> None:
        """Refuse tables of which values could be wrong without a word."""
        self._tables = fit_tables(database, self._source, self._contract)
        self._columns = database.columns(self._settings.tables)
        refuse_unknowable(self._source.name, self._columns, self._contract)
        told = (there or {}).get(_PLACEHOLDER)
        if there is not None and told != self.placeholder:
            partly = {column.table for column in self._columns if not column.full}
            if partly:
                raise Permanent(
                    f"{self._source.name}: in the topics of the connector {self.name}, values that "
                    f"were not sent cannot be told from texts, for {', '.join(sorted(partly))}.",
                    "Delete the connector, its offsets and topics, so that the tables are read "
                    "anew; or set their replica identity to full.",
                )

    def _check(self) -> None:
        """Raise what the connector died of."""
        status = self._ask("GET", f"/connectors/{urllib.parse.quote(self.name)}/status") or {}
        parts = [status.get("connector", {}), *status.get("tasks", [])]
        for part in parts:
            if part.get("state") == "FAILED":
                said = one_line(str(part.get("trace", "")).splitlines()[0] if part else "")
                raise Permanent(
                    f"{self._source.name}: the connector {self.name} failed: {redact(said)[:400]}",
                    "Mend its cause and restart it: POST /connectors/NAME/restart?onlyFailed=true.",
                )

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        """What Connect answers; None when it knows no such thing."""
        address = self._settings.connect.rstrip("/")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  http only, see source
            address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            said = redact(one_line(error.read(2000).decode(errors="replace")))
            kind = Transient if error.code in {409, 500, 503} else Permanent
            raise kind(f"Kafka Connect refuses: {said[:400]}", "See its log.") from error
        except OSError as error:
            raise Transient(
                f"Kafka Connect at {one_line(address)} cannot be asked: {error}", "Is it running?"
            ) from error


def connector(settings: Postgres, prefix: str, slot: str, publication: str) -> dict[str, str]:
    """What Debezium must know of the source, and the forms in which it is to write values."""
    tls = settings.tls
    told = {
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
        "table.include.list": ",".join(_pattern(table) for table in settings.tables),
        "skipped.operations": "none",
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "binary.handling.mode": "bytes",
        "hstore.handling.mode": "json",
        "interval.handling.mode": "string",
    }
    if settings.outbox is not None:
        told |= _routed(settings.outbox)
    return {key: value for key, value in told.items() if value != ""}


def _routed(outbox: Outbox) -> dict[str, str]:
    """The outbox pattern: each row of the table is an event of the topic that it names."""
    router = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "table.field.event.id": outbox.id,
        "table.field.event.key": outbox.key,
        "table.field.event.payload": outbox.payload,
        "table.field.event.timestamp": outbox.timestamp,
        "route.by.field": outbox.type,
        "route.topic.replacement": ROUTED + "${routedByValue}",
        "table.expand.json.payload": "true",
    }
    return {
        "transforms": "outbox",
        **{f"transforms.outbox.{key}": value for key, value in router.items()},
    }


def topic_of(prefix: str, table: str) -> str:
    """The topic of a table's changes: Debezium replaces what a topic's name may not hold."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", f"{prefix}.{table}")


def _pattern(table: str) -> str:
    """A table's name as the regular expression that Debezium takes it for."""
    return re.escape(table).replace("\\_", "_")

"""The settings of a source of kind `postgres`: the database, its tables, and the capture method.

`via: embedded` reads the database's log from this machine without Kafka. `via: connect` reads the
topics that Debezium in a Kafka Connect cluster writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thermocline.contract.problems import did_you_mean, quote
from thermocline.ingest.secret import find_literal_secret, is_reference

if TYPE_CHECKING:
    from thermocline.contract.definition import Contract
    from thermocline.ingest.feed import Feed
    from thermocline.ingest.source import SettingsReader, Source
    from thermocline.lake import Lake

KEYS = (
    "host", "port", "database", "user", "password", "tls", "tables", "slot", "publication", "via",
    "connect", "servers", "topicPrefix", "outbox", "options",
)  # fmt: skip
CAPTURE_METHODS = ("embedded", "connect")
TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
TLS_KEYS = ("mode", "rootCert", "cert", "key")
OUTBOX_KEYS = ("events", "id", "key", "type", "payload", "timestamp")
# Debezium settings that Thermocline sets: they decide which events arrive and in which form.
RESERVED_OPTIONS = (
    "connector.class", "name", "offset.", "database.", "topic.prefix", "plugin.name", "slot.",
    "publication.", "snapshot.mode", "tombstones.", "skipped.operations", "provide.transaction",
    "decimal.handling", "time.precision", "binary.handling", "converter.", "key.converter",
    "value.converter", "table.", "schema.include", "schema.exclude", "transforms", "notification.",
    "message.",
)  # fmt: skip
_IDENTIFIER = re.compile(r"[a-z0-9_]{1,63}")
_TABLE = re.compile(r"[^.\s,]+\.[^.\s,]+")


@dataclass(frozen=True)
class Tls:
    """TLS settings of the connection, in libpq's terms."""

    mode: str = "prefer"
    root_cert: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True)
class Outbox:
    """An outbox table: its columns by role, and the `events` to land (none means all)."""

    events: tuple[str, ...] = ()
    id: str = "id"
    key: str = "aggregateid"
    type: str = "aggregatetype"
    payload: str = "payload"
    timestamp: str = ""


@dataclass(frozen=True)
class PostgresSource:
    """A database and its captured tables. `password` is only a reference to a secret."""

    host: str
    database: str
    user: str
    tables: tuple[str, ...]
    port: int = 5432
    password: Mapping[str, str] | None = None
    tls: Tls = field(default_factory=Tls)
    slot: str | None = None
    publication: str | None = None
    via: str = "embedded"
    connect: str = ""
    servers: str = ""
    topic_prefix: str = ""
    outbox: Outbox | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def read(fields: SettingsReader) -> PostgresSource | None:
    """Read a source's settings and report what is wrong with them; return None if anything is."""
    before = len(fields.report.problems)
    via = fields.one_of("via", "embedded", CAPTURE_METHODS)
    found = PostgresSource(
        host=fields.required_text("host", "name the server, as db.example.com"),
        database=fields.required_text("database", "name the database"),
        user=fields.required_text("user", "name a user that may replicate"),
        tables=_read_tables(fields),
        port=int(fields.number("port", 5432, 1, 65_535)),
        password=_read_password(fields),
        tls=_read_tls(fields),
        slot=_read_identifier(fields, "slot"),
        publication=_read_identifier(fields, "publication"),
        via=via,
        connect=_read_connect(fields) if via == "connect" else "",
        servers=fields.required_text("servers", "the brokers, as host:9092")
        if via == "connect"
        else "",
        topic_prefix=fields.text("topicPrefix", ""),
        outbox=_read_outbox(fields),
        options=_read_options(fields),
    )
    if via == "embedded" and found.options:
        fields.report_flaw("options", "are for via: connect", "leave them out: they are Debezium's")
    if via == "connect" and found.outbox is not None and not found.outbox.events:
        fields.report_flaw("outbox", "must name its events", "each of them has a topic of its own")
    return found if len(fields.report.problems) == before else None


def open_feed(lake: Lake, source: Source, contract: Contract) -> Feed:
    """Return the feed of a database. It does not connect yet."""
    if source.connection.via == "connect":
        from thermocline.ingest.postgres.connect_feed import open_connect_feed

        return open_connect_feed(lake, source, contract)
    from thermocline.ingest.postgres.feed import PostgresFeed

    return PostgresFeed(lake, source, contract)


def _read_tables(fields: SettingsReader) -> tuple[str, ...]:
    if "tables" not in fields.data:
        fields.report.add_missing((), "tables", "is missing", "name them, as [public.orders]")
        return ()
    tables = fields.texts("tables")
    for table in tables:
        if not _TABLE.fullmatch(table):
            fields.report_flaw("tables", f"{quote(table)} is no table", "write schema.table")
    return tables


def _read_connect(fields: SettingsReader) -> str:
    address = fields.required_text("connect", "the address of Kafka Connect")
    if address and not address.startswith(("http://", "https://")):
        fields.report_flaw("connect", f"{quote(address)} is no http(s) address")
    return address


def _read_password(fields: SettingsReader) -> Mapping[str, str] | None:
    password = fields.data.get("password")
    if password is not None and not is_reference(password):
        fields.report_flaw(
            "password", "is written in the clear", "write {secret: NAME_OF_A_VARIABLE}"
        )
        return None
    return password


def _read_tls(fields: SettingsReader) -> Tls:
    settings = fields.mapping("tls")
    for key in settings:
        if key not in TLS_KEYS:
            fields.report_flaw("tls", f"unknown {quote(key)}", did_you_mean(key, TLS_KEYS))
    values = {key: str(settings[key]) for key in TLS_KEYS if key in settings}
    mode = values.get("mode", "prefer")
    if mode not in TLS_MODES:
        fields.report_flaw("tls", f"{quote(mode)} is no mode", f"use {', '.join(TLS_MODES)}")
    return Tls(mode, values.get("rootCert", ""), values.get("cert", ""), values.get("key", ""))


def _read_identifier(fields: SettingsReader, key: str) -> str | None:
    if key not in fields.data:
        return None
    name = fields.text(key, "")
    if not _IDENTIFIER.fullmatch(name):
        fields.report_flaw(key, f"{quote(name)} cannot be used", "use a-z, 0-9 and _, at most 63")
    return name


def _read_outbox(fields: SettingsReader) -> Outbox | None:
    if "outbox" not in fields.data:
        return None
    values = {} if fields.data["outbox"] is True else fields.mapping("outbox")
    for key in values:
        if key not in OUTBOX_KEYS:
            fields.report_flaw("outbox", f"unknown {quote(key)}", did_you_mean(key, OUTBOX_KEYS))
    events = values.get("events", [])
    if not isinstance(events, list) or not all(isinstance(each, str) for each in events):
        fields.report_flaw("outbox", "events must be a list of texts")
        events = []
    columns = {key: str(values[key]) for key in OUTBOX_KEYS[1:] if key in values}
    return Outbox(tuple(events), **columns)


def _read_options(fields: SettingsReader) -> dict[str, Any]:
    options = fields.mapping("options")
    for key in options:
        if key.startswith(RESERVED_OPTIONS):
            fields.report_flaw("options", f"{quote(key)} is not yours to set", "leave it out")
    path = find_literal_secret(options)
    if path is not None:
        what = f"{quote('.'.join(map(str, path)))} is written in the clear"
        fields.report_flaw("options", what, "write {secret: NAME_OF_A_VARIABLE}")
    return options

"""What a source of kind `postgres` says: which database, which tables, and how they are read.

`via: embedded` reads the database's log from this machine and without Kafka; `via: connect` reads
what Debezium in a Kafka Connect cluster writes to topics.
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
WAYS = ("embedded", "connect")
TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
TLS_KEYS = ("mode", "rootCert", "cert", "key")
OUTBOX_KEYS = ("events", "id", "key", "type", "payload", "timestamp")
# Debezium's settings that decide what comes and in which form, or that we fill ourselves.
OURS = (
    "connector.class", "name", "offset.", "database.", "topic.prefix", "plugin.name", "slot.",
    "publication.", "snapshot.mode", "tombstones.", "skipped.operations", "provide.transaction",
    "decimal.handling", "time.precision", "binary.handling", "converter.", "key.converter",
    "value.converter", "table.", "schema.include", "schema.exclude", "transforms", "notification.",
    "message.",
)  # fmt: skip
_NAME = re.compile(r"[a-z0-9_]{1,63}")
_TABLE = re.compile(r"[^.\s,]+\.[^.\s,]+")


@dataclass(frozen=True)
class Tls:
    """How the connection is protected, in libpq's words."""

    mode: str = "prefer"
    root_cert: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True)
class Outbox:
    """A table of events, and which of its columns say what. No `events` means all of them."""

    events: tuple[str, ...] = ()
    id: str = "id"
    key: str = "aggregateid"
    type: str = "aggregatetype"
    payload: str = "payload"
    timestamp: str = ""


@dataclass(frozen=True)
class Postgres:
    """A database and the tables in it whose changes land. `password` is a reference only."""

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


def read(fields: SettingsReader) -> Postgres | None:
    """The database that a source's settings describe; None when something is wrong with them."""
    before = len(fields.report.problems)
    via = fields.one_of("via", "embedded", WAYS)
    found = Postgres(
        host=fields.required_text("host", "name the server, as db.example.com"),
        database=fields.required_text("database", "name the database"),
        user=fields.required_text("user", "name a user that may replicate"),
        tables=_tables(fields),
        port=int(fields.number("port", 5432, 1, 65_535)),
        password=_password(fields),
        tls=_tls(fields),
        slot=_slot(fields, "slot"),
        publication=_slot(fields, "publication"),
        via=via,
        connect=_connect(fields) if via == "connect" else "",
        servers=fields.required_text("servers", "the brokers, as host:9092")
        if via == "connect"
        else "",
        topic_prefix=fields.text("topicPrefix", ""),
        outbox=_outbox(fields),
        options=_debezium(fields),
    )
    if via == "embedded" and found.options:
        fields.report_flaw("options", "are for via: connect", "leave them out: they are Debezium's")
    if via == "connect" and found.outbox is not None and not found.outbox.events:
        fields.report_flaw("outbox", "must name its events", "each of them has a topic of its own")
    return found if len(fields.report.problems) == before else None


def open_feed(lake: Lake, source: Source, contract: Contract) -> Feed:
    """The feed of a database. Nothing is connected yet."""
    if source.connection.via == "connect":
        from thermocline.ingest.postgres.connect_feed import open_topic

        return open_topic(lake, source, contract)
    from thermocline.ingest.postgres.feed import PostgresFeed

    return PostgresFeed(lake, source, contract)


def _tables(fields: SettingsReader) -> tuple[str, ...]:
    if "tables" not in fields.data:
        fields.report.add_missing((), "tables", "is missing", "name them, as [public.orders]")
        return ()
    tables = fields.texts("tables")
    for table in tables:
        if not _TABLE.fullmatch(table):
            fields.report_flaw("tables", f"{quote(table)} is no table", "write schema.table")
    return tables


def _connect(fields: SettingsReader) -> str:
    address = fields.required_text("connect", "the address of Kafka Connect")
    if address and not address.startswith(("http://", "https://")):
        fields.report_flaw("connect", f"{quote(address)} is no http(s) address")
    return address


def _password(fields: SettingsReader) -> Mapping[str, str] | None:
    given = fields.data.get("password")
    if given is not None and not is_reference(given):
        fields.report_flaw(
            "password", "is written in the clear", "write {secret: NAME_OF_A_VARIABLE}"
        )
        return None
    return given


def _tls(fields: SettingsReader) -> Tls:
    given = fields.mapping("tls")
    for key in given:
        if key not in TLS_KEYS:
            fields.report_flaw("tls", f"unknown {quote(key)}", did_you_mean(key, TLS_KEYS))
    values = {key: str(given[key]) for key in TLS_KEYS if key in given}
    mode = values.get("mode", "prefer")
    if mode not in TLS_MODES:
        fields.report_flaw("tls", f"{quote(mode)} is no mode", f"use {', '.join(TLS_MODES)}")
    return Tls(mode, values.get("rootCert", ""), values.get("cert", ""), values.get("key", ""))


def _slot(fields: SettingsReader, key: str) -> str | None:
    if key not in fields.data:
        return None
    name = fields.text(key, "")
    if not _NAME.fullmatch(name):
        fields.report_flaw(key, f"{quote(name)} cannot be used", "use a-z, 0-9 and _, at most 63")
    return name


def _outbox(fields: SettingsReader) -> Outbox | None:
    if "outbox" not in fields.data:
        return None
    given = {} if fields.data["outbox"] is True else fields.mapping("outbox")
    for key in given:
        if key not in OUTBOX_KEYS:
            fields.report_flaw("outbox", f"unknown {quote(key)}", did_you_mean(key, OUTBOX_KEYS))
    events = given.get("events", [])
    if not isinstance(events, list) or not all(isinstance(each, str) for each in events):
        fields.report_flaw("outbox", "events must be a list of texts")
        events = []
    columns = {key: str(given[key]) for key in OUTBOX_KEYS[1:] if key in given}
    return Outbox(tuple(events), **columns)


def _debezium(fields: SettingsReader) -> dict[str, Any]:
    options = fields.mapping("options")
    for key in options:
        if key.startswith(OURS):
            fields.report_flaw("options", f"{quote(key)} is not yours to set", "leave it out")
    path = find_literal_secret(options)
    if path is not None:
        what = f"{quote('.'.join(map(str, path)))} is written in the clear"
        fields.report_flaw("options", what, "write {secret: NAME_OF_A_VARIABLE}")
    return options

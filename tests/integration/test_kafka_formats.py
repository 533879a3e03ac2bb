"""Avro and Protobuf values, by a file or a registry; brokers that want a password, or TLS."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.integration.kafka_project import TARGET, Project
from tests.servers import kafka, registry
from tests.servers.kafka import Kafka
from tests.servers.registry import SchemaRegistry, framed

from thermocline.errors import ConfigError

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": ["null", {"type": "bytes", "logicalType": "decimal",
                                             "precision": 12, "scale": 2}]},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip


@pytest.fixture
def orders(project: Path, kafka_server: Kafka) -> Project:
    return Project(project, kafka_server, kafka_server.create())


@pytest.fixture
def schemas(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setenv("REGISTRY_PASSWORD", registry.PASSWORD)
    with registry.serve() as served:
        yield served


def avro(**record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), record)
    return stream.getvalue()


def proto() -> descriptor_pb2.FileDescriptorProto:
    """message Order { int64 id = 1; string amount = 2; string note = 3; }"""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate((("id", 3), ("amount", 9), ("note", 9)), start=1):
        message.field.add(name=name, number=number, type=kind, label=1)
    return file


def protobuf(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return kind(**fields).SerializeToString()


GOOD = [(1, Decimal("1.50"), "é"), (2, Decimal("2.00"), None)]


def test_avro_by_a_schema_file(orders: Project) -> None:
    (orders.folder / "order.avsc").write_text(json.dumps(AVRO))
    orders.source(format="avro", schema="order.avsc", badShare=0.9)
    sent = [avro(id=n, amount=amount, note=note) for n, amount, note in GOOD]
    orders.server.send(orders.topic, [*sent, b"\xff\xff\xff", sent[0] + b"more"])
    assert orders.ingest() == (2, 2)
    assert orders.rows("id", "amount", "note", "_raw") == [
        (*row, value) for row, value in zip(GOOD, sent, strict=True)
    ]
    bad = orders.open().quarantine(TARGET)
    assert bad[0].reasons[0].startswith("not readable as Avro: ")
    assert bad[1].reasons == ("not readable as Avro: 4 bytes follow the record",)
    assert base64.b64decode(bad[0].raw or "") == b"\xff\xff\xff"


def test_debezium_events_of_a_connector_that_others_run(orders: Project) -> None:
    """The contract knows none of the envelope's columns, and that is no drift."""

    def event(op: str, row: dict[str, Any], lsn: int) -> bytes:
        sides = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        source = {"lsn": lsn, "txId": 7, "schema": "public", "table": "orders"}
        return json.dumps({"op": op, "ts_ms": 1, "source": source, **sides}).encode()

    orders.source(format="debezium")
    first = {"id": 1, "amount": "1.50", "note": "é"}
    sent = [event("c", first, 10), event("u", {**first, "note": "x"}, 11), event("d", first, 12)]
    orders.server.send(orders.topic, [*sent, None])
    assert orders.ingest() == (3, 0)
    assert orders.rows("id", "amount", "note", "_raw") == [
        (1, Decimal("1.50"), note, raw) for note, raw in zip("éxé", sent, strict=True)
    ]
    assert orders.ingest() == (0, 0)


def test_avro_by_a_registry(orders: Project, schemas: SchemaRegistry) -> None:
    number = schemas.add("AVRO", json.dumps(AVRO))
    login = {"user": registry.USER, "password": {"secret": "REGISTRY_PASSWORD"}}
    orders.source(format="avro", registry=schemas.url, registryOptions=login, badShare=0.9)
    sent = [framed(number, avro(id=n, amount=amount, note=note)) for n, amount, note in GOOD]
    orders.server.send(orders.topic, [*sent, framed(99, b"x"), b"bare", None])
    assert orders.ingest() == (2, 3)
    assert orders.rows("id", "amount", "note") == GOOD
    assert [row.reasons[0] for row in orders.open().quarantine(TARGET)] == [
        "names schema 99, which the registry does not have",
        "does not begin with a schema's number",
        "id is missing",
    ]
    schemas.answers[7] = b"<html>garbage"
    orders.server.send(orders.topic, [framed(7, b"x")])
    with pytest.raises(Exception, match="did not answer in JSON"):
        orders.ingest()


def test_protobuf_by_a_registry_and_by_a_descriptor(
    orders: Project, schemas: SchemaRegistry
) -> None:
    serialized = base64.b64encode(proto().SerializeToString()).decode()
    number = schemas.add("PROTOBUF", serialized)
    login = {"user": registry.USER, "password": {"secret": "REGISTRY_PASSWORD"}}
    orders.source(format="protobuf", registry=schemas.url, registryOptions=login)
    sent = protobuf(id=1, amount="1.50", note="é")
    orders.server.send(
        orders.topic, [framed(number, b"\0" + sent), framed(number, b"\x02\0" + sent)]
    )
    assert orders.ingest() == (2, 0)
    described = descriptor_pb2.FileDescriptorSet(file=[proto()])
    (orders.folder / "order.desc").write_bytes(described.SerializeToString())
    orders.source(format="protobuf", schema="order.desc", message="shop.Order")
    orders.server.send(orders.topic, [sent, b"\xff"])
    assert orders.ingest() == (1, 1)
    assert orders.rows("id", "amount", "note") == [GOOD[0]] * 3


def test_a_broker_that_wants_a_password(
    orders: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": {"secret": "KAFKA_LOGIN"},
    }
    orders.source(servers=orders.server.sasl_servers, options=options)
    orders.server.send(orders.topic, [b'{"id": 1}'])
    login = f'{module} username="{kafka.USER}" password="{{}}";'
    monkeypatch.setenv("KAFKA_LOGIN", login.format("wrong-canary-password"))
    with pytest.raises(ConfigError, match="refused the credentials") as told:
        orders.ingest()
    assert "canary" not in str(told.value)
    monkeypatch.setenv("KAFKA_LOGIN", login.format(kafka.PASSWORD))
    assert orders.ingest() == (1, 0)
    assert "canary" not in "".join(capfd.readouterr())


def test_a_broker_that_speaks_tls_is_read_by_who_trusts_it(project: Path, tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with kafka.serve(tmp_path / "broker", tls=True) as server:
        orders = Project(project, server, server.create())
        server.send(orders.topic, [b'{"id": 1}'])
        trusting = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(server.certificate),
        }
        orders.source(servers=server.tls_servers, options={"security.protocol": "SSL"})
        with pytest.raises(ConfigError, match="unable to find valid certification path"):
            orders.ingest()
        orders.source(servers=server.tls_servers, options=trusting)
        assert orders.ingest() == (1, 0)
        assert orders.rows("id") == [(1,)]

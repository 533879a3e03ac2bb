"""A real Kafka broker (KRaft, one node) that can be stopped, killed and started again."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers.process import answers, free_port, running

from thermocline.engine import jars, java

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

KAFKA = "4.3.1"
PACKAGES = (
    *(
        f"org.apache.kafka:{name}:{KAFKA}"
        for name in (
            "kafka_2.13", "kafka-clients", "kafka-coordinator-common", "kafka-group-coordinator",
            "kafka-group-coordinator-api", "kafka-metadata", "kafka-raft", "kafka-server",
            "kafka-server-common", "kafka-share-coordinator", "kafka-storage",
            "kafka-storage-api", "kafka-tools-api", "kafka-transaction-coordinator",
        )
    ),
    "at.yawk.lz4:lz4-java:1.10.2",
    "com.dynatrace.hash4j:hash4j:0.22.0",
    "com.fasterxml.jackson.core:jackson-annotations:2.21",
    "com.fasterxml.jackson.core:jackson-core:2.21.2",
    "com.fasterxml.jackson.core:jackson-databind:2.21.2",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2",
    "com.github.ben-manes.caffeine:caffeine:3.2.0",
    "com.github.luben:zstd-jni:1.5.6-10",
    "com.google.re2j:re2j:1.8",
    "com.typesafe.scala-logging:scala-logging_2.13:3.9.6",
    "com.yammer.metrics:metrics-core:2.2.0",
    "commons-validator:commons-validator:1.10.1",
    "net.sf.jopt-simple:jopt-simple:5.0.4",
    "net.sourceforge.argparse4j:argparse4j:0.7.0",
    "org.apache.logging.log4j:log4j-api:2.25.4",
    "org.apache.logging.log4j:log4j-core:2.25.4",
    "org.bitbucket.b_c:jose4j:0.9.6",
    "org.hdrhistogram:HdrHistogram:2.2.2",
    "org.pcollections:pcollections:4.0.2",
    "org.scala-lang:scala-library:2.13.18",
    "org.scala-lang:scala-reflect:2.13.18",
    "org.slf4j:slf4j-api:1.7.36",
    "org.xerial.snappy:snappy-java:1.1.10.7",
)  # fmt: skip
CLUSTER = "thermoclineTestCluster"  # 22 characters, as Kafka's ids have
USER, PASSWORD = "reader", "canary-sasl-password"
LARGEST = 32 << 20


@dataclass(frozen=True)
class Message:
    """A message. A value of None is a tombstone."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = 0
    timestamp_ms: int = 0


@dataclass
class Kafka:
    """A broker and its listeners: `servers` without authentication, `sasl_servers` with USER and
    PASSWORD, and with TLS `tls_servers` for clients that trust `certificate`."""

    folder: Path
    port: int
    sasl_port: int
    _controller_port: int
    tls_port: int | None = None
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_servers(self) -> str:
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def tls_servers(self) -> str:
        assert self.tls_port is not None
        return f"127.0.0.1:{self.tls_port}"

    @property
    def certificate(self) -> Path:
        """Return the broker's TLS certificate as PEM."""
        return self.folder / "broker.pem"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the broker on its folder."""
        command = [*_java(), "kafka.Kafka", self.folder / "server.properties"]
        self._process = self._running.enter_context(
            running(
                command,
                log=self.folder / "log",
                ready=lambda: answers(self.port) and answers(self.sasl_port),
                cwd=self.folder,
            )
        )

    def stop(self) -> None:
        """Stop the broker; acknowledged records stay."""
        self._running.close()

    def kill(self) -> None:
        """Kill the broker, like a power failure."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._running.close()

    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers})

    def create(self, topic: str | None = None, partitions: int = 1, **config: Any) -> str:
        """Create a topic and return its name."""
        from confluent_kafka.admin import NewTopic

        name = topic or f"topic-{uuid.uuid4().hex[:8]}"
        wanted = {"max.message.bytes": str(LARGEST)}
        wanted |= {key.replace("_", "."): str(value) for key, value in config.items()}
        made = NewTopic(name, num_partitions=partitions, replication_factor=1, config=wanted)
        admin = self.admin()  # what it began ends with it, so it is kept until the answer
        admin.create_topics([made])[name].result(30)
        return name

    def delete(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(30)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.admin import NewPartitions

        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def forget(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        admin = self.admin()
        which = TopicPartition(topic, partition, before)
        for done in admin.delete_records([which]).values():
            done.result(30)

    def send(self, topic: str, messages: Iterable[bytes | Message | None], **config: Any) -> int:
        """Send messages, wait for acknowledgment, and return their number."""
        producer = self.producer(**config)
        count = 0
        for each in messages:
            message = each if isinstance(each, Message) else Message(each)
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers) or None,
                partition=message.partition,
                timestamp=message.timestamp_ms,
            )
            count += 1
            if count % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        return count

    def records(self, topic: str) -> int:
        """Return the number of offsets of a topic."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "counter"})
        try:
            partitions = consumer.list_topics(topic, 30).topics[topic].partitions
            extents = [
                consumer.get_watermark_offsets(TopicPartition(topic, number), 30)
                for number in partitions
            ]
        finally:
            consumer.close()
        return sum(end - begin for begin, end in extents)

    def producer(self, **config: Any) -> Producer:
        from confluent_kafka import Producer

        given = {key.replace("_", "."): value for key, value in config.items()}
        return Producer(
            {
                "bootstrap.servers": self.servers,
                "message.max.bytes": LARGEST,
                "queue.buffering.max.messages": 10_000_000,
                "enable.idempotence": True,
                "linger.ms": 5,
                **given,
            }
        )


@contextlib.contextmanager
def serve(folder: Path, *, tls: bool = False) -> Iterator[Kafka]:
    """Run a broker with its logs in `folder`."""
    server = Kafka(folder, free_port(), free_port(), free_port(), free_port() if tls else None)
    if tls:
        _certify(server)
    properties = folder / "server.properties"
    settings = _with_tls(server, _properties(server)) if tls else _properties(server)
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    format_ = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", properties, "--standalone"]
    subprocess.run([*_java(), *format_], check=True, capture_output=True, cwd=folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _java() -> list[str | Path]:
    path = ":".join(str(jar) for jar in jars.resolve(PACKAGES))
    quick = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [java.find_java().executable, *quick, "-cp", path]


def _certify(server: Kafka) -> None:
    """Create a key and a self-signed certificate with the JVM's keytool."""
    store = ["-keystore", "broker.p12", "-storepass", PASSWORD, "-alias", "broker"]
    made = ["-genkeypair", "-keyalg", "EC", "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1"]
    shown = ["-exportcert", "-rfc", "-file", server.certificate]
    for what in (made, shown):
        command = [java.find_java().home / "bin" / "keytool", *what, *store]
        subprocess.run(command, check=True, capture_output=True, cwd=server.folder)


def _with_tls(server: Kafka, properties: dict[str, Any]) -> dict[str, Any]:
    way_in = f",SSL://{server.tls_servers}"
    more = {key: properties[key] + way_in for key in ("listeners", "advertised.listeners")}
    protocols = "listener.security.protocol.map"
    return (
        properties
        | more
        | {
            protocols: f"{properties[protocols]},SSL:SSL",
            "ssl.keystore.location": server.folder / "broker.p12",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": PASSWORD,
        }
    )


def _properties(server: Kafka) -> dict[str, Any]:
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    one = dict.fromkeys(
        (
            "offsets.topic.replication.factor", "offsets.topic.num.partitions",
            "transaction.state.log.replication.factor", "transaction.state.log.min.isr",
            "transaction.state.log.num.partitions", "share.coordinator.state.topic.min.isr",
            "share.coordinator.state.topic.replication.factor",
            "share.coordinator.state.topic.num.partitions",
        ),
        1,
    )  # fmt: skip
    return one | {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{server._controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{server.port},"
        f"SASL_PLAINTEXT://127.0.0.1:{server.sasl_port},"
        f"CONTROLLER://127.0.0.1:{server._controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{server.port},"
        f"SASL_PLAINTEXT://127.0.0.1:{server.sasl_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{jaas} user_{USER}="{PASSWORD}";',
        "log.dirs": server.folder / "logs",
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "message.max.bytes": LARGEST,
        "log.retention.ms": -1,  # tests send messages of long ago
        "num.network.threads": 1,
        "num.io.threads": 2,
        "background.threads": 1,
    }

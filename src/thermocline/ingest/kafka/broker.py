"""Describe a broker's topics with Kafka's own client in Spark's JVM.

Spark reads with the same client, so one set of options serves both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from thermocline.engine import jars
from thermocline.errors import ConfigError, Permanent, ThermoclineError, Transient
from thermocline.ingest.kafka.offset_ranges import PartitionOffsets, Topic
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from thermocline.lake import Lake

TIMEOUT_MS = 10_000
_ADMIN = "org.apache.kafka.clients.admin"


class MissingTopic(Permanent):
    """A topic that the broker does not have."""

    code = "missing-topic"


class Broker:
    """Read-only access to the topics of one cluster."""

    def __init__(self, lake: Lake, options: Mapping[str, str]) -> None:
        lake.spark.add_jars(jars.KAFKA)
        jvm: Any = lake.spark.session._jvm
        self._jvm = jvm
        self._servers = options["bootstrap.servers"]
        properties = jvm.java.util.Properties()
        for key, value in options.items():
            properties.put(key, value)
        properties.put("default.api.timeout.ms", str(TIMEOUT_MS))
        properties.put("request.timeout.ms", str(TIMEOUT_MS // 2))
        properties.put("client.id", "thermocline")
        with self._translate_errors():
            self._admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)

    def describe_topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return the topics with their ids and the current committed offsets of each partition."""
        with self._translate_errors():
            topic_names = self._jvm.java.util.ArrayList()
            for name in names:
                topic_names.add(name)
            described = self._admin.describeTopics(topic_names).allTopicNames().get()
            ids, pairs = {}, []
            for name in names:
                topic = described.get(name)
                ids[name] = str(topic.topicId().toString())
                for partition in topic.partitions():
                    pairs.append((name, int(partition.partition())))
            begins, ends = (
                self._list_offsets(pairs, "earliest"),
                self._list_offsets(pairs, "latest"),
            )
        return {
            name: Topic(
                ids[name],
                {p: PartitionOffsets(begins[t, p], ends[t, p]) for t, p in pairs if t == name},
            )
            for name in names
        }

    def _list_offsets(
        self, pairs: Sequence[tuple[str, int]], position: str
    ) -> dict[tuple[str, int], int]:
        jvm = self._jvm
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        requested = spec.earliest() if position == "earliest" else spec.latest()
        request = jvm.java.util.HashMap()
        partitions = {}
        for topic, number in pairs:
            partitions[topic, number] = jvm.org.apache.kafka.common.TopicPartition(topic, number)
            request.put(partitions[topic, number], requested)
        # Records of uncommitted transactions do not count.
        level = jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        options = jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        response = self._admin.listOffsets(request, options)
        return {
            numbers: int(response.partitionResult(partition).get().offset())
            for numbers, partition in partitions.items()
        }

    def close(self) -> None:
        """Close the connections."""
        from py4j.protocol import Py4JError

        try:
            self._admin.close(self._jvm.java.time.Duration.ofMillis(1000))
        except Py4JError:
            return  # the JVM has ended, and the connections with it

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            raise explain_client_error(error.java_exception, self._servers) from None


def explain_client_error(failure: Any, servers: str) -> ThermoclineError:
    """Translate an error of the client by its class, not by its message."""
    names, message = _unwrap(failure)
    if "UnknownTopicOrPartitionException" in names:
        return MissingTopic(
            f"The broker at {servers} does not have the topic: {message}",
            "If it was deleted, data may be missing. Create it again, or fix the source.",
        )
    if names & {"SaslAuthenticationException", "SslAuthenticationException"}:
        return ConfigError(
            f"The broker at {servers} refused the credentials: {message}",
            "Fix the source's options.",
        )
    if names & {"TopicAuthorizationException", "ClusterAuthorizationException"}:
        return ConfigError(f"Not allowed at {servers}: {message}", "Ask for permission to read it.")
    if "ConfigException" in names:
        return ConfigError(
            f"Kafka's client rejects the options: {message}", "Fix the source's options."
        )
    if names & _DELETED_RECORD_ERRORS:
        return Transient(
            f"Records that {servers} had were deleted while they were read: {message}",
            "Nothing of the batch landed. The next poll reports which ones are missing.",
        )
    return Transient(f"The broker at {servers} does not answer: {message}", "Check that it runs.")


def explain_read_error(failure: BaseException, servers: str) -> ThermoclineError | None:
    """Translate the failure of a Spark job; None if the broker is not its cause."""
    java = getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)
    if java is None or not _unwrap(java)[0] & _BROKER_ERRORS:
        return None
    return explain_client_error(java, servers)


_DELETED_RECORD_ERRORS = {"OffsetOutOfRangeException", "KafkaIllegalStateException"}
_BROKER_ERRORS = _DELETED_RECORD_ERRORS | {
    "TimeoutException", "DisconnectException", "KafkaException", "NetworkException",
    "BrokerNotAvailableException", "LeaderNotAvailableException",
    "UnknownTopicOrPartitionException", "TopicAuthorizationException",
    "SaslAuthenticationException", "SslAuthenticationException",
}  # fmt: skip


def _unwrap(failure: Any) -> tuple[set[str], str]:
    """Return the classes of a Java exception and its causes, and the innermost message."""
    names, message = set(), ""
    while failure is not None:
        names.add(str(failure.getClass().getSimpleName()))
        message = str(failure.getMessage() or "") or message
        failure = failure.getCause()
    return names, _redact_password(message)


def _redact_password(message: str) -> str:
    """Redact passwords: the client quotes its options in some messages, also the JAAS line."""
    return one_line(re.sub(r"(?i)password\s*=\s*\S+", "password=***", redact(message)))[:300]

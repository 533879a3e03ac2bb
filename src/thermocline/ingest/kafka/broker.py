"""What the broker says of its topics, request with Kafka's own client in Spark's JVM.

It is the client that Spark reads with, so one set of options serves both.
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
    """The topics of one cluster. Nothing is written there."""

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
        """The topics with their ids, partitions and committed extents, at this moment."""
        with self._translate_errors():
            listed = self._jvm.java.util.ArrayList()
            for name in names:
                listed.add(name)
            described = self._admin.describeTopics(listed).allTopicNames().get()
            ids, numbered = {}, []
            for name in names:
                topic = described.get(name)
                ids[name] = str(topic.topicId().toString())
                for partition in topic.partitions():
                    numbered.append((name, int(partition.partition())))
            begins, ends = (
                self._list_offsets(numbered, "earliest"),
                self._list_offsets(numbered, "latest"),
            )
        return {
            name: Topic(
                ids[name],
                {p: PartitionOffsets(begins[t, p], ends[t, p]) for t, p in numbered if t == name},
            )
            for name in names
        }

    def _list_offsets(
        self, numbered: Sequence[tuple[str, int]], which: str
    ) -> dict[tuple[str, int], int]:
        jvm = self._jvm
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        wanted = spec.earliest() if which == "earliest" else spec.latest()
        request = jvm.java.util.HashMap()
        partitions = {}
        for topic, number in numbered:
            partitions[topic, number] = jvm.org.apache.kafka.common.TopicPartition(topic, number)
            request.put(partitions[topic, number], wanted)
        # What a transaction has not committed yet is not there yet.
        level = jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        options = jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        response = self._admin.listOffsets(request, options)
        return {
            numbers: int(response.partitionResult(partition).get().offset())
            for numbers, partition in partitions.items()
        }

    def close(self) -> None:
        """Let go of the connections."""
        from py4j.protocol import Py4JError

        try:
            self._admin.close(self._jvm.java.time.Duration.ofMillis(1000))
        except Py4JError:
            return  # the JVM is gone, and the connections with it

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            raise explain_client_error(error.java_exception, self._servers) from None


def explain_client_error(failure: Any, servers: str) -> ThermoclineError:
    """One of our errors for one of the client's. Its class decides, not its words."""
    names, said = _unwrap(failure)
    if "UnknownTopicOrPartitionException" in names:
        return MissingTopic(
            f"The broker at {servers} does not have the topic: {said}",
            "If it was deleted, data may be missing. Make it again, or mend the source.",
        )
    if names & {"SaslAuthenticationException", "SslAuthenticationException"}:
        return ConfigError(
            f"The broker at {servers} refused the credentials: {said}", "Mend the source's options."
        )
    if names & {"TopicAuthorizationException", "ClusterAuthorizationException"}:
        return ConfigError(f"Not allowed at {servers}: {said}", "Ask for the right to read it.")
    if "ConfigException" in names:
        return ConfigError(
            f"Kafka's client does not take the options: {said}", "Mend the source's options."
        )
    if names & _DELETED_RECORD_ERRORS:
        return Transient(
            f"Records that {servers} had were deleted while they were read: {said}",
            "Nothing of the batch landed. The next look says which ones are missing.",
        )
    return Transient(f"The broker at {servers} does not response: {said}", "Look whether it runs.")


def explain_read_error(failure: BaseException, servers: str) -> ThermoclineError | None:
    """What a failed job of Spark's says about the broker; None when the broker is not its cause."""
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
    """The classes of a Java exception and of its causes, and what the innermost says."""
    names, said = set(), ""
    while failure is not None:
        names.add(str(failure.getClass().getSimpleName()))
        said = str(failure.getMessage() or "") or said
        failure = failure.getCause()
    return names, _redact_password(said)


def _redact_password(said: str) -> str:
    """The client quotes its options in some messages, a JAAS line with its password among them."""
    return one_line(re.sub(r"(?i)password\s*=\s*\S+", "password=***", redact(said)))[:300]

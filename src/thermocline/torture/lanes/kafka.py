"""Send events as messages of a Kafka topic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.errors import ConfigError, Transient
from thermocline.torture.lanes.lane import MAX_OUTAGE_SECONDS
from thermocline.torture.workload import Events, State, Workload

if TYPE_CHECKING:
    from confluent_kafka import Producer

PARTITIONS = 3
_LOGIN = re.compile(r'\b(username|password)="((?:[^"\\]|\\.)*)"')


@dataclass
class KafkaLane:
    """A separate topic on a broker of the project's sources."""

    workload: Workload
    topic: str
    servers: str
    options: Mapping[str, Any]
    kind: str = "kafka"
    changes: bool = False
    _producer: Producer | None = None
    _failure: str | None = None

    def source(self) -> dict[str, Any]:
        """Return the topic's settings, with the connection of the project's own source."""
        options = {"options": dict(self.options)} if self.options else {}
        return {
            "kind": "kafka",
            "servers": self.servers,
            "topic": self.topic,
            "format": "json",
            **options,
        }

    def set_up(self, project: Path) -> None:
        """Create the topic with a few partitions."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        del project
        admin = AdminClient(self._settings())
        created = admin.create_topics([NewTopic(self.topic, num_partitions=PARTITIONS)])
        self._wait(created[self.topic], "created")

    def send(self, events: Events) -> None:
        """Produce events, and wait until the broker has stored all of them."""
        from confluent_kafka import Producer

        if self._producer is None:
            # Idempotent: the broker stores a message once, even if the producer repeats it.
            reliable = {"enable.idempotence": True, "linger.ms": 20, "message.timeout.ms": 120_000}
            self._producer = Producer({**self._settings(), **reliable})
        for key, text in events.messages():
            while True:
                try:
                    self._producer.produce(self.topic, text, key, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        left = self._producer.flush(MAX_OUTAGE_SECONDS)
        if left or self._failure:
            reason = self._failure or "no answer"
            raise Transient(
                f"{left:,} events could not be sent to {self.topic}: {reason}.",
                "Look at the broker; the trial cannot verify events that were never sent.",
            )

    def read_state(self) -> State | None:
        """Return None: a topic keeps events only."""
        return None

    def tear_down(self, *, keep: bool) -> None:
        """Remove the topic."""
        from confluent_kafka.admin import AdminClient

        self._producer = None
        if keep:
            return
        admin = AdminClient(self._settings())  # kept alive until the request ends
        self._wait(admin.delete_topics([self.topic])[self.topic], "removed")

    def _delivered(self, error: Any, message: Any) -> None:
        del message
        if error is not None:
            self._failure = str(error)

    def _settings(self) -> dict[str, Any]:
        from thermocline.ingest.secret import reveal

        quiet = {
            "bootstrap.servers": self.servers,
            "log_level": 0,
        }  # an unreachable broker is expected here
        return {**quiet, **producer_options(reveal(dict(self.options)))}

    def _wait(self, future: Any, done: str) -> None:
        from confluent_kafka import KafkaException

        try:
            future.result(timeout=MAX_OUTAGE_SECONDS)
        except KafkaException as error:
            raise ConfigError(
                f"The topic {self.topic} cannot be {done}: {error}",
                "Look at the broker and at what its user may do.",
            ) from error


def producer_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Convert a source's options, written for Kafka's Java client, to producer options."""
    found: dict[str, str] = {}
    for name, value in options.items():
        if name == "sasl.jaas.config":
            login = dict(_LOGIN.findall(str(value)))
            found |= {f"sasl.{part}": text for part, text in login.items()}
        elif name.startswith(("ssl.truststore", "ssl.keystore")):
            raise ConfigError(
                f"The trial's producer cannot read {name}, which is Java's own format.",
                "Leave Kafka out with --lane files, or use ssl.ca.location for the trial.",
            )
        else:
            found[name] = str(value)
    return found

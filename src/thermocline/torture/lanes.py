"""Lanes: the ways that events take to a source. Each has its source, its tables and its events."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.errors import ConfigError, Transient
from thermocline.torture.workload import Events, Workload

if TYPE_CHECKING:
    from confluent_kafka import Producer

FILE_EVENTS = 2_000
DELIVER_TWICE_ONE_IN = 7
PARTITIONS = 3
PATIENCE_SECONDS = 120.0
_LOGIN = re.compile(r'\b(username|password)="((?:[^"\\]|\\.)*)"')


class Lane(Protocol):
    """A source whose every event is known. One thread sends."""

    kind: str
    workload: Workload

    def source(self) -> dict[str, Any]:
        """What the source's file says beside its name and target."""

    def begin(self, project: Path) -> None:
        """Make what the events are sent to."""

    def send(self, events: Events) -> None:
        """Hand events over; when this returns, the source keeps them."""

    def end(self) -> None:
        """Remove what was made outside the project."""


@dataclass
class FilesLane:
    """Files in a landing folder. Every seventh is delivered twice, under another name."""

    workload: Workload
    kind: str = "files"
    _folder: Path = Path()
    _files: int = 0

    def source(self) -> dict[str, Any]:
        """A landing folder of JSON lines."""
        return {"kind": "files", "path": "landing", "format": "jsonl"}

    def begin(self, project: Path) -> None:
        """The landing folder."""
        self._folder = project / "landing"
        self._folder.mkdir(parents=True)

    def send(self, events: Events) -> None:
        """Write files. Each appears whole: it is written under a name that nobody reads."""
        first = 0 if not len(events) else int(events.number[0])
        last = first + len(events)
        for start in range(first, last, FILE_EVENTS):
            part = self.workload.between(start, min(start + FILE_EVENTS, last))
            text = "".join(f"{line}\n" for _, line in part.messages())
            self._deliver(f"part-{self._files:08}.jsonl", text)
            if self._files % DELIVER_TWICE_ONE_IN == 0:
                self._deliver(f"part-{self._files:08}-again.jsonl", text)
            self._files += 1

    def _deliver(self, name: str, text: str) -> None:
        hidden = self._folder / f".{name}.tmp"
        hidden.write_text(text)
        hidden.rename(self._folder / name)

    def end(self) -> None:
        """The folder is the project's own."""
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass
class KafkaLane:
    """A topic of its own on a broker that the project's sources name."""

    workload: Workload
    topic: str
    servers: str
    options: Mapping[str, Any]
    kind: str = "kafka"
    _producer: Producer | None = None
    _failed: str | None = None

    def source(self) -> dict[str, Any]:
        """The topic, reached as the project's own source reaches its broker."""
        options = {"options": dict(self.options)} if self.options else {}
        return {
            "kind": "kafka",
            "servers": self.servers,
            "topic": self.topic,
            "format": "json",
            **options,
        }

    def begin(self, project: Path) -> None:
        """The topic, with a few partitions."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        del project
        admin = AdminClient(self._settings())
        made = admin.create_topics([NewTopic(self.topic, num_partitions=PARTITIONS)])
        self._wait(made[self.topic], "made")

    def send(self, events: Events) -> None:
        """Produce, and wait until the broker has all of them."""
        from confluent_kafka import Producer

        if self._producer is None:
            # Idempotent: what the producer sends again after an error, the broker keeps once.
            reliable = {"enable.idempotence": True, "linger.ms": 20, "message.timeout.ms": 120_000}
            self._producer = Producer({**self._settings(), **reliable})
        for key, text in events.messages():
            while True:
                try:
                    self._producer.produce(self.topic, text, key, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        left = self._producer.flush(PATIENCE_SECONDS)
        if left or self._failed:
            why = self._failed or "no answer"
            raise Transient(
                f"{left:,} events could not be sent to {self.topic}: {why}.",
                "Look at the broker; the trial cannot judge what was never sent.",
            )

    def end(self) -> None:
        """Remove the topic."""
        from confluent_kafka.admin import AdminClient

        self._producer = None
        admin = AdminClient(self._settings())  # what it began ends with it
        self._wait(admin.delete_topics([self.topic])[self.topic], "removed")

    def _delivered(self, error: Any, message: Any) -> None:
        del message
        if error is not None:
            self._failed = str(error)

    def _settings(self) -> dict[str, Any]:
        from thermocline.ingest.secret import reveal

        quiet = {"bootstrap.servers": self.servers, "log_level": 0}  # a broker away is no news here
        return {**quiet, **producer_options(reveal(dict(self.options)))}

    def _wait(self, future: Any, done: str) -> None:
        from confluent_kafka import KafkaException

        try:
            future.result(timeout=PATIENCE_SECONDS)
        except KafkaException as error:
            raise ConfigError(
                f"The topic {self.topic} cannot be {done}: {error}",
                "Look at the broker and at what its user may do.",
            ) from error


def producer_options(options: Mapping[str, Any]) -> dict[str, str]:
    """A source's options as the producer takes them: they are written for Kafka's Java client."""
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

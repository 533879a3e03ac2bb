"""A real Kafka Connect worker, with Debezium's Postgres connector unless another is given."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.kafka import Kafka
from tests.servers.process import free_port, running

from thermocline.engine import jars, java

KAFKA, DEBEZIUM = "4.3.1", "3.7.0.Final"
JETTY, JERSEY, HK2, JACKSON = "12.0.34", "3.1.10", "3.0.6", "2.21.2"
WORKER = (
    *(
        f"org.apache.kafka:{name}:{KAFKA}"
        for name in (
            "connect-api", "connect-json", "connect-runtime", "connect-transforms",
            "kafka-clients",
        )
    ),
    *(f"com.fasterxml.jackson.core:jackson-{name}:{JACKSON}" for name in ("core", "databind")),
    "com.fasterxml.jackson.core:jackson-annotations:2.21",
    f"com.fasterxml.jackson.datatype:jackson-datatype-jdk8:{JACKSON}",
    f"com.fasterxml.jackson.jakarta.rs:jackson-jakarta-rs-base:{JACKSON}",
    f"com.fasterxml.jackson.jakarta.rs:jackson-jakarta-rs-json-provider:{JACKSON}",
    f"com.fasterxml.jackson.module:jackson-module-blackbird:{JACKSON}",
    f"com.fasterxml.jackson.module:jackson-module-jakarta-xmlbind-annotations:{JACKSON}",
    "at.yawk.lz4:lz4-java:1.10.2",
    "com.github.luben:zstd-jni:1.5.6-10",
    "io.github.classgraph:classgraph:4.8.179",
    "io.swagger.core.v3:swagger-annotations:2.2.39",
    "jakarta.activation:jakarta.activation-api:2.1.0",
    "jakarta.annotation:jakarta.annotation-api:2.1.1",
    "jakarta.inject:jakarta.inject-api:2.0.1",
    "jakarta.servlet:jakarta.servlet-api:6.0.0",
    "jakarta.validation:jakarta.validation-api:3.0.2",
    "jakarta.ws.rs:jakarta.ws.rs-api:3.1.0",
    "jakarta.xml.bind:jakarta.xml.bind-api:3.0.1",
    "javax.activation:activation:1.1.1",
    "javax.xml.bind:jaxb-api:2.3.1",
    "org.apache.maven:maven-artifact:3.9.15",
    "org.bitbucket.b_c:jose4j:0.9.6",
    "org.codehaus.plexus:plexus-utils:3.6.1",
    *(f"org.eclipse.jetty.ee10:{name}:{JETTY}" for name in (
        "jetty-ee10-servlet", "jetty-ee10-servlets",
    )),
    *(f"org.eclipse.jetty:jetty-{name}:{JETTY}" for name in (
        "alpn-client", "client", "http", "io", "security", "server", "session", "util",
    )),
    f"org.glassfish.hk2.external:aopalliance-repackaged:{HK2}",
    *(f"org.glassfish.hk2:hk2-{name}:{HK2}" for name in ("api", "locator", "utils")),
    "org.glassfish.hk2:osgi-resource-locator:1.0.3",
    *(f"org.glassfish.jersey.containers:jersey-container-{name}:{JERSEY}" for name in (
        "servlet", "servlet-core",
    )),
    *(f"org.glassfish.jersey.core:jersey-{name}:{JERSEY}" for name in (
        "client", "common", "server",
    )),
    f"org.glassfish.jersey.inject:jersey-hk2:{JERSEY}",
    "org.javassist:javassist:3.30.2-GA",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-simple:1.7.36",
    "org.xerial.snappy:snappy-java:1.1.10.7",
)  # fmt: skip
PLUGIN = (
    *(
        f"io.debezium:debezium-{name}:{DEBEZIUM}"
        for name in (
            "api", "config", "connect-plugins", "connector-common", "connector-postgres",
            "openlineage-api", "util",
        )
    ),
    "com.datadoghq:sketches-java:0.8.2",
    f"com.fasterxml.jackson.datatype:jackson-datatype-jsr310:{JACKSON}",
    "com.google.protobuf:protobuf-java:3.25.5",
    "org.postgresql:postgresql:42.7.13",
)  # fmt: skip


@dataclass(frozen=True)
class Connect:
    """A running worker with its log file."""

    uri: str
    pid: int
    log: Path

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.uri}{path}", timeout=10) as answer:
            return json.load(answer)

    def put(self, connector: str, settings: Mapping[str, str]) -> None:
        """Register a connector."""
        request = urllib.request.Request(
            f"{self.uri}/connectors/{connector}/config",
            data=json.dumps(settings).encode(),
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=30).close()

    def failures(self, connector: str) -> list[str]:
        """Return the errors of a connector's failed tasks; empty without a status."""
        try:
            status = self.get(f"/connectors/{connector}/status")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return []
        return [task["trace"] for task in status["tasks"] if task["state"] == "FAILED"]

    def delete(self, connector: str) -> None:
        """Remove a connector, which releases its slot."""
        request = urllib.request.Request(f"{self.uri}/connectors/{connector}", method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()


QUICK = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a small JVM that starts quickly, for tests but not for benchmarks."""


@contextlib.contextmanager
def serve(
    folder: Path,
    kafka: Kafka,
    plugin: Sequence[Path] | None = None,
    flags: Sequence[str] = QUICK,
) -> Iterator[Connect]:
    """Run a worker on a broker, with a connector's jars. Stop it before the broker."""
    plugins = folder / "plugins" / "connector"
    plugins.mkdir(parents=True)
    for jar in jars.resolve(PLUGIN) if plugin is None else plugin:
        shutil.copy(jar, plugins)
    port = free_port()
    settings = {
        "bootstrap.servers": kafka.servers,
        "group.id": "connect",
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.path": str(plugins.parent),
        "plugin.discovery": "service_load",
        "exactly.once.source.support": "enabled",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.flush.interval.ms": "1000",
    }
    for name in ("config", "offset", "status"):
        settings[f"{name}.storage.topic"] = f"connect-{name}"
        settings[f"{name}.storage.replication.factor"] = "1"
    settings["offset.storage.partitions"] = settings["status.storage.partitions"] = "1"
    path = folder / "worker.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    uri = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        try:
            urllib.request.urlopen(f"{uri}/connectors", timeout=5).close()
        except (OSError, urllib.error.URLError):
            return False
        return True

    command: list[str | Path] = [java.find_java().executable, *flags]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    command += ["-cp", ":".join(str(jar) for jar in jars.resolve(WORKER))]
    command += ["org.apache.kafka.connect.cli.ConnectDistributed", path]
    log = folder / "log"
    with running(command, log=log, ready=ready, cwd=folder) as process:
        yield Connect(uri, process.pid, log)

"""A real Trino on a lake's own catalog: one coordinator that is also a worker, on 127.0.0.1.

It needs a newer Java than Spark does. Where there is none, `missing()` says so, and tests that ask
for Trino are skipped with that reason. The server is half a gigabyte: it is fetched and unpacked
once, beside the jars that are kept.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import trino.dbapi
import trino.exceptions
from tests.servers import process
from tests.servers.process import free_port, running

from thermocline.config import Settings
from thermocline.engine import jars, java
from thermocline.engine.spark import CATALOG, warehouse_uri
from thermocline.errors import EngineUnavailable

VERSION = "476"  # the newest that public repositories have with all its parts
OLDEST_JAVA = 24
# Ready in 20 seconds; the first start on a loaded machine took three times as long.
PATIENCE = 240.0
JVM = (
    "-Xmx2g",
    "-XX:+UseSerialGC",
    "-XX:ReservedCodeCacheSize=256M",
    "-Duser.timezone=UTC",
    "-Djdk.attach.allowAttachSelf=true",
    "--add-modules=jdk.incubator.vector",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)


@dataclass(frozen=True)
class Trino:
    """A running server, whose catalog `lake` is the lake's own."""

    url: str
    pid: int
    catalog: str = CATALOG


def missing() -> str | None:
    """Return why Trino cannot run here, or None if it can."""
    return None if _java() else f"Trino {VERSION} needs Java {OLDEST_JAVA} or newer; none was found"


@contextlib.contextmanager
def serve(folder: Path, settings: Settings) -> Iterator[Trino]:
    """Run a Trino with its state in `folder`, on the SQLite catalog and files of a lake."""
    found = _java()
    assert found is not None, missing()
    home, port = _installed(), free_port()
    _configure(folder, settings, port)
    command = [found.executable, *JVM, "-cp", f"{home}/lib/*"]
    command += [f"-Dnode.data-dir={folder}/data", f"-Dconfig={folder}/etc/config.properties"]
    command += [f"-Dlog.levels-file={folder}/etc/log.properties", "io.trino.server.TrinoServer"]
    url = f"http://127.0.0.1:{port}"

    patience, process.PATIENCE = process.PATIENCE, PATIENCE
    try:
        with running(command, log=folder / "log", ready=lambda: _ready(url), cwd=home) as started:
            process.PATIENCE = patience
            yield Trino(url, started.pid)
    finally:
        process.PATIENCE = patience


def _ready(url: str) -> bool:
    """Whether it runs queries: it has started before its own worker is known to it."""
    try:
        with urllib.request.urlopen(f"{url}/v1/info", timeout=5) as response:
            if json.load(response)["starting"]:
                return False
        parts = urlsplit(url)
        connection = trino.dbapi.connect(host=parts.hostname, port=parts.port, user="test")
        with contextlib.closing(connection):
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM system.runtime.nodes WHERE state = 'active'")
            return bool(cursor.fetchall()[0][0])
    except (OSError, trino.exceptions.Error):
        return False


def _java() -> java.Java | None:
    """Return the first Java that is new enough. Spark's Java is older, so each is checked."""
    for pattern in java.JAVA_FOLDERS:
        for home in sorted(Path("/").glob(pattern.lstrip("/"))):
            with contextlib.suppress(EngineUnavailable):
                found = java.find_java({"PATH": ""}, [str(home)])
                if found.version >= OLDEST_JAVA:
                    return found
    return None


def _configure(folder: Path, settings: Settings, port: int) -> None:
    assert settings.catalog.type == "sqlite", "only the embedded catalog is set up here"
    written = {
        "config.properties": {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": f"http://127.0.0.1:{port}",
            "node.environment": "test",
            "node.bind-ip": "127.0.0.1",
            "node.internal-address": "127.0.0.1",
            "plugin.dir": f"{_installed()}/plugin",
            "catalog.config-dir": f"{folder}/etc/catalog",
            "task.concurrency": "2",
        },
        "log.properties": {"io.trino": "WARN"},
        f"catalog/{CATALOG}.properties": {
            "connector.name": "iceberg",
            # Tables say where they are by file: URIs, anywhere on this machine.
            "fs.native-local.enabled": "true",
            "local.location": "/",
            "iceberg.catalog.type": "jdbc",
            "iceberg.jdbc-catalog.catalog-name": CATALOG,
            "iceberg.jdbc-catalog.driver-class": "org.sqlite.JDBC",
            "iceberg.jdbc-catalog.connection-url": (
                f"jdbc:sqlite:{settings.catalog.uri}?busy_timeout=60000"
            ),
            "iceberg.jdbc-catalog.default-warehouse-dir": warehouse_uri(settings),
            "iceberg.jdbc-catalog.schema-version": "V1",
        },
    }
    for name, properties in written.items():
        path = folder / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        path.write_text("".join(lines), encoding="utf-8")


def _installed() -> Path:
    """Return the unpacked server, with the Iceberg connector and SQLite's driver as only plugin."""
    home = jars.cache_folder().parent / f"trino-{VERSION}"
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    # Beside its final place and renamed when whole: a killed test leaves no half of a server.
    with tempfile.TemporaryDirectory(prefix=".trino-", dir=home.parent) as attempt:
        core, connector = _fetched(Path(attempt))
        unpacked = Path(attempt) / "unpacked"
        with tarfile.open(core) as archive:
            archive.extractall(unpacked, filter="data")
        [server] = unpacked.iterdir()
        plugin = Path(attempt) / "plugin"
        with zipfile.ZipFile(connector) as archive:
            archive.extractall(plugin)
        [iceberg] = plugin.iterdir()
        iceberg.rename(server / "plugin" / "iceberg")
        [driver] = jars.resolve([jars.BASE[1]])
        shutil.copy(driver, server / "plugin" / "iceberg")
        with contextlib.suppress(FileExistsError):  # another process was first
            server.rename(home)
    return home


def _fetched(folder: Path) -> tuple[Path, Path]:
    """Fetch the archives of server and connector, in the same way as `jars` fetches jars."""
    wanted = (("trino-server-core", "tar.gz"), ("trino-iceberg", "zip"))
    dependencies = "".join(
        f'<dependency org="io.trino" name="{name}" rev="{VERSION}" conf="default->default"'
        f' transitive="false"><artifact name="{name}" type="{kind}" ext="{kind}"/></dependency>'
        for name, kind in wanted
    )
    description = folder / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0"><info organisation="thermocline" module="trino"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    command = [
        java.find_java().executable,
        "-Xmx256m",
        "-jar",
        jars._find_ivy_jar(),
        "-ivy",
        description,
    ]
    command += ["-confs", "default", "-cache", folder / "cache"]
    subprocess.run(command, check=True, timeout=jars.FETCH_TIMEOUT_SECONDS, capture_output=True)
    core, connector = (
        folder / "cache" / "io.trino" / name / f"{kind}s" / f"{name}-{VERSION}.{kind}"
        for name, kind in wanted
    )
    return core, connector

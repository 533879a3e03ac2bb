"""A real Iceberg REST catalog: the reference implementation that Iceberg tests its clients with.

Iceberg also has a ready-made program around it, which listens on every network interface without
authentication. We join the same parts by a Jetty configuration, so that it stays on 127.0.0.1.

It answers one request after the other: on a conflict inside a transaction over several tables, the
reference implementation forgets the changes and reports success.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.servers.process import free_port, running

from thermocline.engine import jars, java

# 1.11.0: the jar of iceberg-core 1.12.0 is missing from the public repository. Everything that the
# server needs at run time is named, because jars are fetched without what they depend on.
ICEBERG = "1.11.0"
JETTY = "12.1.1"
PACKAGES = (
    f"org.apache.iceberg:iceberg-api:{ICEBERG}",
    f"org.apache.iceberg:iceberg-bundled-guava:{ICEBERG}",
    f"org.apache.iceberg:iceberg-common:{ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",  # the servlet and its adapter
    "com.fasterxml.jackson.core:jackson-annotations:2.21",
    "com.fasterxml.jackson.core:jackson-core:2.21.3",
    "com.fasterxml.jackson.core:jackson-databind:2.21.3",
    "com.github.ben-manes.caffeine:caffeine:2.9.3",
    "jakarta.servlet:jakarta.servlet-api:6.0.0",
    "org.apache.avro:avro:1.12.1",
    "org.apache.httpcomponents.client5:httpclient5:5.6.1",
    "org.apache.httpcomponents.core5:httpcore5:5.4",
    f"org.eclipse.jetty:jetty-http:{JETTY}",
    f"org.eclipse.jetty:jetty-io:{JETTY}",
    f"org.eclipse.jetty:jetty-security:{JETTY}",
    f"org.eclipse.jetty:jetty-server:{JETTY}",
    f"org.eclipse.jetty:jetty-session:{JETTY}",
    f"org.eclipse.jetty:jetty-util:{JETTY}",
    f"org.eclipse.jetty:jetty-xml:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-common:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    "org.roaringbitmap:RoaringBitmap:1.6.14",
    "org.slf4j:slf4j-api:2.0.17",
    "org.slf4j:slf4j-simple:2.0.17",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
# Hadoop, whose file system the server writes metadata with, is in the PySpark wheel.
FROM_SPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "jcl-over-slf4j-*.jar")


@dataclass(frozen=True)
class RestCatalog:
    """A running catalog. `warehouse` is the folder of its tables."""

    uri: str
    warehouse: Path
    pid: int

    def get(self, path: str) -> dict[str, Any]:
        """Return the catalog's JSON response, for example to `v1/config`."""
        with urllib.request.urlopen(f"{self.uri}/{path}", timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def clear(self) -> None:
        """Drop all tables and namespaces, and remove their files."""
        for namespace in self.get("v1/namespaces")["namespaces"]:
            place = "v1/namespaces/" + urllib.parse.quote(".".join(namespace))
            for table in self.get(f"{place}/tables")["identifiers"]:
                self._delete(f"{place}/tables/{urllib.parse.quote(table['name'])}")
            self._delete(place)
        for folder in self.warehouse.iterdir():
            shutil.rmtree(folder)

    def post(self, path: str, body: dict[str, Any]) -> int:
        """Send JSON and return the HTTP status."""
        request = urllib.request.Request(
            f"{self.uri}/{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return int(response.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    def _delete(self, path: str) -> None:
        request = urllib.request.Request(f"{self.uri}/{path}", method="DELETE")
        urllib.request.urlopen(request, timeout=10).close()


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[RestCatalog]:
    """Run a catalog with its state and tables in `folder`; a restart there reuses them."""
    warehouse = folder / "warehouse"
    warehouse.mkdir(exist_ok=True)
    port = free_port()
    configuration = folder / "catalog.xml"
    configuration.write_text(
        _jetty_xml(
            port,
            {
                "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri": f"jdbc:sqlite:{folder}/catalog.db",
                "jdbc.schema-version": "V1",
                # SQLite lets one writer in at a time; a pool of one makes them queue, not fail.
                "clients": "1",
                "warehouse": f"file://{warehouse}",
            },
        ),
        encoding="utf-8",
    )
    command = [str(java.find_java().executable), "-Xmx256m", "-XX:+UseSerialGC"]
    command += ["-XX:TieredStopAtLevel=1", "-Dorg.eclipse.jetty.xml.XmlParser.Validating=false"]
    command += ["-cp", ":".join(map(str, _class_path()))]
    command += ["org.eclipse.jetty.xml.XmlConfiguration", str(configuration)]
    uri = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"{uri}/v1/config", timeout=5):
                return True
        except (OSError, urllib.error.URLError):
            return False

    with running(command, log=folder / "log", ready=ready, cwd=folder) as process:
        yield RestCatalog(uri, warehouse, process.pid)


def _class_path() -> list[Path]:
    spark = importlib.util.find_spec("pyspark")
    assert spark and spark.submodule_search_locations
    bundled = Path(spark.submodule_search_locations[0]) / "jars"
    return jars.resolve(PACKAGES) + [
        path for pattern in FROM_SPARK for path in bundled.glob(pattern)
    ]


def _jetty_xml(port: int, properties: dict[str, str]) -> str:
    entries = "".join(
        f"<Entry><Item>{escape(key)}</Item><Item>{escape(value)}</Item></Entry>"
        for key, value in properties.items()
    )
    return f"""<?xml version="1.0"?>
<Configure id="Server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector"><Arg>
    <New class="org.eclipse.jetty.server.ServerConnector">
      <Arg name="server"><Ref refid="Server"/></Arg>
      <Set name="host">127.0.0.1</Set>
      <Set name="port">{port}</Set>
    </New>
  </Arg></Call>
  <Set name="handler">
    <New class="org.eclipse.jetty.ee10.servlet.ServletContextHandler">
      <Set name="contextPath">/</Set>
      <Call name="addServlet">
        <Arg><New class="org.eclipse.jetty.ee10.servlet.ServletHolder"><Arg>
          <New class="org.apache.iceberg.rest.RESTCatalogServlet"><Arg>
            <New class="org.apache.iceberg.rest.RESTCatalogAdapter"><Arg>
              <Call class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">
                <Arg>lake</Arg>
                <Arg><Map>{entries}</Map></Arg>
                <Arg><New class="org.apache.hadoop.conf.Configuration"/></Arg>
              </Call>
            </Arg></New>
          </Arg></New>
        </Arg></New></Arg>
        <Arg>/*</Arg>
      </Call>
      <Call name="insertHandler"><Arg>
        <New class="org.eclipse.jetty.server.handler.QoSHandler">
          <Set name="maxRequestCount">1</Set>
        </New>
      </Arg></Call>
      <Call name="insertHandler"><Arg>
        <New class="org.eclipse.jetty.compression.server.CompressionHandler">
          <Call name="putCompression"><Arg>
            <New class="org.eclipse.jetty.compression.gzip.GzipCompression"/>
          </Arg></Call>
        </New>
      </Arg></Call>
    </New>
  </Set>
</Configure>
"""

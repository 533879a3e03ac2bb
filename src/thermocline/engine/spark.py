"""The Spark session: one per process, local by default, or on a cluster by its URL."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from thermocline.config import private_files
from thermocline.engine import class_archive, jars, java
from thermocline.engine.gateway import launch_jvm
from thermocline.errors import EngineUnavailable, first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from thermocline.config import Settings

CATALOG = "lake"
"""The catalog's name in every engine, and in the catalog's own tables."""

_CATALOG_PREFIX = f"spark.sql.catalog.{CATALOG}"
# Second option: Spark compiles all steps of a stage into one method, and by default Java only
# interprets methods of more than 8,000 bytes. Strict parsing of ten JSON fields exceeds that.
_JVM_OPTIONS = "-Duser.timezone=UTC -XX:-DontCompileHugeMethods"
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_LOG_PATH_VARIABLE = "THERMOCLINE_SPARK_LOG"
"""Variable with the path of the JVM's log: a path in an option would need escaping."""
_LOG4J_FILE = Path(__file__).with_name("log4j2.properties")
_ENFORCED_CONF = {
    # Spark replaces ${env:NAME}, ${system:NAME} and ${setting} in the text of a statement before it
    # parses it: in any literal, name or comment, secrets among them. No text of ours is a template.
    "spark.sql.variable.substitute": "false",
}
"""Settings of every session that a project cannot change."""
TRANSLATED_SQL_CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.caseSensitive": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
}
"""Settings that translated SQL relies on: errors instead of wrong values, no digits lost to a wider
type, and subqueries, times and texts as the standard has them."""


class SparkEngine:
    """Spark for one lake. The session starts at first use and is shared by the whole process."""

    name = "spark"
    dialect = "spark"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: SparkSession | None = None
        self._translated: SparkEngine | None = None
        self._added: set[str] = set()

    @property
    def started(self) -> bool:
        """Return whether this engine's session exists."""
        return self._session is not None

    @property
    def session(self) -> SparkSession:
        """Return the session, which is started on first use."""
        if self._session is None:
            self._session = _start_session(self._settings)
        return self._session

    def beside(self, conf: Mapping[str, str] | None = None) -> SparkSession:
        """Return another session on the same lake, with its own temporary views and settings."""
        session = _new_session(self.session, self._settings)
        apply_conf(session, conf or {})
        return session

    @property
    def translated(self) -> SparkEngine:
        """Return the same Spark with the settings that translated SQL requires.

        It has its own temporary views.
        """
        if self._translated is None:
            self._translated = SparkEngine(self._settings)
            self._translated._session = self.beside(TRANSLATED_SQL_CONF)
        return self._translated

    def add_jars(self, packages: Sequence[str]) -> None:
        """Add jars to the session, whether or not it has started."""
        missing = [each for each in packages if each not in self._added]
        if not missing:
            return
        # Loaded in the class loader that driver, sessions and local executors share. With `add jar`
        # each has its own classes, and Spark refuses a connector that registers its settings
        # twice in one JVM.
        loader = _find_shared_class_loader(self.session)
        for jar in jars.resolve(missing):
            if loader is not None:
                file: Any = self.session._jvm.java.io.File(str(jar))  # type: ignore[union-attr]
                loader.addURL(file.toURI().toURL())
            if loader is None or not self._settings.spark.master.startswith("local"):
                escaped = str(jar).replace("\\", "\\\\").replace("'", "\\'")
                self.session.sql(f"add jar '{escaped}'")
        self._added.update(missing)

    def read(self, table: str, snapshot: int) -> DataFrame:
        """Return a table at one snapshot; later commits do not change it."""
        reader = self.session.read.option("versionAsOf", str(snapshot))
        return reader.table(f"{CATALOG}.{table}")

    def view(self, name: str, table: str, snapshot: int) -> None:
        """Create a temporary view of a table at one snapshot."""
        self.read(table, snapshot).createOrReplaceTempView(name)

    def frame(self, rows: pa.Table, schema: StructType | str) -> DataFrame:
        """Return Arrow rows as a Spark DataFrame.

        The chunks are combined first: PySpark 4.1 sends one batch per chunk, and its JVM side
        treats an empty batch as the end of the stream, so later rows would be lost silently.
        """
        return self.session.createDataFrame(rows.combine_chunks(), schema=schema)

    def sql(self, text: str) -> DataFrame:
        """Plan a statement in Spark's dialect."""
        return self.session.sql(text)

    def query(self, text: str) -> pa.Table:
        """Run a query and return its rows in canonical Arrow form."""
        from thermocline.engine.arrow import normalize

        return normalize(self.session.sql(text).toArrow())

    def stop(self) -> None:
        """Stop the session."""
        if self._session is not None:
            self._session.stop()
            self._session = self._translated = None


def build_catalog_conf(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """Return Spark's configuration of the lake's catalog, and its secrets separately.

    PySpark passes options on the JVM's command line, which every user of the machine can read. So
    secrets are set on the running session, before the catalog is used.
    """
    catalog, secret = settings.catalog, {}
    conf = {
        _CATALOG_PREFIX: "org.apache.iceberg.spark.SparkCatalog",
        f"{_CATALOG_PREFIX}.warehouse": warehouse_uri(settings),
        # Other engines commit to the same tables: a cached table would be a stale one.
        f"{_CATALOG_PREFIX}.cache-enabled": "false",
    }
    if catalog.type == "rest":
        conf |= {f"{_CATALOG_PREFIX}.type": "rest", f"{_CATALOG_PREFIX}.uri": catalog.uri}
        for key, value in (("token", catalog.token), ("credential", catalog.credential)):
            if value is not None:
                secret[f"{_CATALOG_PREFIX}.{key}"] = value.reveal()
    else:
        conf |= {
            f"{_CATALOG_PREFIX}.type": "jdbc",
            f"{_CATALOG_PREFIX}.uri": _build_jdbc_uri(settings),
            f"{_CATALOG_PREFIX}.jdbc.schema-version": "V1",
        }
        if catalog.user:
            conf[f"{_CATALOG_PREFIX}.jdbc.user"] = catalog.user
        if catalog.password is not None:
            secret[f"{_CATALOG_PREFIX}.jdbc.password"] = catalog.password.reveal()
    conf |= {f"{_CATALOG_PREFIX}.{key}": value for key, value in catalog.properties.items()}
    if uses_s3(settings):
        _add_s3_conf(settings, conf, secret)
    return conf, secret


def uses_s3(settings: Settings) -> bool:
    """Return whether the warehouse or the object store settings require S3."""
    return settings.warehouse.startswith("s3://") or bool(settings.s3.endpoint)


def warehouse_uri(settings: Settings) -> str:
    """Return the warehouse as a URI, the same in every engine."""
    if "://" in settings.warehouse:
        return settings.warehouse
    return Path(settings.warehouse).as_uri()


def _build_jdbc_uri(settings: Settings) -> str:
    if settings.catalog.type == "sqlite":
        return f"jdbc:sqlite:{settings.catalog.uri}?busy_timeout=60000"
    parts = urlsplit(settings.catalog.uri)
    host = parts.hostname or "127.0.0.1"
    query = f"?{parts.query}" if parts.query else ""
    return f"jdbc:postgresql://{host}:{parts.port or 5432}{parts.path}{query}"


def _add_s3_conf(settings: Settings, conf: dict[str, str], secret: dict[str, str]) -> None:
    s3 = settings.s3
    if settings.warehouse.startswith("s3://"):
        conf[f"{_CATALOG_PREFIX}.io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
    pairs = {
        f"{_CATALOG_PREFIX}.s3.endpoint": s3.endpoint,
        f"{_CATALOG_PREFIX}.client.region": s3.region,
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": s3.region,
    }
    conf |= {key: value for key, value in pairs.items() if value}
    path_style = str(s3.path_style).lower()
    conf[f"{_CATALOG_PREFIX}.s3.path-style-access"] = path_style
    conf["spark.hadoop.fs.s3a.path.style.access"] = path_style
    conf["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    if s3.access_key is not None and s3.secret_key is not None:
        secret |= {
            f"{_CATALOG_PREFIX}.s3.access-key-id": s3.access_key.reveal(),
            f"{_CATALOG_PREFIX}.s3.secret-access-key": s3.secret_key.reveal(),
            "spark.hadoop.fs.s3a.access.key": s3.access_key.reveal(),
            "spark.hadoop.fs.s3a.secret.key": s3.secret_key.reveal(),
        }


def _build_base_conf(settings: Settings) -> dict[str, str]:
    spark = settings.spark
    packages = (*jars.BASE, *(jars.S3 if uses_s3(settings) else ()), *spark.packages)
    conf = {
        "spark.app.name": f"thermocline-{settings.name}",
        "spark.master": spark.master,
        "spark.driver.memory": spark.memory,
        "spark.jars": ",".join(path.as_uri() for path in jars.resolve(packages)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(spark.shuffle_partitions),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # For a union of files with two schemas, this rule makes Spark 4.1 reject its own plan as
        # invalid. Its benefit elsewhere is hardly measurable.
        "spark.sql.optimizer.excludedRules": (
            "org.apache.spark.sql.catalyst.optimizer.FoldablePropagation"
        ),
        "spark.sql.warehouse.dir": (settings.project / private_files.FOLDER / "spark").as_uri(),
        "spark.redaction.regex": "(?i)secret|password|token|credential|access[.-]?key",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j.configurationFile={_LOG4J_FILE.as_uri()} "
            f"{_JVM_OPTIONS} {_choose_garbage_collector()} {class_archive.archive_options()}"
        ).strip(),
        "spark.executor.extraJavaOptions": _JVM_OPTIONS,
    }
    if spark.master.startswith("local"):
        conf["spark.driver.host"] = "127.0.0.1"
        conf["spark.driver.bindAddress"] = "127.0.0.1"
    return conf


def _find_shared_class_loader(session: SparkSession) -> Any:
    """Return the class loader of spark-submit, the parent of all others, or None."""
    jvm: Any = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    while loader is not None:
        if loader.getClass().getSimpleName() == "MutableURLClassLoader":
            return loader
        loader = loader.getParent()
    return None


def _choose_garbage_collector() -> str:
    """Return the option for the garbage collector, unless the environment already sets one.

    Batches need throughput: on two cores this collector used a tenth less CPU than the default.
    """
    options = " ".join(os.environ.get(name, "") for name in _JAVA_VARIABLES)
    return "" if re.search(r"-XX:\+Use\w+GC", options) else "-XX:+UseParallelGC"


def _start_session(settings: Settings) -> SparkSession:
    home = java.find_java().home
    os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # PySpark prints a page of JSON for every failed query; we report errors ourselves.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if running is not None:
        # One JVM per process. Another lake gets its own session in it, with its own catalog.
        return _new_session(running, settings)
    catalog, secret = build_catalog_conf(settings)
    builder = SparkSession.builder
    conf = {**_build_base_conf(settings), **catalog, **settings.spark.conf, **_ENFORCED_CONF}
    for key, value in conf.items():
        builder = builder.config(key, value)
    log = private_files.ensure_log(settings.project, "spark.log")
    os.environ[_LOG_PATH_VARIABLE] = str(log)
    try:
        with launch_jvm(conf, log), _keep_signal_handler():
            session = builder.getOrCreate()
    except (PySparkRuntimeError, OSError) as error:
        raise EngineUnavailable(
            f"Spark did not start on {settings.spark.master}: {first_line(error)}",
            f"See {log}, or run `thermo doctor`.",
        ) from error
    # PySpark's accumulator server prints a traceback if the JVM ends before this process. Every
    # call to a dead JVM already reports that.
    server: Any = session.sparkContext._accumulatorServer
    server.handle_error = lambda *_: None
    apply_conf(session, {**catalog, **secret, **_ENFORCED_CONF})
    _disable_checksum_files(session)
    return session


@contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Keep the handler of Ctrl-C: PySpark's would interrupt any call in progress."""
    from pyspark.core import context

    pysparks: Any = context
    pysparks.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        pysparks.signal = signal


def _new_session(running: SparkSession, settings: Settings) -> SparkSession:
    """Return a new session in the same JVM. It inherits only the settings of the JVM's start.

    These have no secrets, so that no log and no list of settings shows any.
    """
    session = running.newSession()
    catalog, secret = build_catalog_conf(settings)
    apply_conf(session, {**catalog, **secret, **_ENFORCED_CONF})
    return session


def _disable_checksum_files(session: SparkSession) -> None:
    """Keep Hadoop from writing a .crc file next to every file on local disk.

    The raw file system would also avoid it, but Spark cannot cache DataFrames on it. This changes
    the instance shared in the JVM; executors of a cluster still write .crc files.
    """
    context = session.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs.FileSystem  # type: ignore[union-attr]
    hadoop.getLocal(context._jsc.hadoopConfiguration()).setWriteChecksum(False)


def apply_conf(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Set catalog and file-system options on a running session."""
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    for key, value in conf.items():
        if key.startswith("spark.hadoop."):
            hadoop.set(key.removeprefix("spark.hadoop."), value)
        else:
            session.conf.set(key, value)

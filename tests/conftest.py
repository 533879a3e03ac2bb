"""Fixtures of all tests: one Spark session per process, a new embedded lake per test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests import durations

# Every run uses the same examples, so results are reproducible. `make soak` searches new ones; a
# failing one becomes an explicit example.
settings.register_profile("fixed", derandomize=True)
SOAK = int(os.environ.get("SOAK") or 0)
settings.register_profile("soak", max_examples=max(SOAK, 1), print_blob=True)
settings.load_profile("soak" if SOAK else "fixed")

pytest_plugins = ["tests.servers.fixtures"]

# No JVM here lives long enough to profit from the optimizing compiler: without it, Spark used 48
# CPU seconds instead of 78 for a few dozen small statements. The code cache then defaults to 48
# MB, and code that does not fit is interpreted.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

# Streams and servers of tests run without the maintenance service, so that a table has the files
# that the test wrote; tests of the service turn it on.
SERVICE_OFF = {"THERMOCLINE_MAINTAIN__SERVICE": "off"}
os.environ.update(SERVICE_OFF)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.lake import Lake


MEMORY = "2g"
SETTINGS = f"""
[lake]
name = "test"
[engine.spark]
master = "local[2]"
memory = "{MEMORY}"
shuffle_partitions = 2
"""
"""Settings of every lake whose Spark runs in the test process: the first starts the shared JVM."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make durations`."""
    parser.addoption("--refresh-durations", action="store_true", help="keep how long files took")


def pytest_configure(config: pytest.Config) -> None:
    """Measure durations in the process that receives all reports."""
    if config.getoption("--refresh-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Measured())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order test files for the processes."""
    items[:] = durations.ordered(items)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return an empty project with the defaults: SQLite catalog, local files."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "thermocline.toml").write_text(SETTINGS)
    return folder


@pytest.fixture
def lake(project: Path) -> Iterator[Lake]:
    """Return a new embedded lake. Its Spark session uses the JVM of this process."""
    from thermocline.config import load_settings
    from thermocline.lake import Lake

    opened = Lake(load_settings(project, environ=clean_environment()))
    yield opened
    opened.duck.stop()
    if opened.spark.started:
        # Were it less, a test would fail for want of memory when another file has come first.
        assert opened.spark.session.conf.get("spark.driver.memory") == MEMORY


@pytest.fixture
def spark(lake: Lake) -> SparkSession:
    """Return the lake's Spark session."""
    return lake.spark.session


@pytest.fixture
def call_to_an_ended_jvm() -> Callable[[], None]:
    """Return a function that fails like any call to Java after the JVM died."""
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
    from tests.servers.process import free_port

    there = JavaParameters(port=free_port())
    bridge = ClientServer(there, PythonParameters(port=0, eager_load=False))
    return lambda: bridge.jvm.java.lang.System.currentTimeMillis()


def clean_environment() -> dict[str, str]:
    """Return the environment without Thermocline's settings, so that tests do not depend on it."""
    others = {k: v for k, v in os.environ.items() if not k.startswith("THERMOCLINE_")}
    return others | SERVICE_OFF

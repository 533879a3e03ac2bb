"""Fixtures that all tests share: one Spark session a process, a fresh embedded lake a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests import durations

# What was green yesterday is green today: the same examples in every run. `make soak` looks for
# new ones, and what it finds becomes an explicit example.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("soak", max_examples=2_000, print_blob=True)
settings.load_profile("soak" if os.environ.get("SOAK") else "fixed")

pytest_plugins = ["tests.servers.fixtures"]

# Of the JVMs here none lives long enough to gain from compiling well: Spark's took 48 CPU seconds
# instead of 78 for a few dozen small statements. Compiled so, they have room for 48 MB of code
# unless told otherwise, and what finds no room is interpreted.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

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
"""Of every lake whose Spark runs in the process of the tests: the first starts the JVM for all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option by which `make durations` measures."""
    parser.addoption("--refresh-durations", action="store_true", help="keep how long files took")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in the process that hears of all tests."""
    if config.getoption("--refresh-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Measured())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order in which processes take them."""
    items[:] = durations.ordered(items)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project with the embedded default: SQLite catalog, local files."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "thermocline.toml").write_text(SETTINGS)
    return folder


@pytest.fixture
def lake(project: Path) -> Iterator[Lake]:
    """A fresh embedded lake. Its Spark session, if asked for, lives in this process's one JVM."""
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
    """The lake's Spark session."""
    return lake.spark.session


@pytest.fixture
def call_to_an_ended_jvm() -> Callable[[], None]:
    """What fails as every call to Java does once the JVM is gone."""
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
    from tests.servers.process import free_port

    there = JavaParameters(port=free_port())
    bridge = ClientServer(there, PythonParameters(port=0, eager_load=False))
    return lambda: bridge.jvm.java.lang.System.currentTimeMillis()


def clean_environment() -> dict[str, str]:
    """The environment without settings of ours, so that tests don't depend on who runs them."""
    return {k: v for k, v in os.environ.items() if not k.startswith("THERMOCLINE_")}

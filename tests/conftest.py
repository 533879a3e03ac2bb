"""Fixtures that all tests share: one Spark session a process, a fresh embedded lake a test."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest_plugins = ["tests.servers.fixtures"]

# Of the JVMs here none lives long enough to gain from compiling well: Spark's took 48 CPU seconds
# instead of 78 for a few dozen small statements. Compiled so, they have room for 48 MB of code
# unless told otherwise, and what finds no room is interpreted.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.lake import Lake


LONGEST = (
    "e2e/test_readme.py", "e2e/test_cluster.py", "e2e/test_torture.py", "e2e/test_crashes.py",
    "integration/serve/test_same_answer.py", "integration/serve/test_trino_cold.py",
    "integration/serve/test_trino_served.py", "integration/serve/test_trino_clients.py",
    "integration/test_worker_kills.py", "integration/test_random_models.py",
)  # fmt: skip
"""Files that take minutes. They begin first, so that in the end no process works alone."""
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order in which processes take them: the longest, then those of many tests."""
    here = Path(__file__).parent
    assert all((here / each).is_file() for each in LONGEST), "a file in LONGEST is gone"
    longest = {here / each: place for place, each in enumerate(LONGEST)}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (longest.get(item.path, len(longest)), -sizes[item.path]))


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
    from thermocline.config import load
    from thermocline.lake import Lake

    opened = Lake(load(project, environ=clean_environment()))
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

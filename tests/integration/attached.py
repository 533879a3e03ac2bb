"""Processes of their own that work in the JVM of the test, which saves them the start of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import clean_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTACHED = """
import sys
# Work in the JVM of the test: its session is there, only not yet in this process.
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
gateway = launch_gateway()
running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
SparkSession(SparkContext(gateway=gateway, jsc=java))
SparkSession.stop = lambda session: None  # it is not ours to stop
"""
COMMAND = "from thermocline.__main__ import main\nsys.exit(main())"
"""The code of a child that is the command `thermo`."""


def child(spark: SparkSession, code: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """A process of its own that works in this process's JVM."""
    gateway: Any = spark.sparkContext._gateway
    environment = clean_environment() | more
    environment["PYSPARK_GATEWAY_PORT"] = str(gateway.gateway_parameters.port)
    environment["PYSPARK_GATEWAY_SECRET"] = gateway.gateway_parameters.auth_token
    return subprocess.Popen(
        [sys.executable, "-c", ATTACHED + code, *arguments],
        cwd=Path(__file__).parents[2],
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

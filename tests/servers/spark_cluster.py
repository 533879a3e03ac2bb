"""A real standalone Spark cluster, from the PySpark wheel: a master and two workers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.process import free_port, running

from thermocline.engine import java

WORKERS = 2


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster. `master` is the URL for applications."""

    master: str
    status_page: str
    pids: tuple[int, ...]

    def status(self) -> dict[str, Any]:
        """Return the master's state: workers, active and completed applications."""
        with urllib.request.urlopen(self.status_page, timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
            return answer


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[SparkCluster]:
    """Run a master and two workers, each with one core and 1 GB for executors."""
    home = importlib.util.find_spec("pyspark")
    assert home and home.submodule_search_locations
    spark_class = Path(home.submodule_search_locations[0]) / "bin" / "spark-class"
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", str(folder)),
        "JAVA_HOME": str(java.find_java().home),
        "SPARK_HOME": str(spark_class.parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",  # for the status pages too, which else are open to all
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # a fixed port, for nothing here
        "PYSPARK_PYTHON": sys.executable,
    }
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    cluster = SparkCluster(master, f"http://127.0.0.1:{page}/json/", ())

    def alive(workers: int) -> bool:
        try:
            return bool(cluster.status()["aliveworkers"] == workers)
        except (OSError, urllib.error.URLError, ValueError):
            return False

    with contextlib.ExitStack() as stack:
        command: list[str | Path] = [spark_class, "org.apache.spark.deploy.master.Master"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
        log = folder / "master.log"
        started = [running(command, log=log, ready=lambda: alive(0), environ=environ)]
        for number in range(1, WORKERS + 1):
            place = folder / f"worker-{number}"
            command = [spark_class, "org.apache.spark.deploy.worker.Worker"]
            command += ["--host", "127.0.0.1", "--webui-port", str(free_port())]
            command += ["--cores", "1", "--memory", "1g", "--work-dir", place, master]
            log = folder / f"worker-{number}.log"
            # Awaited only after the last, so that they start side by side.
            last = number == WORKERS
            ready = (lambda: alive(WORKERS)) if last else (lambda: True)
            started.append(running(command, log=log, ready=ready, environ=environ))
        processes = [stack.enter_context(each) for each in started]
        yield SparkCluster(master, cluster.status_page, tuple(each.pid for each in processes))

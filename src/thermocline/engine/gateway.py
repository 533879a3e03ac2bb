"""Start the JVM of PySpark, so that it never outlives this process.

PySpark's own launcher loses the JVM when it is interrupted, and leaves it attached to the terminal.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from thermocline import interrupt
from thermocline.errors import EngineUnavailable

_CONNECTION_FILE_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT_VARIABLE, _SECRET_VARIABLE = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


@contextmanager
def launch_jvm(conf: Mapping[str, str], log: Path) -> Iterator[None]:
    """Start a JVM with this configuration; inside the block PySpark connects to it.

    Its output goes to `log`. The JVM ends when this process ends for any reason, because its
    standard input is then closed.
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None or _PORT_VARIABLE in os.environ:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="thermocline-jvm-"))
    try:
        with log.open("ab") as printed:
            process = interrupt.start_child(
                _build_command(conf),
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "SPARK_CONNECT_MODE": "0",
                    _CONNECTION_FILE_VARIABLE: str(folder / "connection"),
                },
            )
        try:
            os.environ[_PORT_VARIABLE], os.environ[_SECRET_VARIABLE] = _wait_for_connection(
                process, folder, log
            )
            yield
        except BaseException:
            interrupt.kill_child(process)
            raise
        _processes.append(process)
        atexit.register(_forget_java_objects)
    finally:
        for name in (_PORT_VARIABLE, _SECRET_VARIABLE):
            os.environ.pop(name, None)
        shutil.rmtree(folder, ignore_errors=True)


_processes: list[subprocess.Popen[bytes]] = []
"""References to the JVMs: a JVM ends when the pipe to it is closed."""


def started_processes() -> list[subprocess.Popen[bytes]]:
    """Return the JVMs that this process has started."""
    return list(_processes)


def _forget_java_objects() -> None:
    """Tell Java of no more collected objects: its JVM is ending, and py4j would print an error."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        SparkContext._gateway.gateway_client.is_connected = False


def _build_command(conf: Mapping[str, str]) -> list[str]:
    from pyspark import find_spark_home

    home: str = find_spark_home._find_spark_home()  # type: ignore[no-untyped-call]
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return [str(Path(home) / "bin" / "spark-submit"), *settings, *arguments]


def _wait_for_connection(
    process: subprocess.Popen[bytes], folder: Path, log: Path
) -> tuple[str, str]:
    """Return the port and the secret that the JVM writes to a file once it listens."""
    place = folder / "connection"
    while not place.is_file():
        if (code := process.poll()) is not None:
            raise EngineUnavailable(
                f"Spark did not start: its JVM ended with code {code}.",
                f"See {log}, or run `thermo doctor`.",
            )
        time.sleep(0.05)
    written = place.read_bytes()  # two numbers of four bytes: the port, and the secret's length
    return str(int.from_bytes(written[:4], "big")), written[8:].decode()

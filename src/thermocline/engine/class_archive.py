"""An archive of Spark's loaded classes, which halves what the start of a JVM costs.

A JVM spends most of its start on reading, verifying and linking some twenty thousand classes.
Java's class data sharing maps them from an archive instead. `python -m
thermocline.engine.class_archive` starts Spark once, executes typical statements and has the JVM
write the archive at its exit; every later session of the same Java and the same Spark uses it.
`make java` and `thermo doctor --fix` do so.

Without an archive, or with one that does not fit, Spark starts as it always did: the JVM checks
Java's version and every jar, and ignores an archive that was made from others.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline import interrupt
from thermocline.engine import jars, java
from thermocline.errors import EngineUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT_ARCHIVES = 3
"""Each is of about 180 MB. An upgrade of Java or Spark leaves one behind."""
_EXIT_SECONDS = 120.0


def archive_options(environ: Mapping[str, str] = os.environ) -> str:
    """Return the JVM options that use the archive; none when it does not exist."""
    path = find_archive_path(environ)
    if not path.is_file() or re.search(r"[\s'\"\\]", str(path)):
        return ""
    return f"-XX:SharedArchiveFile={path} -Xlog:cds=off -Xlog:cds+dynamic=off"


def find_archive_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the archive of this Java and this Spark is, whether it exists or not."""
    home = java.find_java(environ).home.resolve()
    identity = hashlib.sha256(str(home).encode())
    with suppress(OSError):
        identity.update((home / "release").read_bytes())
    for jar in sorted(_spark_home().glob("jars/*.jar")):
        found = jar.stat()
        identity.update(f"{jar} {found.st_size} {found.st_mtime_ns}\n".encode())
    return _folder(environ) / f"spark-{identity.hexdigest()[:24]}.jsa"


def create_archive(environ: Mapping[str, str] = os.environ) -> Path:
    """Create the archive unless it exists; takes about 20 seconds. This process starts the JVM."""
    path = find_archive_path(environ)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        _record_classes(Path(scratch), made)
        if not made.is_file():
            raise EngineUnavailable(
                "Java did not write an archive of Spark's classes.",
                "Spark works without it; it starts some seconds later.",
            )
        made.replace(path)
    _remove_old_archives(path.parent)
    return path


def create_in_child(environ: Mapping[str, str] = os.environ) -> bool:
    """Create the archive in a process of its own; return False if it exists or cannot be made."""
    if find_archive_path(environ).is_file():
        return False
    command = [sys.executable, "-m", __name__]
    child = interrupt.start_child(command, env=dict(environ), stdout=subprocess.DEVNULL)
    return bool(child.wait() == 0)


def _record_classes(scratch: Path, archive: Path) -> None:
    """Run typical statements in a session whose JVM writes the archive when it exits."""
    from thermocline.config import load_settings
    from thermocline.engine import gateway
    from thermocline.engine.spark import SparkEngine

    (scratch / "thermocline.toml").write_text('[lake]\nname = "class-archive"\n')
    (scratch / "lake").mkdir()
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={archive}"
    session = SparkEngine(load_settings(scratch)).session
    _execute_typical_statements(session, scratch)
    jvm: Any = session._jvm
    with suppress(Exception):  # the call never returns: its JVM is gone
        jvm.java.lang.System.exit(0)
    for process in gateway.started_processes():
        process.wait(_EXIT_SECONDS)


def _execute_typical_statements(session: SparkSession, scratch: Path) -> None:
    from thermocline.engine.spark import CATALOG

    table = f"{CATALOG}.bronze.events"
    frame = session.range(1000).selectExpr("id", "id % 7 as kind", "cast(id as string) as text")
    frame.write.json(str(scratch / "json"))
    frame.write.parquet(str(scratch / "parquet"))
    frame = session.read.schema(frame.schema).json(str(scratch / "json"))
    frame.createOrReplaceTempView("new_events")
    session.sql(f"create namespace if not exists {CATALOG}.bronze")
    session.sql(f"create table {table} (id bigint, kind bigint, text string)"
                " using iceberg partitioned by (kind)")  # fmt: skip
    frame.writeTo(table).append()
    session.sql(f"merge into {table} t using new_events s on t.id = s.id"
                " when matched then update set * when not matched then insert *")  # fmt: skip
    session.sql(f"select kind, count(*), sum(id) over (partition by kind) from {table}"
                " group by kind, id order by 1, 3").collect()  # fmt: skip
    session.table(table).toArrow()
    session.read.parquet(str(scratch / "parquet")).join(frame, "id").count()


def _spark_home() -> Path:
    from pyspark import find_spark_home

    return Path(find_spark_home._find_spark_home())  # type: ignore[no-untyped-call]


def _folder(environ: Mapping[str, str]) -> Path:
    return jars.cache_folder(environ).parent / "class-archives"


def _remove_old_archives(folder: Path) -> None:
    """Keep the newest archives. A JVM that uses one keeps its file open."""
    archives = sorted(folder.glob("spark-*.jsa"), key=lambda each: -each.stat().st_mtime)
    for each in archives[_KEPT_ARCHIVES:]:
        each.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        create_archive()
    except EngineUnavailable as error:
        sys.exit(str(error))

"""Fetch and cache the additional Java libraries that Spark needs.

Spark resolves packages with Apache Ivy, which the PySpark wheel includes. Ivy runs here once,
before the session: a session with local files starts seconds faster than one that resolves
packages, and works offline.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from thermocline import interrupt
from thermocline.engine import java
from thermocline.errors import BadInput, EngineUnavailable

# Pinned versions, fetched without their dependencies: each is complete, or complete together with
# Spark's own jars, and a second Hadoop or Scala on the class path breaks Spark.
ICEBERG = "1.12.0"  # the newest; Iceberg has no runtime for Spark 4.2 or later
AWS_SDK = "2.54.17"  # the one inside that Iceberg's AWS bundle; parts of two don't mix
BASE = (
    f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}",
    "org.xerial:sqlite-jdbc:3.50.3.0",  # the embedded catalog
    "org.postgresql:postgresql:42.7.8",  # the team catalog
)
S3 = (
    f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",  # S3FileIO and the AWS SDK it speaks with
    "org.apache.hadoop:hadoop-aws:3.4.2",  # s3a:// for landing folders; the Hadoop of Spark 4.1
    # Two parts of the AWS SDK that hadoop-aws uses and Iceberg's bundle leaves out, small beside
    # the SDK of hundreds of megabytes that hadoop-aws itself asks for.
    f"software.amazon.awssdk:s3-transfer-manager:{AWS_SDK}",
    f"software.amazon.awssdk:apache-client:{AWS_SDK}",
)
KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
    # Spark's connector needs it, and it is not published at the connector's own versions; this
    # one has the same classes, and was tried with them against Kafka 4.3.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.1",  # the one that this connector is built with
    "org.apache.commons:commons-pool2:2.12.1",  # keeps the connector's consumers
)
# What was reviewed is what runs: a pinned jar with other content is refused.
SHA256 = {
    BASE[0]: "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    BASE[1]: "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
    BASE[2]: "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
    S3[0]: "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    S3[1]: "d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9",
    S3[2]: "7bef0ea4efd5e0860bab63e08317040951edb51b72a5be734284c28b8324ab87",
    S3[3]: "0b00ae3d55c3d1213ca47b5651dc4c2a0080fc9b6192dde3d53c3da6c1811bcb",
    KAFKA[0]: "cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
    KAFKA[1]: "ab6e27a8a47ce63348dd0ecbd5543dc6212b4783180305cde5749e79684ea97b",
    KAFKA[2]: "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    KAFKA[3]: "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
}

# Half a gigabyte over a slow line; a longer fetch is aborted.
FETCH_TIMEOUT_SECONDS = 1800
_FETCH_PREFIX = ".fetch-"  # prefix of the folder of a fetch in progress

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Package:
    """One jar by its Maven coordinate: `group:artifact:version` or `…:version:classifier`."""

    group: str
    artifact: str
    version: str
    classifier: str = ""

    @classmethod
    def parse(cls, coordinate: str) -> Package:
        # The parts become file names and XML, so only ordinary characters are allowed.
        if not re.fullmatch(r"\w[\w.-]*(:\w[\w.-]*){2,3}", coordinate, flags=re.ASCII):
            raise BadInput(
                f"{coordinate!r} is not a Maven coordinate.",
                "Write group:artifact:version, such as org.postgresql:postgresql:42.7.8.",
            )
        return cls(*coordinate.split(":"))

    @property
    def filename(self) -> str:
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + ".jar"

    def __str__(self) -> str:
        return ":".join(filter(None, (self.group, self.artifact, self.version, self.classifier)))


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of cached jars: in THERMOCLINE_CACHE, or in the user's cache folder."""
    if environ.get("THERMOCLINE_CACHE"):
        root = Path(environ["THERMOCLINE_CACHE"])
    elif environ.get("XDG_CACHE_HOME"):
        root = Path(environ["XDG_CACHE_HOME"]) / "thermocline"
    else:
        root = Path.home() / ".cache" / "thermocline"
    return root.absolute() / "jars"


def find_missing(packages: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return those of `packages` that `resolve` would have to fetch."""
    folder = cache_folder(environ)
    return [each for each in packages if not _jar_path(folder, Package.parse(each)).is_file()]


def resolve(
    packages: Sequence[str],
    announce: Announce | None = None,
    environ: Mapping[str, str] = os.environ,
    hashes: Mapping[str, str] = SHA256,
) -> list[Path]:
    """Return the jars of `packages` as local files, in the same order.

    Fetches jars that are not cached, and only then starts a JVM; `announce` receives a progress
    message for each. A file appears under its name only when it is complete and matches its hash in
    `hashes`, if it has one. Processes may call this concurrently: one fetches, the others wait.
    Raises EngineUnavailable if a jar cannot be fetched.
    """
    folder = cache_folder(environ)
    if find_missing(packages, environ):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder / ".lock"):
                missing = [Package.parse(each) for each in find_missing(packages, environ)]
                if missing:
                    _fetch(missing, folder, announce or (lambda _: None), environ, hashes)
        except OSError as error:
            raise EngineUnavailable(
                f"Jars cannot be stored in {folder}: {error.strerror or error}.",
                "Make the folder writable, or set THERMOCLINE_CACHE to another folder.",
            ) from error
    return [_jar_path(folder, Package.parse(each)) for each in packages]


def _jar_path(folder: Path, package: Package) -> Path:
    return folder / package.group / package.filename


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock `path` against other processes; the system releases it if its holder dies."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(
    missing: Sequence[Package],
    folder: Path,
    announce: Announce,
    environ: Mapping[str, str],
    hashes: Mapping[str, str],
) -> None:
    _remove_leftovers(folder)
    # On the same file system as the final folder, so that a rename is atomic. Ivy gets a new cache
    # in it, because a shared cache may be broken or incomplete.
    with tempfile.TemporaryDirectory(prefix=_FETCH_PREFIX, dir=folder) as attempt:
        # Files are taken from the cache: Ivy's retrieval returns nothing if one of many fails.
        cache = Path(attempt) / "cache"
        log = _run_ivy(missing, Path(attempt), cache, announce, environ)
        failed = []
        for package in missing:
            fetched = cache / package.group / package.artifact / "jars" / package.filename
            if not fetched.is_file() or not zipfile.is_zipfile(fetched):
                failed.append(package)
                continue
            _verify(fetched, package, hashes)
            _sync_to_disk(fetched)
            final = _jar_path(folder, package)
            final.parent.mkdir(exist_ok=True)
            fetched.replace(final)
    if failed:
        failure_log = folder / "last-failure.log"
        failure_log.write_text(log, encoding="utf-8")
        raise EngineUnavailable(
            f"Jars that Spark needs could not be fetched: {', '.join(map(str, failed))}.",
            "Connect to the network, or set THERMOCLINE_IVY_SETTINGS to the Ivy settings of your "
            f"repository; for details see {failure_log}.",
            packages=[str(package) for package in failed],
            log=str(failure_log),
        )


def _remove_leftovers(folder: Path) -> None:
    """Remove the folders of killed processes; the lock is held, so no other process is active."""
    for leftover in folder.glob(f"{_FETCH_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _sync_to_disk(jar: Path) -> None:
    """Sync the content to disk before the rename, so that a power failure leaves no empty jar."""
    with jar.open("rb") as handle:
        os.fsync(handle.fileno())


def _verify(jar: Path, package: Package, hashes: Mapping[str, str]) -> None:
    expected = hashes.get(str(package))
    if expected is None:
        return
    with jar.open("rb") as handle:
        actual = hashlib.file_digest(handle, "sha256").hexdigest()
    if actual != expected:
        raise EngineUnavailable(
            f"{package} was fetched, but its content does not match the pinned SHA-256.",
            "Do not use this repository until you know why; the file was discarded.",
            expected=expected,
            actual=actual,
        )


def _run_ivy(
    missing: Sequence[Package],
    attempt: Path,
    cache: Path,
    announce: Announce,
    environ: Mapping[str, str],
) -> str:
    """Run Ivy to fetch `missing` into `cache`. Returns its output."""
    description = attempt / "ivy.xml"
    description.write_text(_build_ivy_xml(missing), encoding="utf-8")
    command = [str(java.find_java(environ).executable), "-Xmx256m", "-jar", str(_find_ivy_jar())]
    if environ.get("THERMOCLINE_IVY_SETTINGS"):
        # For a private repository, like spark.jars.ivySettings.
        command += ["-settings", environ["THERMOCLINE_IVY_SETTINGS"]]
    command += ["-ivy", str(description), "-confs", "default", "-cache", str(cache)]

    announce(f"fetching {len(missing)} {'jar' if len(missing) == 1 else 'jars'} (only once)")
    output = []
    done = 0
    with interrupt.start_child(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(environ),
    ) as ivy:
        watchdog = threading.Timer(FETCH_TIMEOUT_SECONDS, ivy.kill)
        watchdog.daemon = True
        watchdog.start()
        assert ivy.stdout is not None
        for line in ivy.stdout:
            output.append(line)
            success = re.search(r"\[SUCCESSFUL \] \S+#([^;]+);([^!\s]+)", line)
            if success:
                done += 1
                announce(f"fetched {success[1]} {success[2]} ({done} of {len(missing)})")
        watchdog.cancel()
    return "".join(output)


def _build_ivy_xml(packages: Sequence[Package]) -> str:
    """Return Ivy's description of exactly these jars.

    Packages that share group, artifact and version are artifacts of one dependency. The artifact
    is named explicitly, because Ivy returns nothing for `bundle` and other unknown packagings.
    """
    modules: dict[tuple[str, str, str], list[Package]] = {}
    for package in packages:
        key = (package.group, package.artifact, package.version)
        modules.setdefault(key, []).append(package)
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '  <info organisation="thermocline" module="jars"/>',
        '  <configurations><conf name="default"/></configurations>',
        "  <dependencies>",
    ]
    for (group, artifact, version), artifacts in modules.items():
        lines.append(
            f"    <dependency org={quoteattr(group)} name={quoteattr(artifact)} "
            f'rev={quoteattr(version)} conf="default->default" transitive="false">'
        )
        for package in dict.fromkeys(artifacts):
            which = f" m:classifier={quoteattr(package.classifier)}" if package.classifier else ""
            lines.append(
                f'      <artifact name={quoteattr(artifact)} type="jar" ext="jar"{which}/>'
            )
        lines.append("    </dependency>")
    return "\n".join([*lines, "  </dependencies>", "</ivy-module>", ""])


def _find_ivy_jar() -> Path:
    found = importlib.util.find_spec("pyspark")  # without importing it
    places = found.submodule_search_locations if found else None
    for place in places or ():
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise EngineUnavailable(
        "PySpark, or its Ivy jar, is not installed.", "Reinstall it: pip install pyspark."
    )

"""Find the Java installation that runs Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thermocline.errors import EngineUnavailable

MIN_VERSION = 17
# Spark 4.1 is tested on these. Other versions from 17 are used only if neither is installed.
SUPPORTED_VERSIONS = (17, 21)
# Installation folders of Debian, Ubuntu, Fedora and macOS.
JAVA_FOLDERS = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")
# Spark requires this module at start; minimal runtimes without it fail with an unclear message.
REQUIRED_MODULE = "jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """A Java installation; `version` is the feature release, such as 17."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(
    environ: Mapping[str, str] = os.environ, folders: Sequence[str] = JAVA_FOLDERS
) -> Java:
    """Return the Java to run Spark on: from JAVA_HOME, else PATH, else one of `folders`.

    A release that Spark supports is preferred to a newer one. Starts no JVM if the installations
    have a `release` file, as all common ones do.
    """
    rejected: list[str] = []
    usable: list[Java] = []
    for home in _find_homes(environ, folders):
        version, modules = _read_release(home)
        if version is None:
            continue
        if version < MIN_VERSION:
            rejected.append(f"Java {version} in {home} is too old")
        elif modules is not None and REQUIRED_MODULE not in modules:
            rejected.append(f"the Java in {home} lacks the module {REQUIRED_MODULE}")
        elif version in SUPPORTED_VERSIONS:
            return Java(home, version)
        else:
            usable.append(Java(home, version))
    if usable:
        return usable[0]
    reasons = f" ({'; '.join(rejected)})" if rejected else ""
    raise EngineUnavailable(
        f"Java {MIN_VERSION} or newer was not found{reasons}.",
        "Install it: apt-get install openjdk-17-jre-headless (on newer systems "
        "openjdk-21-jre-headless), or set JAVA_HOME.",
    )


def _find_homes(environ: Mapping[str, str], folders: Sequence[str]) -> Iterator[Path]:
    """Yield each installation once, in the order of preference."""
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(Path(environ["JAVA_HOME"]))
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        candidates.append(Path(on_path).resolve().parent.parent)
    for pattern in folders:
        anchor = Path(pattern).anchor
        candidates.extend(sorted(Path(anchor).glob(str(Path(pattern).relative_to(anchor)))))
    seen = set()
    for candidate in candidates:
        home = candidate.resolve()
        if home not in seen and os.access(home / "bin" / "java", os.X_OK):
            seen.add(home)
            yield home


def _read_release(home: Path) -> tuple[int | None, frozenset[str] | None]:
    """Return the feature release of the Java in `home`, and its modules if it lists them."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _run_version(home), None
    entries = dict(re.findall(r'^(\w+)="(.*)"$', release, flags=re.MULTILINE))
    version = _parse_feature_release(entries.get("JAVA_VERSION", ""))
    modules = frozenset(entries["MODULES"].split()) if "MODULES" in entries else None
    return (version if version is not None else _run_version(home)), modules


def _run_version(home: Path) -> int | None:
    """Return the feature release that `java -version` reports; slow, so a fallback."""
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    quoted = re.search(r'version "([^"]+)"', answer.stderr)
    return _parse_feature_release(quoted.group(1)) if quoted else None


def _parse_feature_release(version: str) -> int | None:
    """Return 17 for 17.0.15, 8 for 1.8.0_392, 25 for 25-ea."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers.group(1)) if numbers else None

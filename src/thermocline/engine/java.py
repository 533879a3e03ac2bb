"""Where the Java is that Spark runs on."""

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
# Spark 4.1 is tested on these. Any other from 17 up is taken only when neither is there.
SUPPORTED_VERSIONS = (17, 21)
# Where Debian, Ubuntu, Fedora and macOS keep their Javas.
JAVA_FOLDERS = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")
# Spark asks for this module by name at start; slim runtimes without it die with a puzzling message.
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
    """The Java to run Spark on: JAVA_HOME's, else the one on PATH, else one of `folders`.

    A release that Spark supports wins over a newer one, wherever it was found. Starts no JVM as
    long as the installations carry their `release` file, which all usual ones do.
    """
    unfit: list[str] = []
    usable: list[Java] = []
    for home in _find_homes(environ, folders):
        version, modules = _read_release(home)
        if version is None:
            continue
        if version < MIN_VERSION:
            unfit.append(f"Java {version} in {home} is too old")
        elif modules is not None and REQUIRED_MODULE not in modules:
            unfit.append(f"the Java in {home} lacks the module {REQUIRED_MODULE}")
        elif version in SUPPORTED_VERSIONS:
            return Java(home, version)
        else:
            usable.append(Java(home, version))
    if usable:
        return usable[0]
    why = f" ({'; '.join(unfit)})" if unfit else ""
    raise EngineUnavailable(
        f"Java {MIN_VERSION} or newer was not found{why}.",
        "Install it: apt-get install openjdk-17-jre-headless (on newer systems "
        "openjdk-21-jre-headless), or set JAVA_HOME.",
    )


def _find_homes(environ: Mapping[str, str], folders: Sequence[str]) -> Iterator[Path]:
    """Each installation once, in the order in which a person would expect them to be tried."""
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
    """The feature release of the Java in `home`, and its modules where it lists them."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _run_version(home), None
    entries = dict(re.findall(r'^(\w+)="(.*)"$', release, flags=re.MULTILINE))
    version = _parse_feature_release(entries.get("JAVA_VERSION", ""))
    modules = frozenset(entries["MODULES"].split()) if "MODULES" in entries else None
    return (version if version is not None else _run_version(home)), modules


def _run_version(home: Path) -> int | None:
    """The feature release as the program itself tells it; a fraction of a second, so a last way."""
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
    """17 of 17.0.15, 8 of 1.8.0_392, 25 of 25-ea."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers.group(1)) if numbers else None

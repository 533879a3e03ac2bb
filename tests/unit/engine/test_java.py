"""The Java that is chosen, of several that a machine may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from thermocline.engine import java
from thermocline.errors import EngineUnavailable

SPARK_MODULES = "java.base jdk.incubator.vector"


def install(home: Path, version: str, modules: str | None = SPARK_MODULES) -> Path:
    """An installation as a distribution lays it out, whose program would only cry if it ran."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text("#!/bin/sh\necho 'a JVM was started' >&2\nexit 1\n")
    program.chmod(0o755)
    release = f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n'
    if modules is not None:
        release += f'MODULES="{modules}"\n'
    (home / "release").write_text(release)
    return home


def find(tmp_path: Path, **environ: str) -> java.Java:
    environ.setdefault("PATH", str(tmp_path / "nothing"))
    return java.find_java(environ, [f"{tmp_path}/jvm/*"])


def test_java_home_wins_over_the_path_and_the_usual_folders(tmp_path: Path) -> None:
    chosen = install(tmp_path / "mine", "21.0.2")
    other = install(tmp_path / "other", "17.0.15")
    install(tmp_path / "jvm" / "java-17", "17.0.15")

    found = find(tmp_path, JAVA_HOME=str(chosen), PATH=str(other / "bin"))

    assert (found.home, found.version) == (chosen, 21)
    assert found.executable == chosen / "bin" / "java"


def test_a_link_on_the_path_leads_to_the_installation(tmp_path: Path) -> None:
    home = install(tmp_path / "real", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find(tmp_path, PATH=str(tmp_path / "bin")) == java.Java(home, 17)


def test_the_usual_folders_are_searched_last(tmp_path: Path) -> None:
    home = install(tmp_path / "jvm" / "java-21-openjdk", "21.0.2")

    assert find(tmp_path) == java.Java(home, 21)


def test_a_supported_release_wins_over_a_newer_one_named_by_java_home(tmp_path: Path) -> None:
    newer = install(tmp_path / "mine", "25.0.3")
    supported = install(tmp_path / "jvm" / "java-17", "17.0.15")

    assert find(tmp_path, JAVA_HOME=str(newer)) == java.Java(supported, 17)


def test_a_newer_release_is_better_than_none(tmp_path: Path) -> None:
    newer = install(tmp_path / "mine", "25.0.3")
    install(tmp_path / "jvm" / "java-11", "11.0.20")

    assert find(tmp_path, JAVA_HOME=str(newer)) == java.Java(newer, 25)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20"])
def test_an_old_java_alone_is_refused_by_name(tmp_path: Path, version: str) -> None:
    home = install(tmp_path / "jvm" / "old", version)
    number = "8" if version.startswith("1.8") else "11"

    with pytest.raises(EngineUnavailable) as refused:
        find(tmp_path)

    assert str(refused.value).splitlines() == [
        f"Java 17 or newer was not found (Java {number} in {home} is too old).",
        "  Install it: apt-get install openjdk-17-jre-headless (on newer systems "
        "openjdk-21-jre-headless), or set JAVA_HOME.",
    ]


def test_no_java_at_all_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable) as refused:
        find(tmp_path, JAVA_HOME=str(tmp_path / "gone"))

    assert refused.value.cause == "Java 17 or newer was not found."
    assert refused.value.exit_code == 6


def test_a_slim_runtime_that_spark_cannot_run_on_is_passed_over(tmp_path: Path) -> None:
    slim = install(tmp_path / "mine", "17.0.15", modules="java.base")
    whole = install(tmp_path / "jvm" / "java-17", "17.0.15", modules=None)

    assert find(tmp_path, JAVA_HOME=str(slim)) == java.Java(whole, 17)


def test_without_a_release_file_the_program_is_asked(tmp_path: Path) -> None:
    home = install(tmp_path / "mine", "ignored")
    (home / "release").unlink()
    program = home / "bin" / "java"
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\" 2024-01-16' >&2\n")

    assert find(tmp_path, JAVA_HOME=str(home)) == java.Java(home, 21)


def test_a_program_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = install(tmp_path / "mine", "ignored")
    (broken / "release").unlink()
    whole = install(tmp_path / "jvm" / "java-17", "17.0.15")

    assert find(tmp_path, JAVA_HOME=str(broken)) == java.Java(whole, 17)

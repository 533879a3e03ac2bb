"""The archive of Spark's classes: found by what it was made from, and never required."""

from __future__ import annotations

from pathlib import Path

import pytest

from thermocline.engine import class_archive
from thermocline.engine.java import find_java


def test_without_an_archive_spark_gets_no_option(tmp_path: Path) -> None:
    assert class_archive.archive_options({"THERMOCLINE_CACHE": str(tmp_path)}) == ""


def test_an_archive_that_exists_is_used(tmp_path: Path) -> None:
    environ = {"THERMOCLINE_CACHE": str(tmp_path), "JAVA_HOME": str(find_java().home)}
    archive = class_archive.find_archive_path(environ)
    assert archive.is_relative_to(tmp_path)
    archive.parent.mkdir(parents=True)
    archive.touch()
    options = class_archive.archive_options(environ).split()
    assert f"-XX:SharedArchiveFile={archive}" in options


def test_a_path_that_java_would_split_is_not_used(tmp_path: Path) -> None:
    environ = {"THERMOCLINE_CACHE": str(tmp_path / "a b"), "JAVA_HOME": str(find_java().home)}
    archive = class_archive.find_archive_path(environ)
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert class_archive.archive_options(environ) == ""


def test_another_spark_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"THERMOCLINE_CACHE": str(tmp_path), "JAVA_HOME": str(find_java().home)}
    before = class_archive.find_archive_path(environ)
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core.jar").write_bytes(b"x")
    monkeypatch.setattr(class_archive, "_spark_home", lambda: tmp_path / "spark")
    other = class_archive.find_archive_path(environ)
    (jars / "spark-core.jar").write_bytes(b"longer")
    assert len({before, other, class_archive.find_archive_path(environ)}) == 3


def test_old_archives_are_removed(tmp_path: Path) -> None:
    import os

    for number in range(5):
        archive = tmp_path / f"spark-{number}.jsa"
        archive.touch()
        os.utime(archive, (number, number))
    class_archive._remove_old_archives(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "spark-2.jsa", "spark-3.jsa", "spark-4.jsa",
    }  # fmt: skip

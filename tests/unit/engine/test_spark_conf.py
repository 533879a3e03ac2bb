"""What Spark is told at its start."""

from __future__ import annotations

import pytest

from thermocline.engine import spark


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, "-XX:+UseParallelGC"),
        ({"JAVA_TOOL_OPTIONS": "-Xss4m"}, "-XX:+UseParallelGC"),
        ({"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"}, ""),
        ({"JDK_JAVA_OPTIONS": "-Xss4m -XX:+UseSerialGC"}, ""),
    ],
)
def test_a_garbage_collector_that_the_environment_chose_is_kept(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], asked: str
) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert spark._choose_garbage_collector() == asked

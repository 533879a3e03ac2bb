"""Logs are JSON lines that no value can forge, and that hold no hidden value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from thermocline import telemetry


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(telemetry, "_hidden", set())
    yield
    telemetry.configure_log(Path("/dev/null"))


def test_a_hidden_value_is_redacted_in_every_spelling() -> None:
    telemetry.hide(['p@ss "word"/ä', "abc", ""])
    assert telemetry.redact('in p@ss "word"/ä out') == "in *** out"
    assert telemetry.redact("u:p%40ss%20%22word%22%2F%C3%A4@h") == "u:***@h"
    assert telemetry.redact(json.dumps({"k": 'p@ss "word"/ä'})) == '{"k": "***"}'
    assert telemetry.redact("abc") == "abc", "too short to be told from ordinary words"


def test_a_longer_secret_is_not_left_in_half() -> None:
    telemetry.hide(["secret", "secret-longer"])
    assert telemetry.redact("secret-longer secret") == "*** ***"


def test_one_line_cannot_be_broken_out_of() -> None:
    assert telemetry.one_line("a\r\nb\x1b[2Jc\u2028d äé") == "a\\r\\nb\\x1b[2Jc\\u2028d äé"


def test_the_log_is_one_json_object_a_line(tmp_path: Path) -> None:
    target = tmp_path / "log.jsonl"
    telemetry.hide(["c4nary-s3cret"])
    telemetry.configure_log(target)
    telemetry.log("lake", "commit\r\nforged", table="silver.orders", token="c4nary-s3cret")
    telemetry.log("lake", "too small to be told", level="DEBUG")
    telemetry.log("lake", "unreachable", level="WARNING", path=Path("x"))
    first, second = [json.loads(line) for line in target.read_text().splitlines()]
    assert first["event"] == "commit\r\nforged"
    assert (first["part"], first["level"], first["table"]) == ("lake", "INFO", "silver.orders")
    assert first["token"] == "***"
    assert first["at"].endswith("+00:00")
    assert (second["event"], second["path"]) == ("unreachable", "x")


def test_the_log_goes_to_stderr_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure_log()
    telemetry.log("run", "began", run="r1")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["run"] == "r1"


def test_a_log_stays_bounded_and_its_owners(tmp_path: Path) -> None:
    target = tmp_path / "serve.log"
    telemetry.configure_log(target, largest=10_000)
    for number in range(1_000):
        telemetry.log("serve", "looked", number=number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["serve.log", "serve.log.1"]
    assert all(file.stat().st_size <= 10_000 for file in files)
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    last = json.loads(target.read_text().splitlines()[-1])
    assert last["number"] == 999

"""Text for people and JSON for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from thermocline.cli import output
from thermocline.cli.progress import show_progress
from thermocline.config import Secret

NOW = datetime(2026, 11, 14, 18, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Point:
    x: Decimal
    when: datetime


class Report:
    def as_dict(self) -> dict[str, Any]:
        return {"rows": 3, "point": Point(Decimal("1.10"), NOW)}


def test_json_keeps_every_digit_and_hides_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json(
        {"report": Report(), "days": (date(2026, 1, 2),), "s": Secret("x"), "n": float("nan")}
    )
    assert json.loads(capsys.readouterr().out) == {
        "report": {"rows": 3, "point": {"x": "1.10", "when": "2026-11-14T18:00:00+00:00"}},
        "days": ["2026-01-02"],
        "s": "***",
        "n": "nan",
    }


def test_a_pipe_gets_every_column_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    output.print_text(output.table(["a", "b"], [["1", long], ["22", None]], right=["a"]))
    assert capsys.readouterr().out.splitlines() == [" a   b", f" 1   {long}", "22"]


def test_values_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        (1, "[red]a[/red]\n:smile:", None, Decimal("1E+3")),
        (20, "", {"k": [1, None]}, Decimal("0.10")),
    ]
    output.print_text(output.grid(["id", "text", "nested", "net"], rows))
    assert capsys.readouterr().out.splitlines() == [
        "┌────┬───────────────────────┬──────────────────┬──────┐",
        "│ id │ text                  │ nested           │  net │",
        "├────┼───────────────────────┼──────────────────┼──────┤",
        "│  1 │ [red]a[/red]\\n:smile: │ null             │ 1000 │",
        '│ 20 │                       │ {"k": [1, null]} │ 0.10 │',
        "└────┴───────────────────────┴──────────────────┴──────┘",
    ]


@pytest.mark.parametrize(
    ("past", "text"),
    [
        (timedelta(seconds=2), "just now"),
        (timedelta(seconds=59), "59 s ago"),
        (timedelta(minutes=2, seconds=59), "2 min ago"),
        (timedelta(hours=23, minutes=59), "23 h ago"),
        (timedelta(days=6, hours=23), "6 d ago"),
        (timedelta(days=7), "2026-11-07"),
        (timedelta(hours=-1), "2026-11-14 19:00"),
    ],
)
def test_ago(past: timedelta, text: str) -> None:
    assert output.ago(NOW - past, NOW) == text
    assert output.ago((NOW - past).replace(tzinfo=None), NOW) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, ""),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (3_100_000_000, "3.1 GB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_size(count: int | None, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.042, "0.04 s"), (1.24, "1.2 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([None], ""),
        ([5], "▄"),
        ([2, 2], "▄▄"),
        ([0, 3.5, 7], "▁▅█"),
        ([Decimal("-1"), None, Decimal("1")], "▁ █"),
    ],
)
def test_sparkline(values: list[Any], text: str) -> None:
    assert output.sparkline(values) == text


def test_numbers_and_names() -> None:
    assert output.number(1234567) == "1,234,567"
    assert output.number(None) == ""
    assert [output.plural(n, "row") for n in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
    assert output.short_id(7412345678900931) == "7412…0931"
    assert output.short_id(123) == "123"


def test_progress_leaves_a_line_for_each_step_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work() -> None:
        with show_progress() as progress:
            progress.step("ingest orders", total=2)
            progress.advance()
            progress.done("5,012 rows\n9 quarantined")
            progress.step("run silver.orders")
            raise ValueError("disk")

    with pytest.raises(ValueError, match="disk"):
        work()
    captured = capsys.readouterr()
    first, second = captured.err.splitlines()
    assert captured.out == ""
    assert first.split()[:3] == ["✓", "ingest", "orders"]
    assert "5,012 rows\\n9 quarantined" in first
    assert second.split()[:3] == ["✗", "run", "silver.orders"]
    assert second.endswith(" s")

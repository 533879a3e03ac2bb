"""Render results as text for people or as JSON for programs.

rich is imported on use, so that help and JSON don't pay for it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    Row = Sequence[str | Text | None]

BARS = "▁▂▃▄▅▆▇█"
STATUS_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


def print_json(value: Any) -> None:
    """Print a result as one JSON document. Decimals become strings, so that no digit is lost."""
    print(redact(json.dumps(to_json_value(value), ensure_ascii=False, indent=2, allow_nan=False)))


def to_json_value(value: Any) -> Any:
    """Return a value as JSON types; other types become strings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "as_dict"):
        return to_json_value(value.as_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return to_json_value(value.value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Iterable):
        return [to_json_value(item) for item in value]
    return str(value)


def print_text(content: RenderableType | None) -> None:
    """Print text: colored on a terminal, uncolored and never truncated in a pipe."""
    if content is None:
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 10_000
    with console.capture() as captured:
        console.print(content)
    print("\n".join(line.rstrip() for line in redact(captured.get()).splitlines()))


def stack(*parts: RenderableType | None) -> RenderableType:
    """Return the parts one below the other; None is left out."""
    from rich.console import Group

    return Group(*(part for part in parts if part is not None))


def side_by_side(*parts: RenderableType) -> RenderableType:
    """Return the parts next to each other."""
    from rich.table import Table

    row = Table.grid(padding=(0, 2))
    row.add_row(*parts)
    return row


def styled_text(text: str, style: str = "") -> Text:
    """Return unformatted text on one line, in a style such as "dim" or "red"."""
    from rich.text import Text

    return Text(one_line(text), style=style)


def line(*parts: str | Text, style: str = "") -> Text:
    """Return one line of text with its parts separated by spaces; empty parts are left out."""
    shown = [styled_text(part) if isinstance(part, str) else part for part in parts if str(part)]
    joined = styled_text("   ").join(shown)
    joined.stylize(style)
    return joined


def table(
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    right: Iterable[str] = (),
    boxed: bool = False,
) -> Table:
    """Return a table of texts. Values have no markup, line breaks or truncation."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    right = set(right)
    made = Table(
        box=box.SQUARE if boxed else None,
        pad_edge=boxed,
        header_style="bold" if boxed else "dim",
        padding=(0, 1) if boxed else (0, 3, 0, 0),
    )
    for name in columns:
        made.add_column(
            styled_text(name), justify="right" if name in right else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(
            *(styled_text(part or "") if not isinstance(part, Text) else part for part in row)
        )
    return made


def grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Return rows of data as a boxed table with numbers right-aligned."""
    right = [
        name
        for index, name in enumerate(columns)
        if any(_is_number(row[index]) for row in rows)
        and all(row[index] is None or _is_number(row[index]) for row in rows)
    ]
    cells = [[cell(value) for value in row] for row in rows]
    return table(columns, cells, right=right, boxed=True)


def cell(value: Any) -> Text:
    """Return one value of data: exact, and null distinct from an empty text."""
    if value is None:
        return styled_text("null", "dim")
    if isinstance(value, datetime):
        return styled_text(value.isoformat(sep=" "))
    if isinstance(value, Decimal):
        return styled_text(format(value, "f"))
    if isinstance(value, dict | list | tuple | bytes):
        return styled_text(json.dumps(to_json_value(value), ensure_ascii=False))
    return styled_text(str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def number(value: int | None) -> str:
    """Format 1234567 as 1,234,567, and None as an empty text."""
    return "" if value is None else f"{value:,}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: 1 row, 2 rows, 1,200 rows."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counts(*, added: int = 0, changed: int = 0, removed: int = 0) -> str:
    """Format row changes: +12 ~310 −4, or 0."""
    parts = (("+", added), ("~", changed), ("−", removed))
    return " ".join(f"{sign}{count:,}" for sign, count in parts if count) or "0"


def size(count: int | None) -> str:
    """Format bytes: 980 B, 12.4 kB, 3.1 GB."""
    if count is None:
        return ""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    units = iter(("kB", "MB", "GB", "TB"))
    unit = ""
    while amount >= 999.95 and (larger := next(units, None)):
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """Format seconds: 0.04 s, 1.2 s, 3 min 20 s, 1 h 05 min."""
    if seconds < 0.1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def ago(when: datetime | None, now: datetime | None = None) -> str:
    """Format an age: just now, 2 min ago, 3 h ago, 5 d ago; older than a week, the date."""
    if when is None:
        return ""
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    past = (now or datetime.now(UTC)) - when
    if past < timedelta(0):
        return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    if past < timedelta(seconds=5):
        return "just now"
    for unit, length, until in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 86400)):
        if past.total_seconds() < until:
            return f"{int(past.total_seconds() // length)} {unit} ago"
    return f"{past.days} d ago" if past.days < 7 else when.strftime("%Y-%m-%d")


def short_id(snapshot: int | str | None) -> str:
    """Abbreviate a snapshot id: 7412…0931."""
    text = "" if snapshot is None else str(snapshot)
    return text if len(text) <= 9 else f"{text[:4]}…{text[-4:]}"


def sparkline(values: Sequence[float | int | Decimal | None]) -> str:
    """Return a row of bars, such as ▁▃▅▇. A missing value is a gap."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return ""
    low, spread = min(known), max(known) - min(known)
    middle = len(BARS) // 2 - 1

    def bar(value: float) -> str:
        return BARS[round((value - low) / spread * (len(BARS) - 1)) if spread else middle]

    return "".join(" " if value is None else bar(float(value)) for value in values)

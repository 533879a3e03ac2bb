"""A small lake whose rows are as awkward as real ones: what engines treat differently is in it."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.conftest import SETTINGS
from tests.integration.serve.nodes.keeping import delete_positions

if TYPE_CHECKING:
    from thermocline.lake import Lake

FACTS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("k", pa.int32()),
        ("big", pa.int64()),
        ("amount", pa.decimal128(12, 2)),
        ("rate", pa.decimal128(7, 4)),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("name", pa.string()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("local", pa.timestamp("us")),
        ("moment", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("lon", pa.float64()), ("label", pa.string())])),
    ]
)
TIMES = {"silver.by_moment": "moment", "silver.by_local": "local", "silver.by_day": "day"}
"""Tables of the same rows that are known by a time of theirs, so that a part of them is hot."""
SCHEMAS = {
    "silver.facts": FACTS,
    **dict.fromkeys(TIMES, FACTS),
    "silver.dims": pa.schema(
        [
            ("k", pa.int32()),
            ("label", pa.string()),
            ("weight", pa.decimal128(6, 2)),
            ("ratio", pa.float64()),
        ]
    ),
    "silver.letters": pa.schema([("letter", pa.string())]),
    "gold.days": pa.schema(
        [("day", pa.date32()), ("total", pa.decimal128(18, 2)), ("seen", pa.int64())]
    ),
}
TEXTS = ["", " ", "a", "A", "b", "Zürich", "e\u0301", "é", "漢字", "🏔️", "NULL", "10", "9", "a%b",
         "a_b", "a\\b", "it's", "x  ", "ß", "-1", "Ab", "aB", "ᾀﬁß🏔ŉx", "İΣ", None]  # fmt: skip
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.1, 1.5, 2.5, -2.5, 1e15, -1e-9, 3.25, 100.125, math.nan,
           math.inf, -math.inf, None]  # fmt: skip
AMOUNTS = ["0.00", "0.01", "-0.01", "1.10", "2.50", "-2.50", "99.99", "100.00", "1234.56",
           "-777.77", "0.05", "3.33", None]  # fmt: skip
EDGE = datetime(2026, 3, 1)
STEPS = [timedelta(0), timedelta(microseconds=1), timedelta(microseconds=-1), timedelta(hours=12),
         timedelta(milliseconds=1),
         timedelta(minutes=59, seconds=59, microseconds=999999)]  # fmt: skip


def facts(count: int = 240) -> list[dict[str, Any]]:
    """Rows in which every awkward value meets many others; the same at every call."""
    found = []
    for n in range(count):
        when = EDGE + timedelta(days=n * 7 % 23 - 11) + STEPS[n % len(STEPS)]
        amount, text = AMOUNTS[n * 5 % len(AMOUNTS)], TEXTS[n * 3 % len(TEXTS)]
        number = NUMBERS[n * 7 % len(NUMBERS)]
        found.append(
            {
                "id": n,
                "k": None if n % 11 == 0 else n % 9 - 2,
                "big": None if n % 17 == 0 else (n - 100) * 10**9,
                "amount": None if amount is None else Decimal(amount),
                "rate": None if n % 7 == 0 else Decimal(n * 37 % 20000 - 9999).scaleb(-4),
                "x": number,
                "f": None if n % 13 == 0 else float(n % 8) / 4,
                "name": text,
                "flag": (True, False, None)[n % 3],
                "day": None if n % 19 == 0 else (EDGE + timedelta(days=n % 40 - 20)).date(),
                "local": None if n % 23 == 0 else when,
                "moment": None if n % 29 == 0 else when.replace(tzinfo=UTC),
                "tags": None if n % 5 == 0 else [text, "t", None][: n % 4],
                "point": None if n % 6 == 0 else {"lon": n / 8, "label": text},
            }
        )
    return found


def dims() -> list[dict[str, Any]]:
    """Keys with duplicates and nulls, and some that no fact has.

    The least and greatest ratio of the first file are not what a reader takes them for.
    """
    keys = [-2, -1, 0, 1, 1, 2, 3, 5, None, 42, 43]
    ratios = [-0.0, -1.5, math.nan, None, -2.5, 0.5, 1.0, 2.5, math.inf, None, 1e15]
    return [
        {
            "k": k,
            "label": TEXTS[n],
            "weight": None if n == 4 else Decimal(n * 125).scaleb(-2),
            "ratio": ratios[n],
        }
        for n, k in enumerate(keys)
    ]


def letters() -> list[dict[str, Any]]:
    """Every letter that has another case, or had none when Python's tables were made."""
    points = [*range(0x80, 0xD800), *range(0xE000, 0x1F000)]
    newer = {0x19B, 0x264, *range(0x1C89, 0x1C8B), *range(0xA7CB, 0xA7DD), *range(0x10D50, 0x10D86)}
    found = [chr(n) for n in points if n in newer or chr(n).upper() != chr(n).lower()]
    return [{"letter": letter} for letter in found]


def days() -> list[dict[str, Any]]:
    """A row a day, with gaps."""
    first = date(2026, 2, 10)
    return [
        {"day": first + timedelta(days=n), "total": Decimal(n * n * 111).scaleb(-2), "seen": n % 4}
        for n in range(30)
        if n % 7
    ]


def build(folder: Path, settings: str = SETTINGS) -> Lake:
    """The lake in `folder`, made without any engine; each table in two commits and two files."""
    from thermocline.config import load_settings
    from thermocline.lake import Lake

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "thermocline.toml").write_text(settings, encoding="utf-8")
    lake = Lake(load_settings(folder, environ={}))
    for layer in ("silver", "gold"):
        lake.catalog.create_namespace(layer)
    rows = {"silver.dims": dims(), "silver.letters": letters(), "gold.days": days()}
    for name, schema in SCHEMAS.items():
        table = lake.catalog.create_table(name, schema, properties={"format-version": "2"})
        if name in TIMES:
            with table.update_spec() as spec:
                spec.add_field(TIMES[name], "month")
        made = rows.get(name) or facts()
        half = len(made) // 2
        # Those by month have several files anyway.
        for part in (made[:half], made[half:]) if name not in TIMES else (made,):
            table.append(pa.Table.from_pylist(part, schema=schema))
    return lake


def stir(lake: Lake) -> None:
    """Two more commits to each table of facts: rows are added, and two of each file deleted."""
    for name in ("silver.facts", *TIMES):
        table = lake.iceberg(name)
        table.append(pa.Table.from_pylist(facts(290)[240:], schema=FACTS))
        files = [task.file.file_path for task in table.refresh().scan().plan_files()]
        delete_positions(lake, table, dict.fromkeys(files, (1, 3)))

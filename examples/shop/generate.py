"""Make the shop's landing files: a first load, then batches of realistic change.

Everything follows from the seed and the dates given; the clock is never read, so the same call
writes the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also when loaded by its path
from shopdata import history, landing
from shopdata.history import BAD, State
from shopdata.world import DAYS, World

UNTIL = date(2026, 11, 14)
FILE_ROWS = 250_000
NOTES = "generation.json"


@dataclass(frozen=True)
class Written:
    """What was written for one table. `roles` counts its rows by what they are in the story."""

    files: tuple[str, ...]
    roles: Mapping[str, int]

    @property
    def rows(self) -> int:
        """Rows that a contract has nothing against, duplicates included."""
        return sum(count for role, count in self.roles.items() if role not in BAD)

    @property
    def bad(self) -> dict[str, int]:
        """Rows that belong in quarantine, by reason."""
        return {role: count for role, count in sorted(self.roles.items()) if role in BAD}


@dataclass(frozen=True)
class Summary:
    """What a generation wrote, a table at a time."""

    batch: int
    until: date
    tables: Mapping[str, Written]

    def __str__(self) -> str:
        lines = []
        for name, table in self.tables.items():
            kinds = ", ".join(
                f"{count:,} {role}" for role, count in sorted(table.roles.items())
                if role not in BAD
            )  # fmt: skip
            bad = ", ".join(f"{count:,} {reason}" for reason, count in table.bad.items())
            lines.append(f"{name:<10} {table.rows:>10,} rows in {len(table.files)} files ({kinds})")
            lines.append(f"{'':<10} {sum(table.bad.values()):>10,} bad ({bad})")
        return "\n".join(lines)


def generate(
    folder: Path,
    seed: int = 7,
    customers: int = 1_000,
    products: int = 500,
    orders: int = 5_000,
    events: int = 40_000,
    until: date = UNTIL,
    orders_format: str = "jsonl",
) -> Summary:
    """Write the first load under folder/landing: 91 days that end with `until`.

    Customers come as gzipped JSON lines, products as CSV, events as Parquet, orders as JSON lines
    or, which suits millions, as Parquet. Earlier generated files there are replaced.
    """
    counts = {"customers": customers, "products": products, "orders": orders, "events": events}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1")
    if orders_format not in {"jsonl", "parquet"}:
        raise ValueError(f"orders_format must be jsonl or parquet, not {orders_format!r}")
    shop = World(seed, customers, products, orders, events, until)
    root = folder / "landing"
    for name in ("customers", "products", "orders", "events"):
        for stale in (root / name).glob(f"{name}-[0-9][0-9][0-9]-*"):
            stale.unlink()
    files = _Files(root, 0)
    files.put("customers", "jsonl.gz", history.first_customers(shop))
    files.put("products", "csv", history.first_products(shop))
    size = min(FILE_ROWS, max(-(-orders // 3), 1))
    for low in range(0, orders, size):
        high = min(low + size, orders)
        parsed = orders_format == "parquet"
        files.put("orders", orders_format, history.first_orders(shop, low, high, parsed))
    for group in _groups(history.first_events(shop)):
        files.put("events", "parquet", iter(group))
    notes = {
        "world": {**asdict(shop), "until": until.isoformat()},
        "orders_format": orders_format,
        "states": [history.begin(shop).as_dict()],
    }
    (root / NOTES).write_text(json.dumps(notes, indent=1) + "\n")
    return Summary(0, until, files.written())


def change(
    folder: Path, seed: int | None = None, share: float = 0.01, batch: int | None = None
) -> Summary:
    """Write one batch of change, a day of the shop's life, as new landing files.

    `share` of the orders (and of the other tables) is touched: new and updated rows, late,
    out-of-order and repeated ones, deletes, bad rows. Batches are numbered from 1 and build on
    each other; without a number the next one is made. `seed` is only checked against the first
    load's, because a change to another shop's rows would make no sense.
    """
    root = folder / "landing"
    if not (root / NOTES).exists():
        raise ValueError(f"{root} holds no generated data: run generate first")
    notes = json.loads((root / NOTES).read_text())
    known = notes["world"]
    if not 0 < share <= 1:
        raise ValueError("share must be more than 0 and at most 1")
    if seed is not None and seed != known["seed"]:
        raise ValueError(f"this shop was generated with seed {known['seed']}, not {seed}")
    shop = World(**{**known, "until": date.fromisoformat(known["until"])})
    states = [State.from_dict(entry) for entry in notes["states"]]
    batch = len(states) if batch is None else batch
    if not 1 <= batch <= len(states):
        raise ValueError(f"batch {batch} needs batch {batch - 1}: the next one is {len(states)}")
    before = states[batch - 1]
    after = history.advance(shop, before, batch, share)
    parsed = notes["orders_format"] == "parquet"
    files = _Files(root, batch)
    orders = history.next_orders(shop, before, after, batch, share, parsed)
    people = history.next_customers(shop, before, after, batch, share)
    files.put("customers", "jsonl.gz", iter([people]))
    files.put("products", "csv", iter([history.next_products(shop, batch, share)]))
    files.put("orders", notes["orders_format"], iter([orders]))
    files.put("events", "parquet", iter([history.next_events(shop, before, after, batch)]))
    notes["states"] = [*notes["states"][:batch], after.as_dict()]
    (root / NOTES).write_text(json.dumps(notes, indent=1) + "\n")
    return Summary(batch, shop.until, files.written())


class _Files:
    """The landing files of one batch, and what they hold."""

    def __init__(self, root: Path, batch: int) -> None:
        self.root, self.batch = root, batch
        self.names: dict[str, list[str]] = {}
        self.roles: dict[str, Counter[str]] = {}

    def put(self, table: str, ending: str, pieces: Iterator[pa.Table]) -> None:
        names = self.names.setdefault(table, [])
        path = self.root / table / f"{table}-{self.batch:03d}-{len(names) + 1:04d}.{ending}"
        self.roles.setdefault(table, Counter()).update(landing.write(path, pieces))
        names.append(str(path.relative_to(self.root.parent)))

    def written(self) -> dict[str, Written]:
        return {
            name: Written(tuple(self.names[name]), dict(self.roles[name])) for name in self.names
        }


def _groups(pieces: Iterator[pa.Table]) -> Iterator[list[pa.Table]]:
    """Pieces gathered into files of about FILE_ROWS rows."""
    group: list[pa.Table] = []
    for piece in pieces:
        group.append(piece)
        if sum(table.num_rows for table in group) >= FILE_ROWS:
            yield group
            group = []
    if group:
        yield group


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--customers", type=int, default=1_000)
    parser.add_argument("--products", type=int, default=500)
    parser.add_argument("--orders", type=int, default=5_000)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument(
        "--until", type=date.fromisoformat, default=UNTIL, help=f"last of the {DAYS} days"
    )
    parser.add_argument("--orders-format", choices=("jsonl", "parquet"), default="jsonl")
    parser.add_argument("--change", action="store_true", help="write the next batch of change")
    parser.add_argument(
        "--share", type=float, default=0.01, help="part of the rows a batch touches"
    )
    parser.add_argument("--batch", type=int, default=None, help="which batch, instead of the next")
    given = parser.parse_args(arguments)
    try:
        if given.change:
            print(change(given.folder, share=given.share, batch=given.batch))
            return 0
        counts = (given.customers, given.products, given.orders, given.events)
        print(generate(given.folder, given.seed, *counts, given.until, given.orders_format))
    except ValueError as problem:
        print(f"{parser.prog}: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure a stream batch after many snapshots, and a poll of a folder with many old files.

The history is fabricated: one batch lands for real, and its snapshot is then written into the
table's metadata as often as asked, each with an id, a time and a file of its own in the bookmark,
a second apart, all over the same manifest list. So every reader of metadata pays what it would pay,
while no time is spent on making data files that no batch reads. Old files of a landing folder are
landed for real, in batches of 500.

    python -m benchmarks.growth.commits [--catalog sqlite rest] [--snapshots …] [--files …]

On a REST catalog the fabricated bookmarks are those of the version that kept files in summaries, so
the first batch also carries them over. With --landed N, N batches of one file each land for real.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from tests.servers import rest_catalog, settings

from thermocline.config import load_settings
from thermocline.contract.definition import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.ingest.folder_stream import FolderIngester
from thermocline.ingest.source import Source
from thermocline.lake import Lake
from thermocline.lake.metadata import location_path

if TYPE_CHECKING:
    from thermocline.lake.metadata import TableState

TARGET = "bronze.raw_events"
CONTRACT = Contract(
    TARGET,
    (Column("id", Primitive("long"), required=True), Column("name", Primitive("string"))),
)
ROWS = 100
WARM, BATCHES = 5, 15


@dataclass
class Figures:
    """The cost at one size."""

    size: int
    cpu_ms: float = 0.0
    wall_ms: float = 0.0
    bytes: float = 0.0
    """Bytes of metadata written per batch."""
    snapshots: int = 0
    metadata_files: int = 0
    """Metadata files of the batches that still exist afterwards."""
    memory: float = 0.0


def run(catalog: str, *sizes: int, landed: bool = False) -> list[Figures]:
    """Measure stream batches on tables with histories of these lengths, and print them."""
    found = [_stream(catalog, size, landed=landed) for size in sizes]
    what = "batches landed before" if landed else "snapshots made before"
    _table(
        f"a stream batch of 100 rows on {catalog}, {what}",
        found,
        {
            "CPU ms": lambda f: f.cpu_ms,
            "wall ms": lambda f: f.wall_ms,
            "KB of metadata": lambda f: f.bytes / 1e3,
            "snapshots kept": lambda f: f.snapshots,
            "metadata files": lambda f: f.metadata_files,
            "peak MB": lambda f: f.memory / 1e6,
        },
    )
    return found


def run_landing(catalog: str, *sizes: int) -> list[list[Figures]]:
    """Measure and print the cost of polling a folder with many landed files."""
    first, start, idle, one = zip(*(_landing(catalog, size) for size in sizes), strict=True)
    print(f"\non {catalog}")
    shown = {"CPU ms": lambda f: f.cpu_ms, "wall ms": lambda f: f.wall_ms}
    _table("the first load, files", first, shown)
    _table("the first poll of a new process, nothing new, old files", start, shown)
    _table("a poll with nothing new, old files", idle, shown)
    _table("a poll with one new file, old files", one, shown)
    return [list(first), list(start), list(idle), list(one)]


def _stream(catalog: str, size: int, *, landed: bool) -> Figures:
    with _open_lake(catalog) as (lake, landing):
        intake = _intake(lake, landing)
        _deliver(landing, "first")
        assert intake.ingest_batch() is not None
        if landed:
            _land(intake, landing, size)
        else:
            _fabricate(lake, size)
        intake = _intake(lake, landing)
        for number in range(WARM):
            _deliver(landing, f"warm-{number}")
            assert intake.ingest_batch() is not None
        folder = location_path(lake.state(TARGET).location) / "metadata"
        walls, cpus, written = [], [], []
        for number in range(BATCHES):
            _deliver(landing, f"batch-{number:04}")
            names = set(folder.iterdir())
            wall, cpu = time.perf_counter(), time.process_time()
            assert intake.ingest_batch() is not None
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            new = set(folder.iterdir()) - names
            written.append(sum(path.stat().st_size for path in new))
        tracemalloc.start()
        _deliver(landing, "last")
        assert intake.ingest_batch() is not None
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return Figures(
            size,
            statistics.median(cpus) * 1e3,
            statistics.median(walls) * 1e3,
            statistics.median(written),
            len(lake.state(TARGET).snapshots),
            len(list(folder.glob("*.metadata.json"))),
            peak,
        )


def _land(intake: FolderIngester, landing: Path, batches: int) -> None:
    for number in range(batches):
        _deliver(landing, f"land-{number:06}", rows=1)
        assert intake.ingest_batch() is not None
        (landing / f"land-{number:06}.jsonl").unlink()  # it is not listed again


def _landing(catalog: str, size: int) -> tuple[Figures, Figures, Figures, Figures]:
    with _open_lake(catalog) as (lake, landing):
        for number in range(size):
            _deliver(landing, f"{number // 1000:04}/{number:07}", rows=1)
        first = _polled(size, _intake(lake, landing))
        intake = _intake(lake, landing)
        start = _polled(size, intake)
        intake.ingest_batch()
        idle = _polled(size, intake)
        _deliver(landing, "9999/new")
        intake.ingest_batch()
        _deliver(landing, "9999/newer")
        one = _polled(size, intake)
        return first, start, idle, one


def _polled(size: int, intake: FolderIngester) -> Figures:
    wall, cpu = time.perf_counter(), time.process_time()
    intake.ingest_batch()
    return Figures(size, (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3)


@contextmanager
def _open_lake(catalog: str) -> Iterator[tuple[Lake, Path]]:
    """Open a new lake on a catalog, with a landing folder."""
    with tempfile.TemporaryDirectory(prefix="growth-") as name, ExitStack() as servers:
        place, environ = Path(name), dict[str, str]()
        if catalog == "rest":
            (place / "rest").mkdir()
            server = servers.enter_context(rest_catalog.serve(place / "rest"))
            environ = settings.rest_lake_settings(server)
        (place / "landing").mkdir()
        (place / "thermocline.toml").write_text('[lake]\nname = "growth"\n')
        with closing(Lake(load_settings(place, environ=environ))) as lake:
            yield lake, place / "landing"


def _intake(lake: Lake, landing: Path) -> FolderIngester:
    source = Source("events", str(landing), TARGET, format="jsonl", settle=0.001)
    return FolderIngester(lake, source, CONTRACT)


def _deliver(landing: Path, name: str, rows: int = ROWS) -> None:
    path = landing / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    lines = (json.dumps({"id": n, "name": f"{name}-{n}"}) for n in range(rows))
    path.write_text("\n".join(lines) + "\n")
    when = time.time() - 60
    os.utime(path, (when, when))


def _fabricate(lake: Lake, size: int) -> None:
    """Repeat the newest snapshot in the table's history up to a number of snapshots."""
    state = lake.state(TARGET)
    raw: dict[str, Any] = copy.deepcopy(dict(state.raw))
    head = state.head()
    pattern = next(s for s in raw["snapshots"] if s["snapshot-id"] == head)
    began = pattern["timestamp-ms"] - 1_000 * size  # a commit each second
    last, parent = raw["last-sequence-number"], head
    pattern["timestamp-ms"] = began
    for each in raw["snapshots"]:
        each["timestamp-ms"] = min(each["timestamp-ms"], began)
    for number in range(len(raw["snapshots"]), size):
        made = copy.deepcopy(pattern)
        bookmark = json.loads(made["summary"]["thermocline.bookmark"])
        if "files" in bookmark:
            content = f"{number:064x}"
            bookmark = {"files": {content: f"f{number}.jsonl"}, "seen": {content: [1, number]}}
        elif lake.consumption_store is None:
            content = f"{number:064x}"
            bookmark = {"files": {content: f"f{number}.jsonl"}, "seen": {content: [1, number]}}
            made["summary"].pop("thermocline.consumed", None)
        made["summary"] |= {
            "thermocline.bookmark": json.dumps(bookmark),
            "thermocline.commit": uuid.uuid4().hex,
            "thermocline.run": f"20260101-000000-{number:06x}",
            "thermocline.unit": uuid.uuid4().hex,
        }
        made |= {
            "snapshot-id": (1 << 50) + number, "parent-snapshot-id": parent,
            "sequence-number": last + number, "timestamp-ms": began + 1_000 * number,
        }  # fmt: skip
        raw["snapshots"].append(made)
        parent = made["snapshot-id"]
    newest = raw["snapshots"][-1]
    raw["last-sequence-number"] = newest["sequence-number"]
    raw["current-snapshot-id"] = parent
    raw["refs"]["main"]["snapshot-id"] = parent
    raw["snapshot-log"] = [
        {"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]}
        for s in raw["snapshots"]
    ]
    raw["metadata-log"] = []
    raw["last-updated-ms"] = newest["timestamp-ms"]
    _point(lake, state, raw)


def _point(lake: Lake, state: TableState, raw: dict[str, Any]) -> None:
    name = f"09999-{uuid.uuid4()}.metadata.json"
    location = f"{state.location}/metadata/{name}"
    location_path(location).write_text(json.dumps(raw))
    for old in location_path(location).parent.glob("*.metadata.json"):
        if old.name != name:
            old.unlink()
    if lake.consumption_store is None:
        lake.catalog.drop_table(TARGET)
        lake.catalog.register_table(TARGET, location)
        return
    with lake.catalog.engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(
            text("UPDATE iceberg_tables SET metadata_location = :at WHERE table_name = :name"),
            {"at": location, "name": TARGET.split(".")[1]},
        )


def _table(title: str, found: Any, columns: dict[str, Any]) -> None:
    """Print a row for each figure, a column for each size, and the ratio of last to first."""
    print(f"\n{title:<60}" + "".join(f"{each.size:>12,}" for each in found) + f"{'ratio':>9}")
    for name, value in columns.items():
        values = [value(each) for each in found]
        ratio = values[-1] / values[0] if values[0] else float("nan")
        print(f"{name:<60}" + "".join(f"{v:>12,.1f}" for v in values) + f"{ratio:>8.2f}x")
    sys.stdout.flush()


def main() -> None:
    """Parse the sizes and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, nargs="*", default=[500, 2_000, 8_000])
    parser.add_argument("--files", type=int, nargs="*", default=[10_000, 40_000, 160_000])
    parser.add_argument("--landed", type=int, nargs="*", default=[])
    parser.add_argument("--catalog", nargs="+", choices=("sqlite", "rest"), default=["sqlite"])
    given = parser.parse_args()
    for catalog in given.catalog:
        if given.snapshots:
            run(catalog, *given.snapshots)
        if given.landed:
            run(catalog, *given.landed, landed=True)
        if given.files:
            run_landing(catalog, *given.files)


if __name__ == "__main__":
    main()

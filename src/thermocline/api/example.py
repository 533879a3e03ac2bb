"""Make a project from an example, and build the example in one call."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from thermocline.api.lakehouse import Lakehouse, open
from thermocline.api.table import TableInfo
from thermocline.config import private
from thermocline.config.scratch import Scratch
from thermocline.errors import BadInput
from thermocline.telemetry import SILENT, Progress

_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "lake", "landing", ".thermocline", "generation.json", "secrets.toml"
)
PROJECT_FILE, LANDING = "thermocline.toml", "landing"


@dataclass(frozen=True)
class DemoReport:
    """What the demo built."""

    project: Path
    tables: tuple[TableInfo, ...]
    quarantined: int
    revenue: tuple[tuple[Any, ...], ...]
    ran: bool

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "project": str(self.project),
            "tables": [table.as_dict() for table in self.tables],
            "quarantined": self.quarantined,
            "revenue": [[str(value) for value in row] for row in self.revenue],
            "ran": self.ran,
        }


def init(path: str | os.PathLike[str] = ".", example: str = "shop") -> Path:
    """Make a project in a folder from an example. Nothing that is there is overwritten."""
    folder = Path(path)
    source = _example(example)
    if (folder / PROJECT_FILE).exists():
        raise BadInput(f"{folder} holds a project already.", "Choose another folder.")
    # An earlier call that was interrupted left some of it behind, without the project's file.
    taken = [each.name for each in source.iterdir() if not _is_part(folder / each.name, each)]
    clash = sorted(set(taken) - {".gitignore", "README.md"})
    if clash:
        raise BadInput(
            f"{folder} has {', '.join(clash)} already, which a project needs for itself.",
            "Choose an empty folder; nothing was written.",
        )
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=_left_out)
    shutil.copy2(source / PROJECT_FILE, folder / PROJECT_FILE)
    return folder


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What is not copied with the rest. The project's file comes last: with it, it is a project."""
    return {*_LEFT_OUT(folder, names), *({PROJECT_FILE} & set(names))}


def _is_part(made: Path, source: Path) -> bool:
    """Whether nothing is in a place but files of the example, some perhaps cut short."""
    if not made.is_dir():
        return not made.exists() or (
            source.is_file() and source.read_bytes().startswith(made.read_bytes())
        )
    return source.is_dir() and all(_is_part(each, source / each.name) for each in made.iterdir())


def demo(path: str | os.PathLike[str] = "demo", *, progress: Progress = SILENT) -> DemoReport:
    """Build the shop from raw files to published gold. A second call does only what changed."""
    folder = Path(path)
    if not (folder / PROJECT_FILE).exists():
        progress.step("project")
        init(folder)
        progress.done(str(folder))
    lakehouse = open(folder)
    if not (folder / LANDING).exists():
        progress.step("generate")
        progress.done(_generate(folder))
    lakehouse.ingest(progress=progress)
    report = lakehouse.run(progress=progress)
    return _summary(lakehouse, folder, ran=bool(report.steps))


def _summary(lakehouse: Lakehouse, folder: Path, *, ran: bool) -> DemoReport:
    revenue = lakehouse.query(
        "select day, orders, revenue from gold.daily_revenue order by day desc limit 7"
    )
    tables = tuple(t for t in lakehouse.tables() if not t.name.startswith("quarantine."))
    kept = sum(t.rows for t in lakehouse.tables() if t.name.startswith("quarantine."))
    return DemoReport(folder, tables, kept, tuple(reversed(revenue.rows)), ran)


def _generate(folder: Path) -> str:
    """Make the landing files. They are there as a whole or not at all, however this ends."""
    with _generator(folder) as generator, Scratch(private.folder(folder), "generate-") as scratch:
        summary = generator.generate(scratch)
        (scratch / LANDING).replace(folder / LANDING)
    return " · ".join(f"{written.rows:,} {name}" for name, written in summary.tables.items())


@contextmanager
def _generator(folder: Path) -> Iterator[ModuleType]:
    """The example's own generator, from the project's copy of it."""
    spec = importlib.util.spec_from_file_location("shop_generate", folder / "generate.py")
    if spec is None or spec.loader is None:
        raise BadInput(f"{folder} has no generate.py.", "Make the project anew: thermo init.")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before
        del sys.modules[spec.name]


def _example(name: str) -> Path:
    """An example's folder: beside the package when installed, in the source tree otherwise."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "scaffold", package.parent.parent / "examples"):
        if (folder / name / PROJECT_FILE).exists() and "/" not in name and ".." not in name:
            return folder / name
    raise BadInput(f"There is no example {name!r}.", "Use shop.")

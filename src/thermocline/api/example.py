"""Create a project from an example, and build the demo in one call."""

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
from thermocline.config import private_files
from thermocline.config.scratch import ScratchFolder
from thermocline.errors import BadInput
from thermocline.telemetry import SILENT, Progress

_IGNORE = shutil.ignore_patterns(
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
        """Return the report as JSON values."""
        return {
            "project": str(self.project),
            "tables": [table.as_dict() for table in self.tables],
            "quarantined": self.quarantined,
            "revenue": [[str(value) for value in row] for row in self.revenue],
            "ran": self.ran,
        }


def init(path: str | os.PathLike[str] = ".", example: str = "shop") -> Path:
    """Create a project in a folder from an example. Existing files are never overwritten."""
    folder = Path(path)
    source = _find_example(example)
    if (folder / PROJECT_FILE).exists():
        raise BadInput(f"{folder} already holds a project.", "Choose another folder.")
    # An earlier call that was interrupted leaves some files behind, but no project file.
    taken = [
        each.name for each in source.iterdir() if not _is_partial_copy(folder / each.name, each)
    ]
    clash = sorted(set(taken) - {".gitignore", "README.md"})
    if clash:
        raise BadInput(
            f"{folder} already has {', '.join(clash)}, which a project needs for itself.",
            "Choose an empty folder; nothing was written.",
        )
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=_ignore_names)
    shutil.copy2(source / PROJECT_FILE, folder / PROJECT_FILE)
    return folder


def _ignore_names(folder: str, names: list[str]) -> set[str]:
    """Return what to leave out. The project file comes last: it marks a complete project."""
    return {*_IGNORE(folder, names), *({PROJECT_FILE} & set(names))}


def _is_partial_copy(made: Path, source: Path) -> bool:
    """Return whether a path holds only files of the example, some perhaps truncated."""
    if not made.is_dir():
        return not made.exists() or (
            source.is_file() and source.read_bytes().startswith(made.read_bytes())
        )
    return source.is_dir() and all(
        _is_partial_copy(each, source / each.name) for each in made.iterdir()
    )


def demo(path: str | os.PathLike[str] = "demo", *, progress: Progress = SILENT) -> DemoReport:
    """Build the shop from raw files to published gold; a second call processes only changes."""
    folder = Path(path)
    if not (folder / PROJECT_FILE).exists():
        progress.step("project")
        init(folder)
        progress.done(str(folder))
    lakehouse = open(folder)
    if not (folder / LANDING).exists():
        progress.step("generate")
        progress.done(_generate_files(folder))
    lakehouse.ingest(progress=progress)
    report = lakehouse.run(progress=progress)
    return _build_report(lakehouse, folder, ran=bool(report.steps))


def _build_report(lakehouse: Lakehouse, folder: Path, *, ran: bool) -> DemoReport:
    revenue = lakehouse.query(
        "select day, orders, revenue from gold.daily_revenue order by day desc limit 7"
    )
    tables = tuple(t for t in lakehouse.tables() if not t.name.startswith("quarantine."))
    kept = sum(t.rows for t in lakehouse.tables() if t.name.startswith("quarantine."))
    return DemoReport(folder, tables, kept, tuple(reversed(revenue.rows)), ran)


def _generate_files(folder: Path) -> str:
    """Generate the landing files. They appear as a whole or not at all, even when interrupted."""
    with (
        _load_generator(folder) as generator,
        ScratchFolder(private_files.ensure_folder(folder), "generate-") as scratch,
    ):
        summary = generator.generate(scratch)
        (scratch / LANDING).replace(folder / LANDING)
    return " · ".join(f"{written.rows:,} {name}" for name, written in summary.tables.items())


@contextmanager
def _load_generator(folder: Path) -> Iterator[ModuleType]:
    """Import the project's own copy of the example's generator."""
    spec = importlib.util.spec_from_file_location("shop_generate", folder / "generate.py")
    if spec is None or spec.loader is None:
        raise BadInput(f"{folder} has no generate.py.", "Create a new project: thermo init.")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[spec.name] = module  # dataclasses look up their module by name
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before
        del sys.modules[spec.name]


def _find_example(name: str) -> Path:
    """Return an example's folder: in the package when installed, in the source tree otherwise."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "scaffold", package.parent.parent / "examples"):
        if (folder / name / PROJECT_FILE).exists() and "/" not in name and ".." not in name:
            return folder / name
    raise BadInput(f"There is no example {name!r}.", "Use shop.")

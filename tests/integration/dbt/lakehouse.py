"""Lakehouses with a dbt project in them, and what a reader of main sees."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import thermocline
from thermocline.api import Lakehouse
from thermocline.contract import Column, Contract, parse_type
from thermocline.dbt import DbtReport, DbtRequest, run
from thermocline.lake.naming import new_run_id

JAFFLE_SHOP = Path(__file__).parent / "jaffle_shop"
SETTINGS = '[lake]\nname = "test"\n'


def make(folder: Path) -> Path:
    """An empty lakehouse with jaffle_shop beside its settings."""
    folder.mkdir(parents=True)
    (folder / "thermocline.toml").write_text(SETTINGS)
    shutil.copytree(JAFFLE_SHOP, folder / "jaffle_shop")
    return folder


@contextmanager
def opened(folder: Path) -> Iterator[Lakehouse]:
    house = thermocline.open(folder)
    try:
        yield house
    finally:
        house.lake.duck.stop()


def dbt(
    house: Lakehouse, command: str, *arguments: str, project: str = "", **more: Any
) -> DbtReport:
    """Run a command in the dbt project of that name, or the only one."""
    found = [path.parent for path in house.settings.project.glob("*/dbt_project.yml")]
    (place,) = [path for path in found if not project or path.name == project]
    progress = more.pop("progress", None)
    request = DbtRequest(command, place, arguments, **more)
    return run(house, request, **({"progress": progress} if progress else {}))


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Put files into a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def replace(path: Path, old: str, new: str) -> None:
    """Change a file in one place, which must be there."""
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {path.name}"
    path.write_text(text.replace(old, new))


def rows(house: Lakehouse, query: str) -> list[tuple[Any, ...]]:
    """What a query answers."""
    return house.query(query).rows


def pointers(house: Lakehouse) -> dict[str, str]:
    """Every table's metadata file: the same ones mean that nothing at all was touched."""
    return {table: house.lake.state(table).metadata_location for table in house.lake.tables()}


def contents(house: Lakehouse) -> dict[str, list[str]]:
    """All rows of all tables on main."""
    return {t: sorted(map(str, rows(house, f"select * from {t}"))) for t in house.lake.tables()}


def load(house: Lakehouse, table: str, data: Mapping[str, tuple[str, list[Any]]]) -> int:
    """Append rows to a table that no dbt project makes: column → its type and its values."""
    columns = tuple(Column(name, parse_type(kind)) for name, (kind, _) in data.items())
    house.lake.ensure(Contract(table, columns))
    draft = house.lake.draft(new_run_id())
    given = pa.table({name: values for name, (_, values) in data.items()})
    draft.append(table, given, bookmark=None, operation="test")
    draft.publish()
    head = house.lake.state(table).head()
    assert head is not None
    return head

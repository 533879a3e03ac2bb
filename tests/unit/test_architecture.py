"""docs/architecture.md and docs/glossary.md name files, functions and rooms that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "thermocline"
PAGES = ("architecture.md", "glossary.md")
_REFERENCE = re.compile(r"`([a-z_/0-9]+\.py)(?::([A-Za-z_.]+))?`")
_ROOM = re.compile(r"`([a-z]+)`")


def references(page: str) -> list[tuple[str, str]]:
    """The files and definitions that a page names."""
    return _REFERENCE.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


def definitions(module: Path) -> Iterator[str]:
    """Yield the functions, classes and methods of a module by qualified name."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{member.name}"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_definition_exists(page: str) -> None:
    found = references(page)
    assert len(found) > 20
    missing = [
        f"{file}:{name}" if name else file
        for file, name in found
        if not (PACKAGE / file).is_file() or (name and name not in definitions(PACKAGE / file))
    ]
    assert not missing


def test_every_promise_names_test_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:unit|contract|integration|e2e)/[\w/]+\.py)`", text)
    assert len(files) > 30
    assert not [file for file in files if not (ROOT / "tests" / file).is_file()]


def test_no_class_name_occurs_twice() -> None:
    names = [
        node.name.lstrip("_")
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert not [name for name, count in Counter(names).items() if count > 1]


def test_the_rooms_stand_in_the_order_that_is_enforced() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("<!-- rooms -->")[2].partition("<!-- end -->")[0]
    shown = [set(_ROOM.findall(row.split("|")[1])) for row in table.splitlines() if "`" in row]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = project["tool"]["importlinter"]["contracts"]
    enforced = [
        {each.strip().removeprefix("thermocline.") for each in layer.split("|")}
        for layer in contract["layers"]
    ]
    assert shown == enforced


def test_every_room_has_a_place_in_the_order() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = project["tool"]["importlinter"]["contracts"]
    ordered = set(re.findall(r"thermocline\.(\w+)", " ".join(contract["layers"])))
    rooms = {
        path.stem for path in PACKAGE.iterdir()
        if not path.stem.startswith("_") and (path.is_dir() or path.suffix == ".py")
    }  # fmt: skip
    assert rooms == ordered

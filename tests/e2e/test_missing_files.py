"""What is missing from a lake × every command: the cause is named, and the next step works.

The shop's products, on DuckDB alone: two landings of clean rows, each followed by a run.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import clean_environment
from tests.e2e.shop_project import SMALL, generate

import thermocline as tc
from thermocline.api import init
from thermocline.cli.main import run

BRONZE, SILVER = "bronze.raw_products", "silver.products"
CONTENT = "select product_id, sku, price from {} order by product_id"
KINDS = ("data file", "manifest", "manifest list", "metadata file")
READS = {
    "query": ["query", f"select * from {SILVER} union all by name select * from {BRONZE}"],
    "check": ["check"],
    "refresh": ["run", "--full-refresh", "--select", SILVER],
}
"""Commands that need every file of both tables."""
METADATA = {
    "tables": ["tables"],
    "history": ["history", "{table}"],
    "plan": ["plan", "--select", SILVER],
    "run": ["run", "--select", SILVER],
    "ingest": ["ingest", "products"],
}
"""Commands that need no more than metadata while nothing is new."""


@dataclass(frozen=True)
class Shop:
    """The project, and a copy of it as it was when it was whole."""

    project: Path
    whole: Path
    rows: dict[str, list[Any]]

    def restore(self) -> None:
        shutil.rmtree(self.project, ignore_errors=True)
        shutil.copytree(self.whole, self.project)

    def files_of(self, table: str) -> dict[str, Path]:
        """The newest file of each kind of a table."""
        lake = tc.open(self.project).lake
        iceberg = lake.iceberg(table)
        snapshot = iceberg.current_snapshot()
        assert snapshot is not None
        manifest = max(snapshot.manifests(iceberg.io), key=lambda it: it.sequence_number)
        (entry, *_) = manifest.fetch_manifest_entry(iceberg.io)
        found = (entry.data_file.file_path, manifest.manifest_path, snapshot.manifest_list,
                 iceberg.metadata_location)  # fmt: skip
        return dict(zip(KINDS, (Path(it.removeprefix("file://")) for it in found), strict=True))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("products")
    project, whole = folder / "shop", folder / "whole"
    init(project)
    generate(project, *SMALL)
    settings = project / "thermocline.toml"
    settings.write_text(settings.read_text().replace('engine = "spark"', 'engine = "duckdb"'))
    for other in (project / "sources").iterdir():
        if other.name != "products.yaml":
            other.unlink()
    (landing,) = (project / "landing" / "products").iterdir()
    head, *lines = landing.read_text().splitlines(keepends=True)
    good = [line for line in lines if _clean(next(csv.reader([line])))]
    landing.unlink()
    house = tc.open(project)
    for number, part in enumerate((good[:20], good[20:38])):
        landing.with_name(f"products-{number:03}-0001.csv").write_text(head + "".join(part))
        assert house.ingest(["products"]).targets[0].rows == len(part)
        assert house.run([SILVER]).steps[0].engine == "duckdb"
    assert not house.lake.spark.started
    rows = {table: house.query(CONTENT.format(table)).rows for table in (BRONZE, SILVER)}
    house.close()
    shutil.copytree(project, whole)
    return Shop(project, whole, rows)


def _clean(cells: list[str]) -> bool:
    return len(cells) == 13 and cells[0].startswith("PROD-0000") and float(cells[6] or 0) > 0


@pytest.fixture
def shop(built: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    built.restore()
    monkeypatch.chdir(built.project)
    yield built


def thermo(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code of a command and what it told of a failure."""
    capsys.readouterr()
    code = run([*arguments, "--json"])
    said = capsys.readouterr().out
    if code == 0:
        return 0, said
    document = json.loads(said)
    if "error" not in document:
        return code, said
    error = document["error"]
    assert error["code"] != "bug", error
    assert "\n" not in error["cause"] and error["next_step"]
    return code, f"{error['cause']}\n{error['next_step']}"


@pytest.mark.parametrize("table", [BRONZE, SILVER])
@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_named_and_the_next_step_works(
    shop: Shop, capsys: pytest.CaptureFixture[str], table: str, kind: str
) -> None:
    path = shop.files_of(table)[kind]
    path.unlink()
    needed = METADATA | READS if kind == "metadata file" else dict(READS)
    if table == SILVER:
        needed.pop("ingest", None)  # that needs bronze alone
        if kind == "data file":
            del needed["refresh"]  # what is replaced as a whole need not be read
    elif kind != "metadata file":
        needed["check"] = ["check", "--select", BRONZE]
    steps = set[str]()
    for name, words in needed.items():
        code, said = thermo(capsys, *(word.format(table=table) for word in words))
        assert code == 2, (name, said)
        assert table in said and str(path) in said and kind in said, (name, said)
        steps.add(said.partition("\n")[2])
    for name, words in METADATA.items():
        if name not in needed:
            code, said = thermo(capsys, *(word.format(table=table) for word in words))
            assert code == 0, (name, said)
    code, said = thermo(capsys, "doctor")
    found = [each for each in json.loads(said) if each["status"] == "fail"]
    assert code == 1
    assert any(each["what"] == "missing file" and str(path) in each["detail"] for each in found)
    assert any(each["next_step"].startswith("Restore the file from a backup") for each in found)
    assert len(steps) == 1, steps
    commands = re.findall("`thermo ([^`]+)`", steps.pop())
    if kind == "metadata file":
        shutil.copy(shop.whole / path.relative_to(shop.project), path)
    else:
        assert commands[0].startswith("rollback")
        for command in commands:
            code, said = thermo(capsys, *command.split())
            assert code == 0, (command, said)
    assert_whole(shop, capsys)


def assert_whole(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Both tables hold what they held, and nothing is missing."""
    house = tc.open(shop.project)
    house.run([SILVER])
    for table, rows in shop.rows.items():
        assert house.query(CONTENT.format(table)).rows == rows, table
    house.close()
    code, said = thermo(capsys, "doctor")
    assert code == 0, said


COMMANDS = METADATA | READS | {"serve": ["serve", "--port", "0"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_catalog_that_is_gone_is_not_replaced_by_an_empty_one(
    shop: Shop, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    catalog = shop.project / "lake" / "catalog.db"
    for each in catalog.parent.glob("catalog.db*"):
        each.unlink()
    code, said = thermo(capsys, *(word.format(table=SILVER) for word in COMMANDS[command]))
    assert code == 2, said
    assert said.startswith(f"The catalog {catalog} is gone, but the warehouse holds {BRONZE}")
    assert not catalog.exists()
    code, said = thermo(capsys, "doctor")
    assert (code, said.count("is gone")) == (1, 1)
    # Both next steps: a backup, or the warehouse put away for an empty lake.
    if command == "tables":
        (shop.project / "lake").rename(shop.project / "away")
        assert thermo(capsys, "ingest", "products")[0] == 0
        assert thermo(capsys, "run", "--select", SILVER)[0] == 0
    else:
        shutil.copytree(shop.whole / "lake", shop.project / "lake", dirs_exist_ok=True)
    assert_whole(shop, capsys)


WRITES = {
    "refresh": READS["refresh"],
    "ingest": ["ingest", "products"],
    "tag": ["tag", SILVER, "now"],
    "rollback": ["rollback", SILVER, "--to", "1 second ago"],
}


CALLED = """
import contextlib, io, json, sys
from thermocline.cli.main import run
ended = {}
for name, words in json.loads(sys.argv[1]).items():
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        ended[name] = run(words), said.getvalue()
print(json.dumps(ended))
"""


def without_rights(shop: Shop, commands: dict[str, list[str]]) -> dict[str, tuple[int, str]]:
    """The exit codes and errors of commands in a process that may write only what its user may."""
    drop = [] if os.getuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    words = {name: [word.format(table=SILVER) for word in each] for name, each in commands.items()}
    done = subprocess.run(
        [*drop, sys.executable, "-c", CALLED, json.dumps(words)],
        env=clean_environment(), cwd=shop.project, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


@pytest.fixture
def read_only(shop: Shop) -> Iterator[Shop]:
    """A project that holds one landing file that is new, of which nothing may be written."""
    landing = next((shop.project / "landing" / "products").iterdir())
    landing.with_name("products-009-0001.csv").write_text(landing.read_text() + " \n")
    for path in [shop.project, *shop.project.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    yield shop
    for path in [shop.project, *shop.project.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)


def test_a_read_only_project_can_be_read_and_not_written(read_only: Shop) -> None:
    reading = METADATA | READS | {"doctor": ["doctor"], "config": ["config"]}
    reading = {name: words for name, words in reading.items() if name not in WRITES}
    for name, (code, said) in without_rights(read_only, reading).items():
        assert code == 0, (name, said)
    for name, (code, said) in without_rights(read_only, WRITES).items():
        cause, step = said.splitlines()[-2:]
        assert code == 1, (name, said)
        assert cause.startswith("A file cannot be used as the work needs it: "), (name, cause)
        assert "denied" in cause or "readonly" in cause, (name, cause)
        assert step.startswith("  Give this user the rights, or mount it for writing."), name


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a file system")
def test_a_full_disk_is_named_and_goes_on_when_there_is_room(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = shop.project / "lake"
    with small_disk(lake):
        shutil.copytree(shop.whole / "lake", lake, dirs_exist_ok=True)
        landing = next((shop.project / "landing" / "products").iterdir())
        landing.with_name("products-009-0001.csv").write_text(landing.read_text() + " \n")
        (filling := lake / "filling").write_bytes(b"")
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as out:
            while True:
                out.write(b"0" * 512)
        for name in ("refresh", "tag"):
            code, said = thermo(capsys, *WRITES[name])
            assert code == 5, (name, said)
            assert said.startswith("A disk is full: "), (name, said)
            assert said.endswith("Make room on it, then run it again."), (name, said)
        code, said = thermo(capsys, "query", f"select count(*) from {SILVER}")
        assert code == 0, said
        filling.unlink()
        for name in ("refresh", "tag"):
            assert thermo(capsys, *WRITES[name])[0] == 0, name
        assert_whole(shop, capsys)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of a megabyte or two over a folder."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

"""The commands of quarantine, as a person types them, without a JVM on the machine's path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import clean_environment
from tests.integration.odcs import HEAD

CONTRACT = """\
      - {name: id, logicalType: string, physicalType: string, required: true}
      - {name: qty, logicalType: integer, physicalType: int}
customProperties:
  - {property: write, value: append}
"""
SOURCE = "name: orders\nkind: files\npath: landing\ntarget: bronze.raw_orders\nbadShare: 1\n"


@pytest.fixture
def shop(project: Path) -> Path:
    for folder in ("contracts/bronze", "sources", "landing"):
        (project / folder).mkdir(parents=True)
    contract = project / "contracts/bronze/raw_orders.odcs.yaml"
    contract.write_text(HEAD.format(name="raw_orders") + CONTRACT)
    (project / "sources/orders.yaml").write_text(SOURCE)
    (project / "landing/a.csv").write_text("id,qty\na,1\nb,two\n,3\n")
    return project


def thermo(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in an environment in which no Java can be found."""
    environ = {**clean_environment(), "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    command = [sys.executable, "-m", "thermocline.cli.main", "-C", str(project), *words]
    return subprocess.run(command, env=environ, cwd=project, text=True, capture_output=True)


def answer(project: Path, *words: str) -> Any:
    done = thermo(project, "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_from_a_bad_row_to_a_mended_one(shop: Path) -> None:
    [target] = answer(shop, "ingest")["targets"]
    assert (target["rows"], target["quarantined"]) == (1, 2)
    listed = thermo(shop, "quarantine", "list", "orders").stdout
    rows = answer(shop, "quarantine", "list", "bronze.raw_orders")
    assert [row["id"][:12] in listed for row in rows] == [True, True]

    mended = shop / "mended.jsonl"
    done = thermo(shop, "quarantine", "export", "orders", str(mended))
    assert f"thermo quarantine replay orders {mended}" in done.stdout, done.stderr
    assert thermo(shop, "quarantine", "export", "orders", str(mended)).returncode == 2
    assert answer(shop, "quarantine", "export", "orders") == [
        json.loads(line) for line in mended.read_text().splitlines()
    ]
    text = mended.read_text()
    assert '"qty":"two"' in text
    mended.write_text(text.replace('"qty":"two"', '"qty":2'))
    replayed = answer(shop, "quarantine", "replay", "orders", str(mended))
    assert (replayed["replayed"], replayed["still_bad"], replayed["already"]) == (1, 1, 0)
    replayed = answer(shop, "quarantine", "replay", "bronze.raw_orders", str(mended))
    assert (replayed["replayed"], replayed["still_bad"], replayed["already"]) == (0, 1, 1)

    # The id that is shown is the id that is taken; one that is not there is named.
    left = next(row["id"] for row in rows if not row["raw"].startswith("b"))
    replayed = answer(shop, "quarantine", "replay", "orders", "--id", left[:12])
    assert (replayed["replayed"], replayed["still_bad"]) == (0, 1)
    unknown = thermo(shop, "quarantine", "replay", "orders", "--id", "0" * 12)
    assert unknown.returncode == 2
    assert f"Not in quarantine.raw_orders: {'0' * 12}" in unknown.stderr
    out = shop / "out.csv"
    assert answer(shop, "quarantine", "export", "orders", str(out))["rows"] == 1
    header = out.read_text().splitlines()[0]
    assert header == (
        "_quarantine_id,_quarantine_reason,_quarantine_file,_quarantine_position,id,qty"
    )
    assert answer(shop, "query", "select count(*) as n from bronze.raw_orders")["rows"]

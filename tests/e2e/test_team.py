"""The shop as a team has it: PostgreSQL catalog, warehouse and landing folders on S3."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from tests.e2e.shop_project import Embedded, contents, copy_of, environment, opened, thermo
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3
from tests.servers.settings import team_lake_settings

SCRIPT = """
import json, os, sys
from pathlib import Path
import thermocline as tc

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

house = tc.open(sys.argv[1])
taken, ran = house.ingest(), house.run()
again = house.ingest(), house.run()
pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
jvms = [pid for pid in pids if parent(pid) == os.getpid()]
print(json.dumps({
    "files": sum(target.files for target in taken.targets),
    "models": [step.table for step in ran.steps],
    "again": [sum(target.files for target in again[0].targets), len(again[1].steps)],
    "jvms": [Path(f"/proc/{pid}/cmdline").read_text() for pid in jvms],
}))
"""


def on_servers(shop: Path, postgres: Postgres, s3: S3) -> dict[str, str]:
    """Move the shop's landing files to S3; the settings that put its lake on the servers."""
    for path in (shop / "landing").rglob("*"):
        if path.is_file():
            assert s3.put(path.relative_to(shop).as_posix(), path.read_bytes()) == 200
            path.unlink()
    for path in (shop / "sources").glob("*.yaml"):
        source = yaml.safe_load(path.read_text())
        source["path"] = f"s3://{s3.bucket}/{source['path']}"
        path.write_text(yaml.safe_dump(source))
    return team_lake_settings(postgres, s3, shop)


def secrets(settings: dict[str, str]) -> list[str]:
    """Every secret, as it is and as an address would spell it."""
    kept = [settings[f"THERMOCLINE_LAKE__{key}"] for key in ("CATALOG__PASSWORD", "S3__SECRET_KEY")]
    return [*kept, *(quote(secret, safe="") for secret in kept)]


def test_the_shop_on_the_teams_servers_equals_the_embedded_one(
    postgres_server: Postgres, s3_server: S3, embedded_shop: Embedded, tmp_path: Path
) -> None:
    shop = copy_of(embedded_shop.project, tmp_path / "shop")
    settings = on_servers(shop, postgres_server, s3_server)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, shop],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment(settings),
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)

    assert said["files"] == embedded_shop.files
    assert set(said["models"]) == embedded_shop.models
    assert said["again"] == [0, 0]
    house = opened(shop, settings)
    for engine in ("duckdb", "pyiceberg"):
        assert contents(house, engine) == embedded_shop.contents
    assert not (shop / "lake").exists(), "every file of the lake is on S3"
    assert house.orphans("silver.orders") == []

    listed = thermo(shop, settings, "tables")
    assert {table["name"]: table["rows"] for table in listed} == {
        name: len(rows) for name, rows in embedded_shop.contents.items() if "__" not in name
    }

    (jvm,) = said["jvms"]
    log = (shop / ".thermocline" / "spark.log").read_text()
    assert "java" in jvm
    for secret in secrets(settings):
        assert secret not in jvm
        assert secret not in log
        assert secret not in done.stderr


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("CATALOG__PASSWORD", "password authentication failed"),
        ("S3__SECRET_KEY", "cannot be listed"),
    ],
)
def test_a_wrong_secret_is_named_and_not_shown(
    key: str,
    said: str,
    postgres_server: Postgres,
    s3_server: S3,
    embedded_shop: Embedded,
    tmp_path: Path,
) -> None:
    shop = copy_of(embedded_shop.project, tmp_path / "shop")
    settings = on_servers(shop, postgres_server, s3_server)
    settings[f"THERMOCLINE_LAKE__{key}"] = "canary/never+to=be seen"

    done = subprocess.run(
        [sys.executable, "-m", "thermocline.cli.main", "--project", shop, "ingest"],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(settings),
    )

    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())
    everything = done.stdout + done.stderr
    assert "Traceback" not in everything
    for secret in (*secrets(settings), "canary", s3_server.secret_key, postgres_server.password):
        assert secret not in everything

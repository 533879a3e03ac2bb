"""Served queries on a lake that lacks files: errors name no path, and the router stays up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from tests.integration.serve import shop_lake
from tests.integration.serve.serving import started

OLD = "select sum(amount) from silver.orders where ordered_at < current_date - 20 and amount > {}"
RECENT = "select count(*) from silver.orders where ordered_at >= current_date - 2"


def test_missing_files_are_reported_without_paths_and_the_rest_is_served(tmp_path: Path) -> None:
    project = tmp_path / "project"
    table = shop_lake.build(project).iceberg("silver.orders")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    files = [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)]
    with started(project, "--nodes", "1") as server:
        server.settled(3)

        def ask(sql: str) -> tuple[int, dict[str, Any], str]:
            reply = httpx.post(f"{server.url}/query", json={"sql": sql}, timeout=60)
            return reply.status_code, reply.json(), reply.text

        assert ask(OLD.format("0.1"))[0] == 200
        for number, gone in enumerate([files, [manifest.manifest_path]], start=2):
            for each in gone:
                Path(each.removeprefix("file://")).unlink()
            status, said, text = ask(OLD.format(f"0.{number}"))
            assert (status, said["error"]["code"]) == (503, "file-missing"), text
            assert "thermo doctor" in said["error"]["next_step"]
            assert str(tmp_path) not in text
            assert ask(RECENT)[0] == 200  # held in memory
            assert ask("select count(*) from silver.customers")[0] == 200
        assert server.counted("spark", "failed") == 0
        assert server.process.poll() is None
        assert httpx.get(f"{server.url}/health").status_code == 200
    with started(project, "--nodes", "1") as server:
        server.settled(2)
        reply = httpx.post(f"{server.url}/query", json={"sql": RECENT}, timeout=60)
        assert reply.status_code == 404
        assert "thermo doctor" in reply.json()["error"]["next_step"]
        assert str(tmp_path) not in reply.text
